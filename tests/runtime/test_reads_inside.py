"""Operators with windows read nothing outside of their inputs, where there may be no memory."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch.nn import functional

import tkc
from tkc.child import in_child


def guarded(*shape: int) -> torch.Tensor:
    """A random tensor that fills whole pages, before and behind which nothing may be read."""
    size = 4 * torch.Size(shape).numel()
    assert size % mmap.PAGESIZE == 0
    memory = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + mmap.PAGESIZE + size):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    tensor = torch.frombuffer(memory, dtype=torch.float32, offset=mmap.PAGESIZE, count=size // 4).reshape(shape)
    return tensor.copy_(torch.randn(shape))


class Windows(torch.nn.Module):
    """Each operator that may look outside of the image."""

    def forward(self, x: torch.Tensor, grid: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        """``x [2, 8, 8, 8]``, ``grid [2, 8, 8, 2]`` with points outside of the image, ``weight [8, 8, 3, 3]``."""
        return [
            functional.grid_sample(x, grid, align_corners=False),
            functional.grid_sample(x, grid, mode="bicubic", align_corners=True),
            functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            functional.avg_pool2d(x, 3, 2, 1),
            functional.max_pool2d(x, 3, 2, 1),
            functional.pad(x, (3, 2, 1, 4)),
            functional.unfold(x, 3, padding=2),
            functional.conv2d(x, weight, padding=2),
            functional.conv_transpose2d(x, weight, stride=2, padding=1),
            functional.interpolate(x, scale_factor=1.7, mode="bicubic"),
        ]


def test_nothing_outside_is_read() -> None:
    """In a child, which a read outside would end; what is computed is right."""
    x = guarded(2, 8, 8, 8)
    grid = torch.linspace(-1.3, 1.3, 256).reshape(2, 8, 8, 2)
    weight = torch.randn(8, 8, 3, 3)
    compiled = tkc.compile(Windows(), (x, grid, weight), database=False)

    expected = Windows()(x, grid, weight)  # here: PyTorch's threads do not work in a forked child

    def errors() -> list[float]:
        found = compiled(x, grid, weight)
        return [float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)]

    assert max(in_child(errors)) < 1e-3
