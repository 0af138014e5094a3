"""Linear models and support vector machines of ``ai.onnx.ml``: matmuls around a kernel function."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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
from tkc.frontend.pairwise_coupling import coupling_function


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
    """One decision for each pair of classes, and the class that most of them are for, also beside probabilities.

    libsvm, scikit-learn and ONNX Runtime do not ask the probabilities for the class, which may be another one.
    """
    labels, counts = class_labels(node, "classlabels_ints"), node.attribute("vectors_per_class", ())
    classes, transform = len(labels), transform_of(node)
    pairs = list(itertools.combinations(range(classes), 2))
    slope, offset = (_array(node, name) for name in ("prob_a", "prob_b"))
    if not counts:
        raise ConversionError("is a support vector machine without support vectors; export LinearClassifier")
    decisions = _pair_decisions(node, pairs, counts, classes)
    if not len(slope) == len(offset) or len(slope) not in (0, len(pairs)):
        raise ConversionError(
            f"has {len(slope)} values of prob_a and {len(offset)} of prob_b for {len(pairs)} pairs of classes; "
            "correct the model"
        )
    first, second = (np.zeros((len(pairs), classes), "float32") for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    won = node.emit(relax.op.astype(relax.op.greater(decisions, scalar(0, "float64")), "float32"))
    lost = node.emit(relax.op.subtract(scalar(1, "float32"), won))
    votes = relax.op.add(
        node.emit(relax.op.matmul(won, relax.const(first, "float32"))),
        node.emit(relax.op.matmul(lost, relax.const(second, "float32"))),
    )
    label = labels_at(node, node.emit(relax.op.argmax(node.emit(votes), 1)), labels)
    scores = node.emit(relax.op.astype(decisions, "float32"))
    if len(slope):
        return label, transformed(node, _coupled(node, _of_pairs(node, scores, slope, offset), classes), transform)
    if classes > 2:
        return label, transformed(node, scores, transform)
    if transform == "PROBIT":
        raise ConversionError("has post_transform PROBIT of one decision for two classes; export it with NONE")
    # What ONNX Runtime makes of the one decision; it applies no softmax to it.
    if transform == "LOGISTIC":
        scores = node.emit(relax.op.sigmoid(scores))
    rest = relax.op.negative(scores) if transform == "NONE" else relax.op.subtract(scalar(1, "float32"), scores)
    return label, node.emit(relax.op.concat([node.emit(rest), scores], 1))


def _pair_decisions(node: Node, pairs: list[tuple[int, int]], counts: Sequence[int], classes: int) -> relax.Expr:
    """The decisions of pairs of classes, ``[N, pairs]``, summed in float64, as ONNX Runtime sums them."""
    vectors, coefficients, rho = (_array(node, name) for name in ("support_vectors", "coefficients", "rho"))
    total = sum(counts)
    if classes < 2 or len(counts) != classes or len(coefficients) != (classes - 1) * total or len(rho) < len(pairs):
        raise ConversionError(
            f"has {len(counts)} vectors_per_class, {len(coefficients)} coefficients and {len(rho)} values of rho for "
            f"{classes} classes and {total} support vectors; correct the model"
        )
    x = matrix(node, "float32")
    kernel = _kernel(node, x, vectors.reshape(total, _features(node, x, len(vectors), total, "support vectors")))
    table, starts = coefficients.reshape(classes - 1, total), np.cumsum([0, *counts])
    weight = np.zeros((total, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        weight[starts[i] : starts[i + 1], column] = table[j - 1, starts[i] : starts[i + 1]]
        weight[starts[j] : starts[j + 1], column] = table[i, starts[j] : starts[j + 1]]
    wide = node.emit(relax.op.astype(kernel, "float64"))
    sums = node.emit(relax.op.matmul(wide, relax.const(weight, "float64")))
    return node.emit(relax.op.add(sums, relax.const(rho[: len(pairs)].astype("float64"), "float64")))


def _of_pairs(node: Node, decisions: relax.Expr, slope: np.ndarray, offset: np.ndarray) -> relax.Expr:
    """Platt's probability of the first class of each pair, ``[N, pairs]``."""
    scaled = node.emit(relax.op.multiply(decisions, relax.const(slope, "float32")))
    probability = relax.op.sigmoid(relax.op.negative(node.emit(relax.op.add(scaled, relax.const(offset, "float32")))))
    return node.emit(relax.op.clip(node.emit(probability), 1e-7, 1 - 1e-7))


def _coupled(node: Node, probabilities: relax.Expr, classes: int) -> relax.Expr:
    """The probability of each class, ``[N, classes]``."""
    rows, count = shape_of(probabilities, node.algebra)
    places = np.zeros((classes, classes), "int64")
    for place, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        places[i, j], places[j, i] = place, count + place
    both = node.emit(
        relax.op.concat([probabilities, node.emit(relax.op.subtract(scalar(1, "float32"), probabilities))], 1)
    )
    pairs = node.emit(relax.op.take(both, relax.const(places, "int64"), 1, mode="clip"))
    function = node.builder.add_func(coupling_function(classes), "coupled_probabilities")
    infos = [relax.TensorStructInfo([rows, classes], "float32") for _ in range(3)]
    return node.emit(relax.TupleGetItem(node.emit(relax.call_tir(function, [pairs], infos)), 0))


ML_CONVERTERS: dict[str, Converter] = {
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
}
