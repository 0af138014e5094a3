"""What classifiers and regressors of ``ai.onnx.ml`` have in common: transforms of scores, and labels."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.shared import scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError

_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transform_of(node: Node) -> str:
    """The attribute ``post_transform``, which TreeEnsemble has as a number."""
    given = node.attribute("post_transform", "NONE")
    names = dict(enumerate(_TRANSFORMS))
    name = names.get(given, given) if isinstance(given, int) else given
    if name not in _TRANSFORMS:
        raise ConversionError(f"has post_transform {name!r}; expected one of {', '.join(_TRANSFORMS)}")
    return str(name)


def transformed(node: Node, scores: relax.Expr, transform: str) -> relax.Expr:
    """Scores ``[N, K]`` as ONNX Runtime transforms them."""
    match transform:
        case "LOGISTIC":
            return node.emit(relax.op.sigmoid(scores))
        case "SOFTMAX":
            return node.emit(relax.op.nn.softmax(scores, -1))
        case "SOFTMAX_ZERO":
            return _softmax_of_others(node, scores)
        case "PROBIT":
            return _probit(node, scores)
    return scores


def _softmax_of_others(node: Node, scores: relax.Expr) -> relax.Expr:
    """The softmax, whose exponentials of scores near 0 are those scores times that of the largest one negated."""
    dtype = scores.struct_info.dtype
    largest = node.emit(relax.op.max(scores, [-1], True))
    near = relax.op.less_equal(relax.op.abs(scores), scalar(1e-7, dtype))
    kept = relax.op.multiply(scores, relax.op.exp(relax.op.negative(largest)))
    powers = node.emit(relax.op.where(near, kept, relax.op.exp(relax.op.subtract(scores, largest))))
    return node.emit(relax.op.divide(powers, node.emit(relax.op.sum(powers, [-1], True))))


def _probit(node: Node, scores: relax.Expr) -> relax.Expr:
    """The quantile of the normal distribution, by the approximation of ONNX Runtime."""
    dtype = scores.struct_info.dtype

    def number(value: float) -> relax.Expr:
        return scalar(value, dtype)

    x = node.emit(relax.op.subtract(relax.op.multiply(scores, number(2)), number(1)))
    inner = relax.op.multiply(relax.op.subtract(number(1), x), relax.op.add(number(1), x))
    log = node.emit(relax.op.log(inner))
    half = node.emit(relax.op.add(number(2 / (3.14159 * 0.147)), relax.op.multiply(number(0.5), log)))
    square = relax.op.subtract(relax.op.multiply(half, half), relax.op.multiply(number(1 / 0.147), log))
    root = node.emit(relax.op.sqrt(relax.op.subtract(relax.op.sqrt(square), half)))
    signed = relax.op.where(relax.op.less(x, number(0)), relax.op.negative(root), root)
    return node.emit(relax.op.multiply(number(1.41421356), signed))


def class_labels(node: Node, *names: str) -> np.ndarray:
    """The labels of classes, int64, also those that were strings (``tkc/frontend/onnx/text/``)."""
    for name in names:
        labels = node.attribute(name)
        if labels:
            return np.array(labels, "int64")
    raise ConversionError("has no labels of classes; correct the model")


def labels_at(node: Node, positions: relax.Expr, labels: np.ndarray) -> relax.Expr:
    """The labels of classes by their positions."""
    return node.emit(relax.op.take(relax.const(labels, "int64"), positions, 0, mode="clip"))


def matrix(node: Node, dtype: str) -> relax.Expr:
    """Input 0 as ``[N, C]`` of a type; a vector is one row."""
    data = node.tensor(0)
    if node.rank(0) == 1:
        data = node.emit(relax.op.reshape(data, [1, node.shape(0)[0]]))
    elif node.rank(0) != 2:
        raise ConversionError(f"has an input of {node.rank(0)} dimensions; expected rows of features: reshape it")
    return data if data.struct_info.dtype == dtype else node.emit(relax.op.astype(data, dtype))
