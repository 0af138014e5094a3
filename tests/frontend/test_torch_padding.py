"""Padding in every mode, and pixels that change places, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from tests.frontend.side_by_side import Function, compare
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

WIDTHS = ((1, 2, 3, 0), (2, 2, 1, 1), (-1, 2, 1, -2), (2, -1, -1, 3), (-2, -1, 0, -1), (3, 0, 0, 0))


def _padded(mode: str, widths: tuple[int, ...], value: float | None = None) -> Function:
    return lambda x: F.pad(x, widths, mode=mode, value=value)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding(dtype: torch.dtype) -> None:
    """Widths of each sign and mode, at sizes known at the call."""
    functions = {
        f"{mode}_{widths}": _padded(mode, widths)
        for mode in ("constant", "reflect", "replicate", "circular")
        for widths in WIDTHS
    }
    functions["value"] = _padded("constant", (1, -2, 0, 3, -1, 2), value=7.5)
    functions["volume"] = lambda x: F.pad(x[None], (1, 2, 2, 1, 1, 0), mode="reflect")
    if dtype == torch.bfloat16:
        functions = {name: functions[name] for name in list(functions)[::5]}
    functions["line"] = lambda x: F.pad(x[0], (3, 1), mode="circular")
    calls = [(torch.randn(2, 3, *size).to(dtype),) for size in ((6, 5), (9, 8))]
    calls[1][0][0, 0, :2, :2] = float("nan")
    sizes = {2: Dim("height", min=4, max=16), 3: Dim("width", min=4, max=16)}
    compare(functions, *calls, tolerance=0.0, dynamic_shapes=[sizes])


def test_values_in_other_dtypes() -> None:
    """The value comes into the tensor's dtype: a truth value, what is before the point, all digits of a large one."""
    functions: dict[str, Function] = {
        "bool": lambda x: F.pad(x > 1, (1, 2), value=2.0),
        "bool zero": lambda x: F.pad(x > 1, (1, 2), value=0.0),
        "part": lambda x: F.pad(x.long(), (1, 2), value=2.7),
        "large": lambda x: F.pad(x.long(), (1, 2), value=2**60 + 1),
        "infinite": lambda x: F.pad(x, (1, 2), value=-float("inf")),
        "nan": lambda x: F.pad(x, (1, 2), value=float("nan")),
    }
    compare(functions, (torch.arange(6.0).reshape(2, 3),), tolerance=0.0)


def test_padding_of_whole_numbers_and_of_nothing() -> None:
    """Integers and truth values by a constant; an empty batch."""
    functions = {"value": _padded("constant", (1, 2), value=3), "cut": _padded("constant", (-1, 1))}
    compare(functions, (torch.arange(12).reshape(3, 4),))
    compare({"value": _padded("constant", (1, 2), value=1)}, (torch.arange(12).reshape(3, 4) % 2 == 0,))
    functions = {mode: _padded(mode, (1, 2, 1, 1)) for mode in ("reflect", "replicate", "circular")}
    functions["shuffle"] = lambda x: F.pixel_shuffle(x[:, :1], 1)
    functions["unshuffle"] = lambda x: F.pixel_unshuffle(x, 1)
    functions["channels"] = lambda x: F.channel_shuffle(x, 3)
    compare(functions, (torch.randn(0, 3, 4, 5),))


def test_circular_padding_beyond_what_is_left_is_refused() -> None:
    """PyTorch returns memory that nothing was written to."""

    class Padded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.pad(x, (4, -3), mode="circular")

    with pytest.raises(UnsupportedModelError, match="circular padding wider than"):
        import_torch(Padded(), (torch.randn(2, 6),))


def test_pixels_change_places() -> None:
    """Shuffles and windows as columns, of batches known at the call."""
    functions: dict[str, Function] = {
        "shuffle": lambda x: F.pixel_shuffle(x, 2),
        "shuffle_leading": lambda x: F.pixel_shuffle(x[None], 2),
        "unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "channels": lambda x: F.channel_shuffle(x, 4),
        "columns": lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)),
        "columns_unbatched": lambda x: F.unfold(x[0], 2),
        "image": lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 4), 3, padding=1),
        "image_of_long_windows": lambda x: F.fold(F.unfold(x, (5, 3), 1, (1, 1), (2, 3)), (6, 4), (5, 3), 1, 1, (2, 3)),
        "image_with_gaps": lambda x: F.fold(F.unfold(x, 1, stride=2), (6, 4), 1, stride=2),
        "image_strided": lambda x: F.fold(F.unfold(x, 2, dilation=2, stride=2), (6, 4), 2, dilation=2, stride=2),
    }
    calls = [(torch.randn(batch, 8, 6, 4),) for batch in (2, 5)]
    compare(functions, *calls, dynamic_shapes=[{0: Dim("batch", min=1, max=8)}])
