"""Tree ensembles of ``ai.onnx.ml``, by :mod:`tkc.frontend.forest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.forest import Aggregate, Forest, ForestError, forest_function
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

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_EQUAL, _MEMBER = 4, 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _floats(node: Node, name: str) -> np.ndarray:
    """An attribute of numbers, which may be a tensor of its own type."""
    tensor = node.attribute(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(onnx.numpy_helper.to_array(tensor)).ravel()
    return np.array(node.attribute(name, ()), "float32")


def _tensor(node: Node, name: str) -> np.ndarray:
    tensor = node.attribute(name)
    return np.zeros(0) if tensor is None else np.asarray(onnx.numpy_helper.to_array(tensor)).ravel()


def _integers(node: Node, name: str, count: int | None = None) -> np.ndarray:
    values = np.array(node.attribute(name, ()), "int64")
    if count is not None and not len(values):
        return np.zeros(count, "int64")
    return values


def _same_length(arrays: Sequence[np.ndarray], what: str) -> None:
    if len({len(array) for array in arrays}) > 1:
        raise ConversionError(f"has {what} of different numbers; correct the model")


def _listed_forest(node: Node, prefix: str, dtype: str) -> Forest:
    """The trees of the operators of before TreeEnsemble: nodes are named by the numbers of their tree and their own."""
    trees, names = _integers(node, "nodes_treeids"), _integers(node, "nodes_nodeids")
    count = len(trees)
    features = _integers(node, "nodes_featureids", count)
    thresholds = _floats(node, "nodes_values").astype(dtype)
    missing = _integers(node, "nodes_missing_value_tracks_true", count)
    modes = [mode.decode() for mode in node.attribute("nodes_modes", ())]
    ends = [_integers(node, f"nodes_{side}nodeids", count) for side in ("true", "false")]
    _same_length([trees, names, features, thresholds, missing, np.array(modes), *ends], "attributes of nodes")
    unknown = sorted(set(modes) - {*_MODES, "LEAF"})
    if unknown:
        raise ConversionError(f"has nodes of mode {unknown[0]}; expected one of {', '.join((*_MODES, 'LEAF'))}")
    places = {key: i for i, key in enumerate(zip(trees.tolist(), names.tolist(), strict=True))}
    is_leaf = np.array([mode == "LEAF" for mode in modes])
    own = np.arange(count)

    def successors(numbers: np.ndarray) -> np.ndarray:
        keys = zip(trees.tolist(), numbers.tolist(), strict=True)
        return np.where(is_leaf, own, [places.get(key, -1) for key in keys]).astype("int32")

    entries = [_integers(node, f"{prefix}_{part}") for part in ("treeids", "nodeids", "ids")]
    weights = _floats(node, f"{prefix}_weights").astype(dtype)
    _same_length([*entries, weights], "attributes of weights")
    at = np.array([places.get(key, -1) for key in zip(*(part.tolist() for part in entries[:2]), strict=True)], "int64")
    if len(at) and at.min() < 0:
        raise ConversionError("has weights of nodes that it does not have; correct the model")
    kept = is_leaf[at] if len(at) else np.zeros(0, bool)
    order = np.argsort(at[kept], kind="stable")
    _, roots = np.unique(trees, return_index=True)
    return Forest(
        np.where(is_leaf, 0, features).astype("int32"),
        thresholds,
        np.array([_MODES.index(mode) if mode in _MODES else -1 for mode in modes], "int32"),
        successors(ends[0]),
        successors(ends[1]),
        missing.astype("int32"),
        roots.astype("int32"),
        np.searchsorted(at[kept][order], np.arange(count + 1)).astype("int32"),
        entries[2][kept][order].astype("int32"),
        weights[kept][order],
    )


def _without_repeated_votes(forest: Forest) -> Forest:
    """The forest of one target, in which a leaf that repeats one vote has it once.

    The standard lets a leaf have several votes, and aggregates them, as it is done here where they differ. For one
    target ONNX Runtime takes the first. Votes that are all the same stand in what skl2onnx makes of ``decision_path``
    and ``decision_leaf`` of classifiers, once for each class, and there they are meant once: the sum is no node.
    """
    counts = np.diff(forest.first)
    owner = np.repeat(np.arange(len(counts)), counts)
    leading = forest.first[owner]
    differs = (forest.weights != forest.weights[leading]) | (forest.targets != forest.targets[leading])
    mixed = np.bincount(owner[differs], minlength=len(counts)) > 0
    kept = mixed[owner] | (np.arange(len(owner)) == leading)
    first = np.searchsorted(owner[kept], np.arange(len(counts) + 1)).astype("int32")
    return replace(forest, first=first, targets=forest.targets[kept], weights=forest.weights[kept])


def _split_forest(node: Node, dtype: str) -> Forest:
    """The trees of TreeEnsemble: leaves come behind the nodes, and a node that asks for one of several numbers is as
    many nodes that ask for one."""
    splits = _tensor(node, "nodes_splits").astype(dtype)
    count = len(splits)
    features, missing = (
        _integers(node, name, count) for name in ("nodes_featureids", "nodes_missing_value_tracks_true")
    )
    modes = _tensor(node, "nodes_modes").astype("int64")
    targets, weights = _integers(node, "leaf_targetids"), _tensor(node, "leaf_weights").astype(dtype)
    ends, leaves = (
        [_integers(node, f"nodes_{side}{what}", count) for side in ("true", "false")] for what in ("nodeids", "leafs")
    )
    _same_length([splits, features, missing, modes, *ends, *leaves], "attributes of nodes")
    _same_length([targets, weights], "attributes of leaves")
    groups = _members(node, modes, dtype)
    starts = np.cumsum([0, *(max(len(group), 1) for group in groups)])
    inner, total = int(starts[-1]), int(starts[-1]) + len(targets)

    def places(numbers: np.ndarray, is_leaf: np.ndarray) -> list[int]:
        limit = np.where(is_leaf != 0, len(targets), count)
        if (numbers < 0).any() or (numbers >= limit).any():
            raise ConversionError("has branches to nodes that it does not have; correct the model")
        firsts = starts[np.minimum(numbers, count)]
        return [int(place) for place in np.where(is_leaf != 0, inner + numbers, firsts)]

    true, false = (places(end, leaf) for end, leaf in zip(ends, leaves, strict=True))
    rows: list[tuple[int, Any, int, int, int, int]] = []
    for i, group in enumerate(groups):
        values = group if len(group) else splits[i : i + 1]
        mode = _EQUAL if len(group) else int(modes[i])
        for j, value in enumerate(values):
            last = j == len(values) - 1
            rest = false[i] if last else int(starts[i]) + j + 1
            rows.append((int(features[i]), value, mode, true[i], rest, int(missing[i])))
    rows += [(0, 0, -1, i, i, 0) for i in range(inner, total)]
    columns = list(zip(*rows, strict=True))
    roots = _integers(node, "tree_roots")
    if (roots < 0).any() or (roots >= count).any():
        raise ConversionError("has roots that it does not have; correct the model")
    features, splits, modes, trues, falses, missing = (
        np.array(column, dtype if i == 1 else "int32") for i, column in enumerate(columns)
    )
    first = np.maximum(np.arange(total + 1) - inner, 0).astype("int32")
    firsts = starts[roots].astype("int32")
    return Forest(features, splits, modes, trues, falses, missing, firsts, first, targets.astype("int32"), weights)


def _members(node: Node, modes: np.ndarray, dtype: str) -> list[np.ndarray]:
    """For each node the numbers of which its feature must be one, which NaN ends; none for other modes."""
    if (modes < 0).any() or (modes > _MEMBER).any():
        raise ConversionError("has nodes of a mode that is not from 0 to 6; correct the model")
    values = _tensor(node, "membership_values").astype(dtype)
    sets = iter(np.split(values, np.flatnonzero(np.isnan(values)) + 1))
    groups = []
    for mode in modes:
        group = next(sets, np.zeros(0, dtype)) if mode == _MEMBER else np.zeros(0, dtype)
        groups.append(group[~np.isnan(group)])
        if mode == _MEMBER and not len(groups[-1]):
            raise ConversionError("has a node of mode BRANCH_MEMBER without membership_values; correct the model")
    return groups


def _scores(node: Node, forest: Forest, aggregate: str, outputs: int, dtype: str) -> tuple[relax.Expr, relax.Expr]:
    """Scores ``[N, outputs]`` and which of them any leaf had a weight for."""
    if aggregate not in _AGGREGATES:
        raise ConversionError(f"has aggregate_function {aggregate!r}; expected one of {', '.join(_AGGREGATES)}")
    try:
        depths = forest.depths()
    except ForestError as error:
        raise ConversionError(f"{error}; correct the model") from error
    x = matrix(node, dtype)
    rows, columns = shape_of(x, node.algebra)
    used = int(forest.features.max(initial=0)) + 1
    if forest.features.min(initial=0) < 0 or (isinstance(columns, int) and columns < used):
        raise ConversionError(f"asks for feature {used - 1} of {columns}; correct the model")
    node.require_at_least(columns, used)
    if len(forest.targets) and not 0 <= int(forest.targets.min()) <= int(forest.targets.max()) < outputs:
        raise ConversionError(f"has weights of targets beyond its {outputs}; correct the model")
    # A leaf's mode is never asked for: its branches are itself.
    modes = np.where(forest.modes < 0, max(int(forest.modes.max(initial=0)), 0), forest.modes).astype("int32")
    kept = Forest(**{**vars(forest), "modes": modes})
    filled = len(kept.targets) > 0
    if not filled:
        kept = Forest(**{**vars(kept), "targets": np.zeros(1, "int32"), "weights": np.zeros(1, dtype)})
    parts = ("features", "thresholds", "modes", "true", "false", "missing", "roots")
    arrays = [*(getattr(kept, part) for part in parts), depths, kept.first, kept.targets, kept.weights]
    operands = [x, *(relax.const(array, str(array.dtype)) for array in arrays)]
    function = node.builder.add_func(forest_function(kept, cast(Aggregate, aggregate), dtype), "forest")
    infos = [relax.TensorStructInfo([rows, outputs], kind) for kind in (dtype, "int32")]
    results = node.emit(relax.call_tir(function, operands, infos))
    scores, seen = (node.emit(relax.TupleGetItem(results, i)) for i in range(2))
    if aggregate == "AVERAGE":
        scores = node.emit(relax.op.divide(scores, scalar(len(forest.roots), dtype)))
    return scores, seen


def _inner(node: Node) -> str:
    return "float64" if node.dtype(0) == "float64" else "float32"


def _tree_ensemble(node: Node) -> Converted:
    dtype = _inner(node)
    aggregate = node.attribute("aggregate_function", 1)
    name = _AGGREGATES[aggregate] if 0 <= aggregate < len(_AGGREGATES) else str(aggregate)
    outputs = node.attribute("n_targets", 1)
    scores, _ = _scores(node, _split_forest(node, dtype), name, outputs, dtype)
    return relax.op.astype(_final(node, scores, outputs), node.dtype(0))


def _final(node: Node, scores: relax.Expr, outputs: int) -> relax.Expr:
    """Of one target ONNX Runtime applies PROBIT alone."""
    transform = transform_of(node)
    return transformed(node, scores, transform if outputs > 1 or transform == "PROBIT" else "NONE")


def _tree_regressor(node: Node) -> Converted:
    dtype, outputs = _inner(node), node.attribute("n_targets", 1)
    forest = _listed_forest(node, "target", dtype)
    if outputs == 1:
        forest = _without_repeated_votes(forest)
    scores, seen = _scores(node, forest, node.attribute("aggregate_function", "SUM"), outputs, dtype)
    base = _floats(node, "base_values").astype(dtype)
    if len(base):
        if len(base) not in (1, outputs):
            raise ConversionError(f"has {len(base)} base_values for {outputs} targets; correct the model")
        moved = node.emit(relax.op.add(scores, relax.const(base, dtype)))
        if outputs > 1 and node.attribute("aggregate_function", "SUM") in ("MIN", "MAX"):
            # ONNX Runtime leaves 0 where no leaf has a weight.
            moved = node.emit(relax.op.where(relax.op.equal(seen, scalar(0, "int32")), scores, moved))
        scores = moved
    return relax.op.astype(_final(node, scores, outputs), "float32")


def _tree_classifier(node: Node) -> Converted:
    dtype, labels = _inner(node), class_labels(node, "classlabels_int64s")
    forest = _listed_forest(node, "class", dtype)
    count = len(labels)
    scores, seen = _scores(node, forest, "SUM", count, dtype)
    base = _floats(node, "base_values").astype(dtype)
    if len(base) not in (0, 1, count):
        raise ConversionError(f"has {len(base)} base_values for {count} classes; correct the model")
    if count == 2:
        return _of_two_classes(node, scores, seen, forest, base, labels)
    if len(base):
        scores = node.emit(relax.op.add(scores, relax.const(base, dtype)))
    ranked = scores
    if len(base) != count:  # a class of which no leaf has a weight is not chosen
        unseen = relax.op.equal(seen, scalar(0, "int32"))
        ranked = node.emit(relax.op.where(unseen, scalar(-np.inf, dtype), scores))
    best = node.emit(relax.op.argmax(ranked, 1))
    result = transformed(node, scores, transform_of(node))
    return labels_at(node, best, labels), relax.op.astype(result, "float32")


def _of_two_classes(
    node: Node, scores: relax.Expr, seen: relax.Expr, forest: Forest, base: np.ndarray, labels: np.ndarray
) -> Converted:
    """What ONNX Runtime makes of two classes, of which often one alone has weights, and the standard says little.

    A row whose leaves have no weight of the second class has one score, which decides, and of which both are made. With
    two base values, the second one and the first score are the second score. The label is decided by the sign, or, of
    weights of one class that are all positive, at 0.5. (Where both classes have weights, ONNX Runtime 1.32 gives 0 and
    1 for labels, whichever they are.)
    """
    dtype, transform = scores.struct_info.dtype, transform_of(node)
    if transform == "PROBIT":
        raise ConversionError("has post_transform PROBIT for two classes; export the model with another one")
    zero = scalar(0, dtype)

    def column(tensor: relax.Expr, i: int) -> relax.Expr:
        return node.emit(relax.op.strided_slice(tensor, [1], [i], [i + 1]))

    def where(condition: relax.Expr, one: relax.Expr, other: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.where(condition, one, other))

    def plus(tensor: relax.Expr, number: np.floating) -> relax.Expr:
        return node.emit(relax.op.add(tensor, scalar(float(number), dtype)))

    first, second = column(scores, 0), column(scores, 1)
    has_first, has_second = (node.emit(relax.op.not_equal(column(seen, i), scalar(0, "int32"))) for i in range(2))
    if len(base) == 2:
        mirrored = plus(first, base[1])
        first = where(has_second, node.emit(relax.op.negative(mirrored)), plus(first, base[0]))
        first = where(node.emit(relax.op.logical_and(has_second, relax.op.logical_not(has_first))), zero, first)
        second = where(has_second, mirrored, zero)
        decisive = where(has_second, second, first)
        both = transformed(node, node.emit(relax.op.concat([first, second], 1)), transform)
    else:
        first = plus(first, base[0]) if len(base) else first
        first = where(has_first, first, zero)
        decisive = where(has_second, second, first)
        both = transformed(node, node.emit(relax.op.concat([first, second], 1)), transform)
        one = relax.op.subtract(scalar(1, dtype), first) if _decides_at_half(forest) else relax.op.negative(first)
        single = [one, first]
        if transform == "LOGISTIC":
            single = [relax.op.sigmoid(relax.op.negative(first)), relax.op.sigmoid(first)]
        both = where(has_second, both, node.emit(relax.op.concat([node.emit(part) for part in single], 1)))
    above = relax.op.greater(decisive, scalar(0.5 if _decides_at_half(forest) else 0.0, dtype))
    chosen = node.emit(relax.op.squeeze(node.emit(relax.op.astype(above, "int64")), [1]))
    return labels_at(node, chosen, labels), relax.op.astype(both, "float32")


def _decides_at_half(forest: Forest) -> bool:
    """Whether one class alone has weights, all of them positive."""
    return len(set(forest.targets.tolist())) == 1 and not (forest.weights < 0).any()


ML_CONVERTERS: dict[str, Converter] = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}
