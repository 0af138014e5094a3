"""Images at other sizes and at the points of a grid, beside PyTorch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from tests.frontend.side_by_side import Function, compare

MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}
SIZES = (7, 6, 5)


def _resized(rank: int) -> dict[str, Function]:
    given: list[dict[str, object]] = [{"scale_factor": factor} for factor in (1.7, 0.6, 2.0)]
    given += [{"scale_factor": 1.7, "recompute_scale_factor": True}, {"size": (10, 4, 5)[:rank]}]
    functions: dict[str, Function] = {}
    for mode, options in itertools.product(MODES[rank], given):
        corners = (False, True) if mode.endswith(("linear", "cubic")) else (None,)
        for align in corners:
            chosen = {**options, "mode": mode, "align_corners": align}
            functions[str(chosen)] = lambda x, chosen=chosen: F.interpolate(x, **chosen)
    return functions


@pytest.mark.daily(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_mode(rank: int) -> None:
    """Scales that do not divide, sizes, and corners; a batch known at the call."""
    calls = [(torch.randn(batch, 2, *SIZES[:rank]),) for batch in (2, 3)]
    compare(_resized(rank), *calls, dynamic_shapes=[{0: Dim("batch", min=1, max=8)}])


def test_antialiasing() -> None:
    """Smaller and larger images."""
    functions: dict[str, Function] = {}
    for mode, align, size in itertools.product(("bilinear", "bicubic"), (False, True), ((3, 2), (9, 11), (4, 9))):
        functions[f"{mode}_{align}_{size}"] = lambda x, mode=mode, align=align, size=size: F.interpolate(
            x, size, mode=mode, align_corners=align, antialias=True
        )
    functions["factor"] = lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True)
    compare(functions, (torch.randn(2, 2, 7, 6),))


def test_sizes_known_at_the_call() -> None:
    """Height and width are symbolic."""
    functions: dict[str, Function] = {
        "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
        "bilinear": lambda x: F.interpolate(x, size=(10, 9), mode="bilinear"),
        "bicubic": lambda x: F.interpolate(x, size=(5, 12), mode="bicubic", align_corners=True),
    }
    calls = [(torch.randn(2, 3, *size),) for size in ((7, 6), (9, 12))]
    compare(functions, *calls, dynamic_shapes=[{2: Dim("height", min=4, max=32), 3: Dim("width", min=4, max=32)}])


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    """Weights are of float32 at least; whole numbers have nearest ones."""
    functions = {name: call for name, call in _resized(2).items() if dtype.is_floating_point or "'nearest" in name}
    functions = {name: functions[name] for name in list(functions)[::3]}
    image = torch.randn(2, 2, 7, 6) if dtype.is_floating_point else torch.randint(0, 255, (2, 2, 7, 6))
    compare(functions, (image.to(dtype),), tolerance=1e-13 if dtype == torch.float64 else 2e-6)


def _sampled(paddings: tuple[str, ...], modes: tuple[str, ...]) -> dict[str, Function]:
    options = itertools.product(modes, paddings, (False, True))
    return {
        f"{mode} {padding} {corners}": lambda x, grid, mode=mode, padding=padding, corners=corners: F.grid_sample(
            x, grid, mode, padding, corners
        )
        for mode, padding, corners in options
    }


def _grid(rank: int, coordinates: list[float]) -> torch.Tensor:
    """Points of which each has one of the coordinates, on each axis in turn."""
    points = torch.full((rank, len(coordinates), rank), 0.3)
    for axis in range(rank):
        points[axis, :, axis] = torch.tensor(coordinates)
    return points.reshape(1, rank, *[1] * (rank - 2), len(coordinates), rank)


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("rank", [2, 3])
def test_points_of_a_grid(rank: int, padding: str, mode: str) -> None:
    """Both places of the corners, with points on pixels, between them and outside."""
    if rank == 3 and mode == "bicubic":
        pytest.skip("PyTorch has no tricubic sampling")
    x = torch.randn(1, 2, *(5, 6, 4)[:rank])
    grid = _grid(rank, [0.0, 1.0, -1.0, 0.99, -1.2, 1.7, -3.3, 5.1, 21.0, -40.0])
    compare(_sampled((padding,), (mode,)), (x, grid), tolerance=2e-5)


@pytest.mark.daily(1)
@pytest.mark.parametrize("rank", [2, 3])
def test_points_that_are_no_numbers(rank: int) -> None:
    """Where PyTorch's loops agree on what these are; elsewhere they have a NaN, the first pixel, or the last one."""
    x = torch.randn(1, 2, *(5, 6, 4)[:rank])
    infinite = _grid(rank, [math.inf, -math.inf, 1e10, -1e30])
    compare(_sampled(("border",), ("bilinear", "nearest")), (x, infinite))
    compare(_sampled(("zeros",), ("nearest",)), (x, _grid(rank, [math.nan, math.inf, -math.inf, 1e10, -1e30])))
