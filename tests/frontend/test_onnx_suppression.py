"""NonMaxSuppression against a few lines of NumPy: scores of any sign, infinite ones and NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.frontend.onnx_execution import compiled

LIMIT = 0.5


@functools.cache
def suppression(threshold: float | None) -> Callable[..., list[np.ndarray]]:
    """The operator, compiled, as a function of boxes ``[1, N, 4]`` and scores ``[1, 1, N]``."""
    score = "" if threshold is None else f"s = Constant<value_float={threshold}>()"
    return compiled(f"""g (float[1, n, 4] boxes, float[1, 1, n] scores) => (int64[m, 3] chosen) {{
        k = Constant<value_int=10>()
        t = Constant<value_float={LIMIT}>()
        {score}
        chosen = NonMaxSuppression(boxes, scores, k, t{"" if threshold is None else ", s"})
    }}""")


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The intersection of two boxes over their union."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = np.prod(np.maximum(sides, 0))
    return float(common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common))


def expected(boxes: np.ndarray, scores: np.ndarray, threshold: float | None) -> list[int]:
    """The boxes that are left, best first; the first of equal ones comes first."""
    chosen: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        above = threshold is None or scores[i] > threshold
        if above and all(overlap(boxes[i], boxes[j]) <= LIMIT for j in chosen) and len(chosen) < 10:
            chosen.append(int(i))
    return chosen


@pytest.mark.daily(2)
@pytest.mark.parametrize("threshold", [None, -1.5])
def test_scores_of_any_sign(threshold: float | None) -> None:
    """A box of a score below 0 suppresses those that it overlaps, and is left if nothing suppresses it."""
    random = np.random.default_rng(3)
    boxes = random.random((40, 4)).astype("float32")
    boxes[:, 2:] += boxes[:, :2] + 0.2
    call = suppression(threshold)
    for scores in (
        random.normal(size=40) * 3,
        random.integers(-2, 3, 40),
        np.where(random.random(40) < 0.5, -np.inf, -1.0),
        np.zeros(40),
    ):
        (found,) = call(boxes[None], scores.astype("float32")[None, None])
        assert found[:, 2].tolist() == expected(boxes, scores.astype("float32"), threshold)


@pytest.mark.daily(1)
def test_nan_is_above_no_threshold() -> None:
    """And changes nothing of the order of the others."""
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 1.1], [5, 5, 6, 6], [8, 8, 9, 9]], "float32")[None]
    call = suppression(-1.5)
    for scores, chosen in (([0.9, np.nan, 0.3, -1], [0, 2, 3]), ([np.nan, 0.1, np.nan, 0.2], [3, 1])):
        (found,) = call(boxes, np.array(scores, "float32")[None, None])
        assert found[:, 2].tolist() == chosen


@pytest.mark.daily(3)
def test_limits_of_the_running_model() -> None:
    """How many boxes a class has, and both thresholds, are inputs; what is chosen has as many rows as there are."""
    call = compiled("""g (float[1, 20, 4] boxes, float[1, 2, 20] scores, int64[1] k, float[1] t, float s)
        => (int64[m, 3] chosen, float[l, 4] found) {
        chosen = NonMaxSuppression(boxes, scores, k, t, s)
        two = Constant<value_ints = [2]>()
        one = Constant<value_ints = [1]>()
        ids = Gather<axis = 1>(chosen, two)
        places = Squeeze(ids, one)
        zero = Constant<value_ints = [0]>()
        flat = Squeeze(boxes, zero)
        found = Gather(flat, places)
    }""")
    random = np.random.default_rng(3)
    boxes = random.random((20, 4)).astype("float32")
    boxes[:, 2:] += boxes[:, :2] + 0.2
    scores = random.normal(size=(2, 20)).astype("float32")
    for most, above in ((10, -1.5), (3, -10.0), (0, -10.0), (5, 100.0)):
        chosen, found = call(
            boxes[None], scores[None], np.array([most]), np.array([LIMIT], "float32"), np.array(above, "float32")
        )
        wanted = [[0, c, i] for c in range(2) for i in expected(boxes, scores[c], above)[:most]]
        assert chosen.tolist() == wanted
        np.testing.assert_array_equal(found, boxes[[row[2] for row in wanted]])
