"""Operators of ``ai.onnx.ml`` against NumPy, and against a walk through trees as the standard tells it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tkc
from tests.frontend.onnx_execution import compiled, evaluated, parsed
from tkc.errors import UnsupportedModelError

ML = "ai.onnx.ml"
COMPARE = {
    "BRANCH_LEQ": operator.le,
    "BRANCH_LT": operator.lt,
    "BRANCH_GTE": operator.ge,
    "BRANCH_GT": operator.gt,
    "BRANCH_EQ": operator.eq,
    "BRANCH_NEQ": operator.ne,
}
FEATURES = 5


def model(
    kind: str,
    inputs: Mapping[str, tuple[str, list[int | str]]],
    outputs: Mapping[str, str],
    version: int = 3,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node of ``ai.onnx.ml``; outputs are matrices, but for integers, which are vectors."""

    def declared(name: str, dtype: str, shape: list[int | str | None]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    node = helper.make_node(kind, list(inputs), list(outputs), domain=ML, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [declared(name, dtype, list(shape)) for name, (dtype, shape) in inputs.items()],
        [declared(name, dtype, [None, None][: 1 if dtype == "int64" else 2]) for name, dtype in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def forest(random: np.random.Generator, prefix: str, targets: list[int], chance: float) -> dict[str, list[Any]]:
    """Random trees of every mode, whose thresholds are among the features' values; leaves lack some weights."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    names = (*names, "missing_value_tracks_true")
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    weights: dict[str, list[Any]] = {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, name: int, depth: int) -> int:
        """Nodes are named in steps of 3, so that a name is no place in a list."""
        is_leaf = depth == 0 or (depth < 4 and random.random() < 0.2)
        place = len(nodes["nodes_modes"])
        mode = "LEAF" if is_leaf else str(random.choice(list(COMPARE)))
        row = (tree, name, int(random.integers(FEATURES)), int(random.integers(-4, 5)) / 2, mode, 0, 0)
        for column, value in zip(nodes.values(), (*row, int(random.integers(2))), strict=True):
            column.append(value)
        if is_leaf:
            for target in targets:
                if random.random() < chance:
                    entry = (tree, name, target, float(np.float32(random.normal())))
                    for column, value in zip(weights.values(), entry, strict=True):
                        column.append(value)
            return name + 3
        following = name + 3
        for side in ("true", "false"):
            nodes[f"nodes_{side}nodeids"][place] = following
            following = grow(tree, following, depth - 1)
        return following

    for tree in range(6):
        grow(tree, 0, 4)
    return nodes | weights


def walked(trees: Mapping[str, list[Any]], prefix: str, row: np.ndarray, dtype: str) -> list[tuple[int, float]]:
    """The targets and weights of the leaves that a row comes to."""
    places = {key: i for i, key in enumerate(zip(trees["nodes_treeids"], trees["nodes_nodeids"], strict=True))}
    found: list[tuple[int, float]] = []
    for tree in sorted(set(trees["nodes_treeids"])):
        at = places[tree, 0]
        while trees["nodes_modes"][at] != "LEAF":
            value, threshold = row[trees["nodes_featureids"][at]], np.dtype(dtype).type(trees["nodes_values"][at])
            passes = COMPARE[trees["nodes_modes"][at]](value, threshold)
            passes = passes or (np.isnan(value) and trees["nodes_missing_value_tracks_true"][at])
            at = places[tree, trees[f"nodes_{'true' if passes else 'false'}nodeids"][at]]
        entries = zip(*(trees[f"{prefix}_{name}"] for name in ("treeids", "nodeids", "ids", "weights")), strict=True)
        found += [(k, w) for t, n, k, w in entries if (t, n) == (tree, trees["nodes_nodeids"][at])]
    return found


def rows(random: np.random.Generator, count: int, dtype: str) -> np.ndarray:
    """Features of which many equal a threshold, and some are NaN."""
    values = random.integers(-5, 6, (count, FEATURES)) / 2
    return np.where(random.random(values.shape) < 0.15, np.nan, values).astype(dtype)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("aggregate", "dtype"),
    [("SUM", "float32"), ("SUM", "float64"), ("AVERAGE", "float32"), ("MIN", "float32"), ("MAX", "float32")],
)
def test_tree_regressors(aggregate: str, dtype: str) -> None:
    """Every mode of nodes, equal thresholds, NaN either way; any number of rows."""
    random = np.random.default_rng(5)
    trees = forest(random, "target", [0, 1, 2], 0.7)
    base = [0.5, -0.25, 2.0]
    options = {"n_targets": 3, "aggregate_function": aggregate, "base_values": base, **trees}
    call = compiled(model("TreeEnsembleRegressor", {"x": (dtype, ["n", FEATURES])}, {"y": "float32"}, **options))
    combine = {"SUM": sum, "AVERAGE": lambda w: sum(w) / 6, "MIN": min, "MAX": max}[aggregate]
    for count in (1, 33):
        x = rows(random, count, dtype)
        (found,) = call(x)
        for row, result in zip(x, found, strict=True):
            reached = walked(trees, "target", row, dtype)
            for k in range(3):
                weights = [weight for target, weight in reached if target == k]
                unseen = 0 if aggregate in ("MIN", "MAX") else base[k]
                assert np.isclose(result[k], combine(weights) + base[k] if weights else unseen, 1e-5, 1e-5)


@pytest.mark.daily(1)
@pytest.mark.parametrize("classes", [[0, 1, 2], [0], [1]])
def test_tree_classifiers(classes: list[int]) -> None:
    """The largest score; weights of one of two classes alone are those of the other, too."""
    random = np.random.default_rng(6)
    trees = forest(random, "class", classes, 1.0)
    labels = [7, 3, 5] if len(classes) > 1 else [7, 3]
    post = "SOFTMAX" if len(classes) > 1 else "LOGISTIC"
    options = {"classlabels_int64s": labels, "post_transform": post, **trees}
    outputs = {"label": "int64", "scores": "float32"}
    x = rows(random, 40, "float32")
    label, scores = evaluated(
        model("TreeEnsembleClassifier", {"x": ("float32", ["n", FEATURES])}, outputs, **options), x
    )
    for i, row in enumerate(x):
        totals = np.zeros(len(labels))
        for target, weight in walked(trees, "class", row, "float32"):
            totals[target] += weight
        if len(classes) > 1:
            chosen, expected = int(totals.argmax()), np.exp(totals) / np.exp(totals).sum()
        else:
            score = totals[classes[0]]
            chosen = int(score > 0)
            expected = 1 / (1 + np.exp([score, -score] if classes == [0] else [0, -score]))
        assert label[i] == labels[chosen]
        assert np.allclose(scores[i], expected, 1e-5, 1e-5)


_STUMP: dict[str, Any] = {
    "nodes_treeids": [0] * 3,
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0] * 3,
    "nodes_values": [0.0] * 3,
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
"""The nodes of a tree that asks once whether a number is at most 0."""


def test_positive_weights_of_one_class_decide_at_half() -> None:
    """They are probabilities; of scores that may be negative the sign decides."""
    nodes = {
        **_STUMP,
        "class_treeids": [0] * 2,
        "class_nodeids": [1, 2],
        "class_ids": [0] * 2,
    }
    x = np.array([[-1], [1]], "float32")
    for weights, chosen, expected in (
        ([0.25, 0.75], [0, 1], [[0.75, 0.25], [0.25, 0.75]]),
        ([-0.25, 0.25], [0, 1], [[0.25, -0.25], [-0.25, 0.25]]),
    ):
        options = {"classlabels_int64s": [0, 1], "class_weights": weights, **nodes}
        outputs = {"label": "int64", "scores": "float32"}
        label, scores = evaluated(model("TreeEnsembleClassifier", {"x": ("float32", ["n", 1])}, outputs, **options), x)
        assert label.tolist() == chosen
        assert np.allclose(scores, expected)


@pytest.mark.parametrize(
    ("kind", "targets", "weights", "expected"),
    [
        ("TreeEnsembleRegressor", 1, [1, 1, 1, 2, 2], [[1], [2]]),
        ("TreeEnsembleRegressor", 1, [1, 1, 5, 2, 7], [[7], [9]]),
        ("TreeEnsembleRegressor", 1, [1, 1, 1, 2, 7], [[1], [9]]),
        ("TreeEnsembleRegressor", 2, [1, 1, 1, 2, 2], [[3, 0], [4, 0]]),
        ("TreeEnsembleClassifier", 3, [1, 1, 1, 2, 2], [[3, 0, 0], [4, 0, 0]]),
    ],
)
def test_several_votes_of_one_leaf(kind: str, targets: int, weights: list[int], expected: list[list[int]]) -> None:
    """They add, as the standard has it; a vote that is repeated for a single target, as skl2onnx does, counts once."""
    prefix = "target" if kind == "TreeEnsembleRegressor" else "class"
    options: dict[str, Any] = {
        **_STUMP,
        f"{prefix}_treeids": [0] * 5,
        f"{prefix}_nodeids": [1, 1, 1, 2, 2],
        f"{prefix}_ids": [0] * 5,
        f"{prefix}_weights": [float(weight) for weight in weights],
    }
    outputs = {"y": "float32"} if prefix == "target" else {"label": "int64", "y": "float32"}
    options |= {"n_targets": targets} if prefix == "target" else {"classlabels_int64s": list(range(targets))}
    found = evaluated(model(kind, {"x": ("float32", ["n", 1])}, outputs, **options), np.float32([[-1], [1]]))
    assert found[-1].tolist() == expected


def tree_ensemble(**changes: Any) -> onnx.ModelProto:
    """A tree of ONNX's newest form, whose first node asks for 1 or 2."""
    options: dict[str, Any] = {
        "n_targets": 2,
        "nodes_splits": numpy_helper.from_array(np.array([0, -1, 2], "float32"), "splits"),
        "nodes_featureids": [0, 2, 1],
        "nodes_modes": numpy_helper.from_array(np.array([6, 0, 3], "uint8"), "modes"),
        "nodes_truenodeids": [1, 0, 2],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_falseleafs": [0, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 0],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": numpy_helper.from_array(np.array([1, 2, 3, 4], "float32"), "weights"),
        "membership_values": numpy_helper.from_array(np.array([1, 2, np.nan], "float32"), "members"),
        "tree_roots": [0],
    }
    return model("TreeEnsemble", {"x": ("float32", ["n", 3])}, {"y": "float32"}, 5, **(options | changes))


def test_nodes_that_ask_for_one_of_several_numbers() -> None:
    """NaN is in no set, and takes the branch that it is told to."""
    x = np.array([[1, 0, -1], [2, 0, 0], [3, 3, 0], [3, 2, 0], [np.nan, 0, -2]], "float32")
    (found,) = evaluated(tree_ensemble(), x)
    assert found.tolist() == [[1, 0], [0, 2], [3, 0], [0, 4], [1, 0]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nodes_falsenodeids": [2, 0, 3], "nodes_falseleafs": [0, 0, 1]}, "back to a node above"),
        ({"nodes_truenodeids": [7, 0, 2]}, "branches to nodes that it does not have"),
        ({"nodes_featureids": [0, 3, 1]}, "feature 3 of 3"),
        ({"leaf_targetids": [0, 2, 0, 1]}, "targets beyond its 2"),
        ({"tree_roots": [3]}, "roots that it does not have"),
        ({"nodes_featureids": [0, 2]}, "different numbers"),
    ],
)
def test_broken_trees_are_refused(changes: dict[str, Any], told: str) -> None:
    """Compiled code follows branches without a look at where they lead."""
    with pytest.raises(UnsupportedModelError, match=told):
        compiled(tree_ensemble(**changes))


@pytest.mark.parametrize(
    ("labels", "told"), [({"classlabels_strings": ["a", "b"]}, "computed as strings"), ({}, "has no labels of classes")]
)
def test_labels_that_are_not_there_are_refused(labels: dict[str, Any], told: str) -> None:
    """Or are strings, which are declared as numbers."""
    options = {"coefficients": [1.0, 2.0], "intercepts": [0.0], **labels}
    outputs = {"label": "int64", "scores": "float32"}
    with pytest.raises(UnsupportedModelError, match=told):
        compiled(model("LinearClassifier", {"x": ("float32", ["n", 2])}, outputs, **options))


def test_features_before_a_model() -> None:
    """Imputed, scaled, normalized by each norm, encoded; and a map of scores at the end, which is left out."""
    nodes = [
        helper.make_node(
            "Imputer", ["x"], ["a"], domain=ML, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=np.nan
        ),
        helper.make_node("Scaler", ["a"], ["b"], domain=ML, offset=[1.0, 0.5, -1.0], scale=[0.3, 2.0, 0.1]),
        *(helper.make_node("Normalizer", ["b"], [norm], domain=ML, norm=norm) for norm in ("MAX", "L1", "L2")),
        helper.make_node("OneHotEncoder", ["k"], ["onehot"], domain=ML, cats_int64s=[5, 3]),
        helper.make_node(
            "LabelEncoder", ["k"], ["codes"], domain=ML, keys_int64s=[3, 4], values_floats=[1.5, 2.5],
            default_float=-9.0
        ),
        helper.make_node("FeatureVectorizer", ["b", "k"], ["wide"], domain=ML, inputdimensions=[3, 2]),
        helper.make_node(
            "LinearClassifier", ["b"], ["label", "scores"], domain=ML, coefficients=[1.0, -1.0, 0.5, 0.25, 2.0, -1.5],
            intercepts=[0.1, -0.1], classlabels_ints=[4, 2], post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["map"], domain=ML, classlabels_int64s=[4, 2]),
    ]  # fmt: skip
    scores_type = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [("MAX", 2), ("L1", 2), ("L2", 2), ("onehot", 3), ("codes", 2), ("wide", 2)]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("k", TensorProto.INT64, ["n", 2]),
        ],
        [
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in outputs),
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_value_info("map", helper.make_sequence_type_proto(scores_type)),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    x = np.array([[1, 0.5, np.nan], [np.nan, 3, -1], [1, 0.5, -1]], "float32")
    k = np.array([[3, 4], [5, 6], [3, 3]])
    found = evaluated(helper.make_model(graph, opset_imports=opsets, ir_version=10), x, k)
    b = (np.where(np.isnan(x), [1, 2, 3], x) - [1, 0.5, -1]) * [0.3, 2, 0.1]
    sizes = [b.max(1), np.abs(b).sum(1), np.sqrt((b**2).sum(1))]
    for result, size in zip(found, sizes, strict=False):
        assert np.allclose(
            result, np.where(size[:, None] == 0, b, b / np.where(size == 0, 1, size)[:, None]), 1e-5, 1e-6
        )
    assert np.array_equal(found[3], k[..., None] == [5, 3])
    assert np.array_equal(found[4], np.select([k == 3, k == 4], [1.5, 2.5], -9))
    assert np.allclose(found[5], np.concatenate([b, k], 1), 1e-5, 1e-6)
    scores = np.exp(b @ np.array([[1, 0.25], [-1, 2], [0.5, -1.5]]) + [0.1, -0.1])
    assert found[6].tolist() == np.array([4, 2])[scores.argmax(1)].tolist()
    assert np.allclose(found[7], scores / scores.sum(1, keepdims=True), 1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vector_machines(kernel: str) -> None:
    """Pairs of classes, each of which has vectors of its own; and a regressor of the same kernel."""
    random = np.random.default_rng(8)
    vectors, x = random.normal(size=(7, 4)).astype("float32"), random.normal(size=(20, 4)).astype("float32")
    coefficients, rho = random.normal(size=(2, 7)).astype("float32"), [0.2, 0.1, -0.1]
    products = x @ vectors.T
    matrix = {
        "LINEAR": products,
        "POLY": (0.3 * products + 0.1) ** 3,
        "RBF": np.exp(-0.3 * ((x[:, None] - vectors) ** 2).sum(2)),
        "SIGMOID": np.tanh(0.3 * products + 0.1),
    }[kernel]
    options = {"kernel_type": kernel, "kernel_params": [0.3, 0.1, 3.0], "support_vectors": vectors.ravel().tolist()}
    parts = [slice(0, 2), slice(2, 5), slice(5, 7)]
    decisions, votes = [], np.zeros((20, 3))
    for (i, j), shift in zip(((0, 1), (0, 2), (1, 2)), rho, strict=True):
        left = matrix[:, parts[i]] @ coefficients[j - 1, parts[i]]
        decisions.append(left + matrix[:, parts[j]] @ coefficients[i, parts[j]] + shift)
        votes[np.arange(20), np.where(decisions[-1] > 0, i, j)] += 1
    given = {
        "vectors_per_class": [2, 3, 2],
        "classlabels_ints": [3, 5, 9],
        "coefficients": coefficients.ravel().tolist(),
    }
    outputs = {"label": "int64", "scores": "float32"}
    label, scores = evaluated(
        model("SVMClassifier", {"x": ("float32", ["n", 4])}, outputs, rho=rho, **given, **options), x
    )
    assert np.allclose(scores, np.stack(decisions, 1), 1e-4, 1e-5)
    assert label.tolist() == np.array([3, 5, 9])[votes.argmax(1)].tolist()
    given = {"n_supports": 7, "coefficients": coefficients[0].tolist(), "rho": [0.5]}
    (found,) = evaluated(model("SVMRegressor", {"x": ("float32", ["n", 4])}, {"y": "float32"}, **given, **options), x)
    assert np.allclose(found[:, 0], matrix @ coefficients[0] + 0.5, 1e-4, 1e-5)


def coupled(pairs: np.ndarray) -> np.ndarray:
    """Probabilities of classes of ``pairs[i, j]``, that of class ``i`` against ``j``, as libsvm iterates (float64)."""
    count = len(pairs)
    matrix = -pairs.T * pairs
    np.fill_diagonal(matrix, 0)
    np.fill_diagonal(matrix, [sum(pairs[j, i] ** 2 for j in range(count) if j != i) for i in range(count)])
    probabilities = np.full(count, 1 / count)
    for _ in range(100):
        products = matrix @ probabilities
        total = probabilities @ products
        if abs(products - total).max() < 0.005 / count:
            break
        for i in range(count):
            change = (total - products[i]) / matrix[i, i]
            probabilities[i] += change
            total = (total + change * (change * matrix[i, i] + 2 * products[i])) / (1 + change) ** 2
            products = (products + change * matrix[i]) / (1 + change)
            probabilities /= 1 + change
    return probabilities


def vector_machine(classes: int, **changes: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Attributes of a linear SVMClassifier of one support vector for each class, and the weights of its decisions."""
    random = np.random.default_rng(classes)
    vectors, table = random.normal(size=(classes, 4)), random.normal(size=(classes - 1, classes))
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = [table[j - 1, i] * vectors[i] + table[i, j] * vectors[j] for i, j in pairs]
    options = {
        "classlabels_ints": list(range(5, 5 + classes)),
        "vectors_per_class": [1] * classes,
        "support_vectors": vectors.ravel().tolist(),
        "coefficients": table.ravel().tolist(),
        "rho": [0.1] * len(pairs),
        "prob_a": (-random.random(len(pairs)) - 0.2).tolist(),
        "prob_b": random.normal(size=len(pairs)).tolist(),
    }
    return {name: value for name, value in (options | changes).items() if value != []}, np.stack(weights, 1)


@pytest.mark.daily(1)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_of_support_vector_machines(classes: int) -> None:
    """The pairs' probabilities are coupled until libsvm stops, of two classes, too; votes decide the class."""
    options, weights = vector_machine(classes)
    call = compiled(
        model("SVMClassifier", {"x": ("float32", ["n", 4])}, {"label": "int64", "scores": "float32"}, **options)
    )
    places = np.triu_indices(classes, 1)
    for count in (1, 50):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype("float32")
        label, scores = call(x)
        decisions = x @ weights + 0.1
        votes = np.zeros((count, classes))
        for decision, i, j in zip(decisions.T, *places, strict=True):
            votes[np.arange(count), np.where(decision > 0, i, j)] += 1
        assert label.tolist() == (5 + votes.argmax(1)).tolist()
        pairs = np.zeros((count, classes, classes))
        pairs[:, *places] = 1 / (1 + np.exp(decisions * options["prob_a"] + options["prob_b"]))
        pairs[:, places[1], places[0]] = 1 - pairs[:, *places]
        expected = np.stack([coupled(row) for row in pairs])
        assert np.allclose(scores, expected, 1e-5, 1e-5)
        # The probabilities choose another class here and there: these cases tell whether they were asked.
        assert count == 1 or (expected.argmax(1) != votes.argmax(1)).any()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vectors_per_class": []}, "without support vectors; export LinearClassifier"),
        ({"vectors_per_class": [1, 1]}, "has 2 vectors_per_class"),
        ({"prob_a": [1.0]}, "has 1 values of prob_a and 3 of prob_b for 3 pairs of classes"),
        ({"rho": [0.5]}, "1 values of rho"),
    ],
)
def test_broken_support_vector_machines_are_refused(changes: dict[str, Any], told: str) -> None:
    """Each for its own reason."""
    outputs = {"label": "int64", "scores": "float32"}
    options, _ = vector_machine(3, **changes)
    with pytest.raises(UnsupportedModelError, match=told):
        compiled(model("SVMClassifier", {"x": ("float32", ["n", 4])}, outputs, **options))


@pytest.mark.daily(1)
def test_transforms_of_support_vector_machines() -> None:
    """Of probabilities and of pairs' decisions; of two classes' one decision as ONNX Runtime transforms it."""
    x = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    outputs = {"label": "int64", "scores": "float32"}

    def scores(classes: int, **changes: Any) -> np.ndarray:
        options, _ = vector_machine(classes, **changes)
        return evaluated(model("SVMClassifier", {"x": ("float32", ["n", 4])}, outputs, **options), x)[1]

    without: dict[str, Any] = {"prob_a": [], "prob_b": []}
    for changes in ({}, without):
        powers = np.exp(scores(3, **changes))
        found = scores(3, **changes, post_transform="SOFTMAX")
        assert np.allclose(found, powers / powers.sum(1, keepdims=True), 1e-5)
    second = 1 / (1 + np.exp(-scores(2, **without)[:, 1]))
    assert np.allclose(scores(2, **without, post_transform="LOGISTIC"), np.stack([1 - second, second], 1), 1e-5)
    with pytest.raises(UnsupportedModelError, match="PROBIT of one decision"):
        scores(2, **without, post_transform="PROBIT")


@pytest.mark.daily(1)
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_counts_of_n_grams(mode: str) -> None:
    """Of a symbolic number of tokens, fewer than an n-gram has among them, with tokens left out between."""
    model = parsed(f"""g (int32[b, n] x) => (float[b, 4] y) {{
        y = TfIdfVectorizer<mode = "{mode}", min_gram_length = 1, max_gram_length = 2, max_skip_count = 1,
            ngram_counts = [0, 2], ngram_indexes = [0, 3, 1, 2], pool_int64s = [5, 6, 5, 6, 6, 5],
            weights = [2.0, 3.0, 4.0, 5.0]>(x)
    }}""")
    executable = tkc.compile(model, target="cpu", kernels="none")
    evaluator = ReferenceEvaluator(model)
    for tokens in ([[5, 6, 5, 5], [7, 7, 6, 5]], [[5], [6]], [[5, 7, 6], [6, 6, 6]]):
        x = np.array(tokens, "int32")
        np.testing.assert_array_equal(executable(x), evaluator.run(None, {"x": x})[0])


@pytest.mark.parametrize("key", [TensorProto.STRING, TensorProto.INT64])
@pytest.mark.parametrize("several", [False, True])
def test_maps_are_refused_as_maps(key: int, several: bool) -> None:
    """With the node that reads them; an example does not help, and is not asked for."""
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    kind = helper.make_sequence_type_proto(kind) if several else kind
    vocabulary = {"string_vocabulary": ["a"]} if key == TensorProto.STRING else {"int64_vocabulary": [1]}
    node = helper.make_node("DictVectorizer", ["x"], ["y"], "columns", domain=ML, **vocabulary)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)], [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 1)], ir_version=10)
    for options in ({}, {"example_args": ({"a": 1.0},)}):
        with pytest.raises(
            UnsupportedModelError, match=r"'x' is a map, which ONNX node 'columns'.*DictVectorizer.*reads"
        ):
            tkc.compile(proto, target="cpu", **options)
