"""Ensembles of decision trees as one TensorIR function that loops over trees and their levels.

Nodes of all trees stand in arrays. A leaf is its own successor, so that every walk of a tree takes as many steps as the
tree has levels, and needs no branch. Rows of the input do not depend on each other: each is a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

Number: TypeAlias = tirx.PrimExpr
Aggregate: TypeAlias = Literal["SUM", "AVERAGE", "MIN", "MAX"]

COMPARISONS: tuple[Callable[[Number, Number], Number], ...] = (
    lambda x, threshold: x <= threshold,
    lambda x, threshold: x < threshold,
    lambda x, threshold: x >= threshold,
    lambda x, threshold: x > threshold,
    lambda x, threshold: tirx.EQ(x, threshold),
    lambda x, threshold: tirx.NE(x, threshold),
)
"""What a node asks of its feature, in the order of ONNX's TreeEnsemble."""


# Levels times nodes: some seconds of NumPy.
_MOST_STEPS = 1 << 30


class ForestError(Exception):
    """What is wrong with an ensemble."""


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees: ``N`` of them in ``T`` trees, and ``E`` weights of leaves.

    ``features``, ``modes`` (places in :data:`COMPARISONS`), ``true`` and ``false`` (successors) are int32 ``[N]``,
    ``thresholds`` floats ``[N]``, ``missing`` int32 ``[N]``, 1 where NaN takes the true branch; ``roots`` int32
    ``[T]``. The weights of node ``n`` are those from ``first[n]`` to ``first[n + 1]`` (int32 ``[N + 1]``) of
    ``targets`` (int32 ``[E]``) and ``weights`` (floats ``[E]``).
    """

    features: np.ndarray
    thresholds: np.ndarray
    modes: np.ndarray
    true: np.ndarray
    false: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    first: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def depths(self) -> np.ndarray:
        """How many steps the longest way through each tree takes, int32 ``[T]``.

        Raises :class:`ForestError` for successors that are no nodes or go round in a circle.
        """
        count = len(self.features)
        ends = np.stack([self.true, self.false])
        if not count or ends.min() < 0 or ends.max() >= count or self.roots.min(initial=0) < 0:
            raise ForestError("has branches to nodes that it does not have")
        if self.roots.max(initial=0) >= count:
            raise ForestError("has roots that it does not have")
        is_leaf = (ends == np.arange(count)).all(0)
        height = np.zeros(count, "int32")
        for level in range(count + 1):
            if level * count > _MOST_STEPS:
                raise ForestError("has more levels than are followed")
            higher = np.where(is_leaf, 0, height[ends].max(0) + 1).astype("int32")
            if np.array_equal(higher, height):
                return np.asarray(height[self.roots])
            height = higher
        raise ForestError("has a branch back to a node above it")


def forest_function(forest: Forest, aggregate: Aggregate, dtype: str) -> tirx.PrimFunc:
    """The function that sends rows through trees, in ``dtype``, float32 or float64.

    Takes ``x [R, C]``; of the forest ``features``, ``thresholds``, ``modes``, ``true``, ``false``, ``missing``,
    ``roots``, ``depths``, ``first``, ``targets``, ``weights``. Writes ``scores [R, K]``, which are summed in the order
    of the trees, or the least or largest of their weights; and ``seen [R, K]`` int32, 1 where a leaf had a weight.
    """
    used = sorted(set(forest.modes.tolist()))
    tracked = bool(forest.missing.any())
    nodes, trees, entries = len(forest.features), len(forest.roots), len(forest.targets)

    def passes(x: Number, threshold: Number, mode: Number, missing: Number) -> Number:
        result = COMPARISONS[used[0]](x, threshold)
        for other in used[1:]:
            result = tirx.Select(tirx.EQ(mode, other), COMPARISONS[other](x, threshold), result)
        return tirx.Or(result, tirx.And(tirx.isnan(x), tirx.NE(missing, 0))) if tracked else result

    def combined(old: Number, new: Number, seen: Number) -> Number:
        if aggregate not in ("MIN", "MAX"):
            return old + new
        better = new < old if aggregate == "MIN" else new > old
        return tirx.Select(tirx.Or(tirx.EQ(seen, 0), better), new, old)

    @T.prim_func(private=True, s_tir=True)
    def forest_scores(
        x_handle: T.handle,
        features_handle: T.handle,
        thresholds_handle: T.handle,
        modes_handle: T.handle,
        true_handle: T.handle,
        false_handle: T.handle,
        missing_handle: T.handle,
        roots_handle: T.handle,
        depths_handle: T.handle,
        first_handle: T.handle,
        targets_handle: T.handle,
        weights_handle: T.handle,
        scores_handle: T.handle,
        seen_handle: T.handle,
    ) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        rows, columns, outputs = T.int64(), T.int64(), T.int64()
        x = T.match_buffer(x_handle, (rows, columns), dtype)
        features = T.match_buffer(features_handle, (nodes,), "int32")
        thresholds = T.match_buffer(thresholds_handle, (nodes,), dtype)
        modes = T.match_buffer(modes_handle, (nodes,), "int32")
        true = T.match_buffer(true_handle, (nodes,), "int32")
        false = T.match_buffer(false_handle, (nodes,), "int32")
        missing = T.match_buffer(missing_handle, (nodes,), "int32")
        roots = T.match_buffer(roots_handle, (trees,), "int32")
        depths = T.match_buffer(depths_handle, (trees,), "int32")
        first = T.match_buffer(first_handle, (nodes + 1,), "int32")
        targets = T.match_buffer(targets_handle, (entries,), "int32")
        weights = T.match_buffer(weights_handle, (entries,), dtype)
        scores = T.match_buffer(scores_handle, (rows, outputs), dtype)
        seen = T.match_buffer(seen_handle, (rows, outputs), "int32")
        for row in T.parallel(rows):
            with T.sblock():
                node = T.sblock_alloc_buffer((1,), "int32", scope="local")
                for k in range(outputs):
                    scores[row, k] = T.Cast(dtype, 0)
                    seen[row, k] = 0
                for tree in T.serial(trees):
                    node[0] = roots[tree]
                    for _step in T.serial(depths[tree]):
                        node[0] = T.Select(
                            passes(x[row, features[node[0]]], thresholds[node[0]], modes[node[0]], missing[node[0]]),
                            true[node[0]],
                            false[node[0]],
                        )
                    for entry in T.serial(first[node[0] + 1] - first[node[0]]):
                        scores[row, targets[first[node[0]] + entry]] = combined(
                            scores[row, targets[first[node[0]] + entry]],
                            weights[first[node[0]] + entry],
                            seen[row, targets[first[node[0]] + entry]],
                        )
                        seen[row, targets[first[node[0]] + entry]] = 1

    return forest_scores
