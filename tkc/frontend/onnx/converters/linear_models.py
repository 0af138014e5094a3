"""Linear models and support vector machines of ``ai.onnx.ml``: matmuls around a kernel function."""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.machine_learning import (
    class_labels,
    labels_at,
    matrix,
    transform_of,
    transformed,
)
from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of


def _array(node: Node, name: str) -> np.ndarray:
    return np.array(node.attribute(name, ()), "float32")


def _features(node: Node, x: relax.Expr, count: int, rows: int, what: str) -> int:
    """How many features each of ``rows`` rows of coefficients has."""
    columns = shape_of(x, node.algebra)[1]
    width = columns if isinstance(columns, int) else count // max(rows, 1)
    if rows < 1 or width * rows != count:
        raise ConversionError(f"has {count} {what} for {rows} rows of {columns} features; correct the model")
    return width


def _linear(node: Node, targets: int) -> relax.Expr:
    """Scores ``[N, targets]``."""
    x, coefficients, intercepts = matrix(node, "float32"), _array(node, "coefficients"), _array(node, "intercepts")
    width = _features(node, x, len(coefficients), targets, "coefficients")
    weight = np.ascontiguousarray(coefficients.reshape(targets, width).T)
    scores = node.emit(relax.op.matmul(x, relax.const(weight, "float32")))
    if not len(intercepts):
        return scores
    return node.emit(relax.op.add(scores, relax.const(intercepts, "float32")))


def _linear_regressor(node: Node) -> Converted:
    targets = node.attribute("targets", 1)
    return transformed(node, _linear(node, targets), transform_of(node) if targets > 1 else "NONE")


def _linear_classifier(node: Node) -> Converted:
    """The class of the largest score; of one score for two classes, the sign decides."""
    labels, transform = class_labels(node, "classlabels_ints"), transform_of(node)
    count = len(_array(node, "intercepts")) or len(labels)
    scores = _linear(node, count)
    if count > 1:
        return labels_at(node, node.emit(relax.op.argmax(scores, 1)), labels), transformed(node, scores, transform)
    if len(labels) != 2 or transform == "PROBIT":
        raise ConversionError(f"has one score for {len(labels)} classes, or PROBIT of it; export a score for each")
    above = node.emit(relax.op.astype(relax.op.greater(scores, scalar(0, "float32")), "int64"))
    if transform == "LOGISTIC":
        rest = relax.op.sigmoid(relax.op.negative(scores))
        both = [node.emit(rest), node.emit(relax.op.sigmoid(scores))]
    else:
        both = [node.emit(relax.op.subtract(scalar(1, "float32"), scores)), scores]
    return labels_at(node, node.emit(relax.op.squeeze(above, [1])), labels), relax.op.concat(both, 1)


def _kernel(node: Node, x: relax.Expr, vectors: np.ndarray) -> relax.Expr:
    """The kernel function of rows ``[N, C]`` and support vectors ``[S, C]``, ``[N, S]``."""
    kind = node.attribute("kernel_type", "LINEAR")
    gamma, offset, degree = (*map(float, node.attribute("kernel_params", ())), 0.0, 0.0, 0.0)[:3]

    def number(value: float) -> relax.Expr:
        return scalar(value, "float32")

    if kind == "RBF":  # of differences: what is left of large squares is not exact
        width = vectors.shape[1]
        rows = node.emit(relax.op.reshape(x, [shape_of(x, node.algebra)[0], 1, width]))
        difference = node.emit(relax.op.subtract(rows, relax.const(vectors[None], "float32")))
        square = node.emit(relax.op.sum(relax.op.multiply(difference, difference), [2]))
        return node.emit(relax.op.exp(relax.op.multiply(square, number(-gamma))))
    product = node.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(vectors.T), "float32")))
    if kind == "LINEAR":
        return product
    inner = node.emit(relax.op.add(relax.op.multiply(product, number(gamma)), number(offset)))
    if kind == "SIGMOID":
        return node.emit(relax.op.tanh(inner))
    if kind != "POLY":
        raise ConversionError(f"has kernel_type {kind!r}; expected LINEAR, POLY, RBF or SIGMOID: correct the model")
    if degree == int(degree) and 1 <= degree <= 8:  # the power of a negative base
        result = inner
        for _ in range(int(degree) - 1):
            result = node.emit(relax.op.multiply(result, inner))
        return result
    return node.emit(relax.op.power(inner, number(degree)))


def _svm_regressor(node: Node) -> Converted:
    x, coefficients, rho = matrix(node, "float32"), _array(node, "coefficients"), _array(node, "rho")
    count, vectors = node.attribute("n_supports", 0), _array(node, "support_vectors")
    if len(rho) != 1:
        raise ConversionError(f"has {len(rho)} values of rho; expected 1: correct the model")
    if count:
        width = _features(node, x, len(vectors), count, "numbers of support vectors")
        x = _kernel(node, x, vectors.reshape(count, width))
    else:
        _features(node, x, len(coefficients), 1, "coefficients")
    score = node.emit(relax.op.matmul(x, relax.const(coefficients[:, None], "float32")))
    score = node.emit(relax.op.add(score, relax.const(rho, "float32")))
    if node.attribute("one_class", 0):
        above = relax.op.greater(score, scalar(0, "float32"))
        return relax.op.where(above, scalar(1, "float32"), scalar(-1, "float32"))
    return transformed(node, score, "PROBIT" if transform_of(node) == "PROBIT" else "NONE")


def _svm_classifier(node: Node) -> Converted:
    """One decision for each pair of classes, and the class that most of them are for."""
    labels, counts = class_labels(node, "classlabels_ints"), node.attribute("vectors_per_class", ())
    classes, transform = len(labels), transform_of(node)
    chances = [_array(node, name) for name in ("prob_a", "prob_b")]
    fits = all(len(numbers) == (1 if classes == 2 else 0) for numbers in chances) or not any(map(len, chances))
    if not counts or transform != "NONE" or len(counts) != classes or not fits:
        raise ConversionError(
            "is a support vector machine with probabilities of more than two classes, a post_transform, or without "
            "support vectors; fit it with a kernel and probability=False, or export LinearClassifier"
        )
    x, total = matrix(node, "float32"), sum(counts)
    vectors, rho = _array(node, "support_vectors"), _array(node, "rho")
    kernel = _kernel(node, x, vectors.reshape(total, _features(node, x, len(vectors), total, "support vectors")))
    coefficients = _array(node, "coefficients").reshape(classes - 1, total)
    starts = np.cumsum([0, *counts])
    pairs = list(itertools.combinations(range(classes), 2))
    weight = np.zeros((total, len(pairs)), "float32")
    for column, (i, j) in enumerate(pairs):
        weight[starts[i] : starts[i + 1], column] = coefficients[j - 1, starts[i] : starts[i + 1]]
        weight[starts[j] : starts[j + 1], column] = coefficients[i, starts[j] : starts[j + 1]]
    decisions = node.emit(relax.op.matmul(kernel, relax.const(weight, "float32")))
    decisions = node.emit(relax.op.add(decisions, relax.const(rho[: len(pairs)], "float32")))
    if len(chances[0]):
        return _of_chances(node, decisions, labels, *chances)
    first, second = (np.zeros((len(pairs), classes), "float32") for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    won = node.emit(relax.op.astype(relax.op.greater(decisions, scalar(0, "float32")), "float32"))
    lost = node.emit(relax.op.subtract(scalar(1, "float32"), won))
    votes = relax.op.add(
        node.emit(relax.op.matmul(won, relax.const(first, "float32"))),
        node.emit(relax.op.matmul(lost, relax.const(second, "float32"))),
    )
    best = node.emit(relax.op.argmax(node.emit(votes), 1))
    if classes == 2:
        decisions = node.emit(relax.op.concat([node.emit(relax.op.negative(decisions)), decisions], 1))
    return labels_at(node, best, labels), decisions


def _of_chances(
    node: Node, decision: relax.Expr, labels: np.ndarray, slope: np.ndarray, offset: np.ndarray
) -> Converted:
    """Platt's probabilities of two classes."""
    scaled = node.emit(relax.op.multiply(decision, relax.const(slope, "float32")))
    chance = relax.op.sigmoid(relax.op.negative(node.emit(relax.op.add(scaled, relax.const(offset, "float32")))))
    first = node.emit(relax.op.clip(node.emit(chance), 1e-7, 1 - 1e-7))
    both = node.emit(relax.op.concat([first, node.emit(relax.op.subtract(scalar(1, "float32"), first))], 1))
    return labels_at(node, node.emit(relax.op.argmax(both, 1)), labels), both


ML_CONVERTERS: dict[str, Converter] = {
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
}
