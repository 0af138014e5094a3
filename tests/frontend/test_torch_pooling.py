"""Pooling with every option, beside PyTorch."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from tests.frontend.side_by_side import Function, compare
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
LARGEST = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
ADAPTIVE_AVERAGE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADAPTIVE_LARGEST = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
SIZES = (9, 8, 7)


def _image(rank: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, *SIZES[:rank], generator=torch.Generator().manual_seed(rank))


def _averages(rank: int) -> dict[str, Function]:
    divisors = (None,) if rank == 1 else (None, 5, -3)
    functions: dict[str, Function] = {}
    for ceil, padded, divisor in itertools.product((False, True), (False, True), divisors):
        options = {"ceil_mode": ceil, "count_include_pad": padded} | ({"divisor_override": divisor} if divisor else {})
        for kernel, stride, padding in (((4, 3, 2), (3, 2, 2), (2, 1, 0)), ((3, 2, 2), (4, 3, 5), (1, 1, 1))):
            sizes = (kernel[:rank], stride[:rank], padding[:rank])
            functions[f"{options}_{sizes}"] = lambda x, sizes=sizes, options=options: AVERAGE[rank](
                x, *sizes, **options
            )
    return functions


def _maxima(rank: int) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    for ceil, indices in itertools.product((False, True), (False, True)):
        options = {"ceil_mode": ceil, "return_indices": indices}
        for kernel, stride, padding, dilation in (
            ((3, 2, 2), (2, 3, 1), (1, 1, 0), (1, 1, 1)),
            ((2, 3, 2), (3, 2, 2), (1, 1, 1), (2, 1, 3)),
        ):
            sizes = (kernel[:rank], stride[:rank], padding[:rank], dilation[:rank])
            functions[f"{options}_{sizes}"] = lambda x, sizes=sizes, options=options: LARGEST[rank](
                x, *sizes, **options
            )
    return functions


def _adaptive(rank: int) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    for output in ((4, 3, 5), (1, 1, 1), (3, 4, 7), (11, 2, 3)):
        functions[f"average_{output}"] = lambda x, output=output: ADAPTIVE_AVERAGE[rank](x, output[:rank])
        functions[f"largest_{output}"] = lambda x, output=output: ADAPTIVE_LARGEST[rank](
            x, output[:rank], return_indices=True
        )
    return functions


@pytest.mark.daily(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_option(rank: int) -> None:
    """A batch known at the call, without images too, and NaN and equal elements among what is pooled."""
    calls = [(_image(rank, batch),) for batch in (2, 3, 0)]
    calls[1][0].view(-1)[::17] = float("nan")
    calls[1][0][0] = calls[1][0][0].round()
    functions = _averages(rank) | _maxima(rank) | _adaptive(rank)
    compare(functions, *calls, dynamic_shapes=[{0: Dim("batch", max=8)}])


WINDOWS_LARGER_THAN_IMAGES = ((2560, 2560, 0), (100, 100, 50), (12, 30, 3), (90, 4, 0), (20, 3, 10), (18, 1, 9))
"""Kernel, stride and padding of images of :data:`SIZES`, in ceil mode."""


@pytest.mark.daily(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_larger_than_images(rank: int) -> None:
    """EfficientNet's pooler averages windows of 2560 x 2560. Only the image is looked at: its sizes, known or not, are
    the extents of the loops."""
    functions: dict[str, Function] = {}
    for sizes in WINDOWS_LARGER_THAN_IMAGES:
        options = {"ceil_mode": True}
        functions[f"average {sizes}"] = lambda x, sizes=sizes, options=options: AVERAGE[rank](x, *sizes, **options)
        functions[f"without padding {sizes}"] = lambda x, sizes=sizes, options=options: AVERAGE[rank](
            x, *sizes, **options, count_include_pad=False
        )
        functions[f"largest {sizes}"] = lambda x, sizes=sizes, options=options: LARGEST[rank](
            x, *sizes, **options, return_indices=True
        )
    image = _image(rank)
    image[0, 0] = float("nan")
    start = time.perf_counter()
    compare({name: function for name, function in functions.items() if _runs(function, image)}, (image,))
    assert time.perf_counter() - start < 60  # a window of 2560 by 2560 by 2560 takes hours


def _runs(function: Function, *args: torch.Tensor) -> bool:
    """Whether PyTorch takes it: it refuses some sizes."""
    try:
        function(*args)
    except RuntimeError:
        return False
    return True


def test_sizes_known_at_the_call() -> None:
    """Height and width are symbolic."""
    functions: dict[str, Function] = {
        "average": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        "largest": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        "adaptive_largest": lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
        "unbatched": lambda x: F.max_pool2d(x[0], 2),
        "unbatched_average": lambda x: F.avg_pool2d(x[0], 2),
    }
    calls = [(torch.randn(2, 3, *size),) for size in ((9, 8), (11, 12))]
    sizes = {2: Dim("height", min=6, max=32), 3: Dim("width", min=6, max=32)}
    compare(functions, *calls, dynamic_shapes=[sizes])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_dtypes(dtype: torch.dtype) -> None:
    """Averages are computed in float32 at least; integers have maxima, of ties the first."""
    functions: dict[str, Function] = {"largest": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)}
    if dtype.is_floating_point:
        functions["average"] = lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        functions["adaptive_largest"] = lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)
        functions["adaptive"] = lambda x: F.adaptive_avg_pool2d(x, (4, 3))
        functions["root"] = lambda x: F.lp_pool2d(x.abs() + 1, 2.0, 3, 2)
    image = _image(2) if dtype.is_floating_point else _image(2).round()
    compare(functions, (image.to(dtype),), tolerance=1e-14 if dtype == torch.float64 else 2e-6)


def test_the_way_back() -> None:
    """Elements where pooling found them."""
    functions: dict[str, Function] = {
        "line": lambda x: F.max_unpool1d(*F.max_pool1d(x[0, :, 0], 2, return_indices=True), 2),
        "image": lambda x: F.max_unpool2d(*F.max_pool2d(x[..., :8, :], 2, return_indices=True), 2),
        "sized": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(9, 8)),
        "volume": lambda x: F.max_unpool3d(*F.max_pool3d(x[:, :2, :8], 2, return_indices=True), 2),
    }
    compare(functions, (_image(2),), (-_image(2),))


def test_fractional_pooling_is_refused_by_name() -> None:
    """Its windows are random."""

    class Pooled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.fractional_max_pool2d(x, 2, output_size=3)

    with pytest.raises(UnsupportedModelError, match=r"fractional_max_pool2d|rand"):
        import_torch(Pooled(), (_image(2),))
