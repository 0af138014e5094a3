"""Fourier transforms as operators of real tensors: complex numbers are pairs along a last axis of two.

TVM has no complex dtypes, so compiled models hold complex tensors as pairs. These operators of the library ``tkc`` call
PyTorch's on views of them; importing this module registers them.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

_LIBRARY = torch.library.Library("tkc", "DEF")
_LIBRARY.define("fft_r2c(Tensor x, int[] dim, int normalization, bool onesided) -> Tensor")
_LIBRARY.define("fft_c2r(Tensor pairs, int[] dim, int normalization, SymInt last_dim_size) -> Tensor")
_LIBRARY.define("fft_c2c(Tensor pairs, int[] dim, int normalization, bool forward) -> Tensor")


def fft_r2c(x: torch.Tensor, dim: list[int], normalization: int, onesided: bool) -> torch.Tensor:
    """``aten._fft_r2c``: pairs ``[..., 2]`` of the real ``x``."""
    return torch.view_as_real(aten._fft_r2c(x, dim, normalization, onesided)).contiguous()


def fft_c2r(pairs: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """``aten._fft_c2r``: real numbers of ``pairs [..., 2]``."""
    real: torch.Tensor = aten._fft_c2r(torch.view_as_complex(pairs.contiguous()), dim, normalization, last_dim_size)
    return real.contiguous()


def fft_c2c(pairs: torch.Tensor, dim: list[int], normalization: int, forward: bool) -> torch.Tensor:
    """``aten._fft_c2c``: pairs of ``pairs``."""
    complex_numbers = torch.view_as_complex(pairs.contiguous())
    return torch.view_as_real(aten._fft_c2c(complex_numbers, dim, normalization, forward)).contiguous()


for _function in (fft_r2c, fft_c2r, fft_c2c):
    _LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")
