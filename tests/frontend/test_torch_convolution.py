"""Convolutions and transposed convolutions over one, two and three axes, beside PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from tests.frontend.side_by_side import Function, compare

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = (9, 8, 7)
KERNELS = (4, 3, 2)


def _image(rank: int, batch: int = 2, channels: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(batch, channels, *SIZES[:rank], generator=torch.Generator().manual_seed(rank)).to(dtype)


def _weight(rank: int, out: int, own: int) -> torch.Tensor:
    return torch.randn(out, own, *KERNELS[:rank], generator=torch.Generator().manual_seed(9))


def _convolutions(rank: int) -> dict[str, Function]:
    bias = torch.randn(6, generator=torch.Generator().manual_seed(3))

    def of(groups: int = 1, with_bias: bool = True, **options: Any) -> Function:
        weight = _weight(rank, 6, 4 // groups)

        def call(x: torch.Tensor) -> torch.Tensor:
            shift = bias.to(x.dtype) if with_bias else None
            return CONV[rank](x, weight.to(x.dtype), shift, groups=groups, **options)

        return call

    uneven = {"stride": (1, 2, 3)[:rank], "padding": (2, 0, 1)[:rank], "dilation": (2, 1, 3)[:rank]}
    same = of(padding="same")
    return {
        "plain": of(),
        "no_bias": of(with_bias=False),
        "valid": of(padding="valid", stride=2),
        "same": same,  # of even kernels too: the odd zero stands behind
        "same_dilated": of(padding="same", dilation=2),
        "same_groups": of(padding="same", groups=2, with_bias=False),
        "uneven": of(**uneven),
        "uneven_groups": of(groups=2, **uneven),
        "unbatched": lambda x: same(x[0]),
    }


def _transposed(rank: int) -> dict[str, Function]:
    def of(groups: int = 1, **options: Any) -> Function:
        weight, bias = _weight(rank, 4, 6 // groups), torch.arange(6.0)

        def call(x: torch.Tensor) -> torch.Tensor:
            return TRANSPOSED[rank](x, weight.to(x.dtype), bias.to(x.dtype), groups=groups, **options)

        return call

    strided = {"stride": (3, 2, 1)[:rank], "padding": (1, 2, 0)[:rank]}
    dilated = {"stride": (2, 3, 1)[:rank], "dilation": (3, 1, 2)[:rank]}
    unbatched = of(**strided)
    return {
        "plain": of(),
        "padded": of(padding=2),
        "padded_beyond_the_kernel": of(padding=(4, 3, 2)[:rank]),
        "strided": of(**strided),
        "strided_groups": of(groups=2, **strided),
        "stride_beyond_the_kernel": of(stride=5, output_padding=(4, 3, 0)[:rank]),
        "dilated": of(dilation=2),
        "dilated_strided": of(**dilated, output_padding=(1, 2, 1)[:rank], groups=2),
        "output_padding": of(**strided, output_padding=(2, 1, 0)[:rank]),
        "unbatched": lambda x: unbatched(x[0]),
    }


@pytest.mark.daily(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_option(rank: int) -> None:
    """Padding by name and by numbers, strides, dilations, groups; one image too; a batch known at the call."""
    functions = _convolutions(rank) | {f"transposed_{name}": call for name, call in _transposed(rank).items()}
    calls = [(_image(rank, batch),) for batch in (2, 3)]
    compare(functions, *calls, dynamic_shapes=[{0: Dim("batch", min=1, max=8)}])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    """Sums are not of 16 bits, and those of float64 are as exact as it is."""
    functions = {name: _convolutions(2)[name] for name in ("same", "uneven_groups")}
    functions["transposed"] = _transposed(2)["dilated_strided"]
    compare(functions, (_image(2, dtype=dtype),), tolerance=1e-13 if dtype == torch.float64 else 2e-6)


@pytest.mark.daily(1)
def test_sizes_known_at_the_call_and_empty_batches() -> None:
    """Height and width are symbolic; no image at all gives none."""
    weight, transposed = _weight(2, 6, 4), _weight(2, 4, 6)
    functions: dict[str, Function] = {
        "same": lambda x: F.conv2d(x, weight, padding="same"),
        "strided": lambda x: F.conv2d(x, weight, stride=2, padding=1),
        "transposed": lambda x: F.conv_transpose2d(x, transposed, stride=2, padding=1, output_padding=1),
    }
    calls = [(torch.randn(batch, 4, *size),) for batch, size in itertools.product((2, 0), ((9, 8), (12, 7)))]
    height, width = Dim("height", min=4, max=32), Dim("width", min=4, max=32)
    compare(functions, *calls, dynamic_shapes=[{0: Dim("batch", max=8), 2: height, 3: width}])


@pytest.mark.daily(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_what_reads_it(rank: int, value: float) -> None:
    """And nothing else: no output is multiplied by a zero between strides or dilated weights."""
    x = _image(rank, 1)
    x[(0, 1, *(size // 2 for size in x.shape[2:]))] = value
    compare({f"transposed_{name}": call for name, call in _transposed(rank).items()}, (x,))
    compare({name: _convolutions(rank)[name] for name in ("same",)}, (x,))
