"""Products and convolutions of 8-bit codes by PyTorch's library, against whole numbers in float64."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tkc.runtime.integer_products import convolve_integers, is_exact, multiply_integers

RANDOM = torch.Generator().manual_seed(5)


def codes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random codes of the whole range."""
    limits = torch.iinfo(dtype)
    found = torch.randint(limits.min, limits.max + 1, shape, generator=RANDOM)
    found.view(-1)[:1] = limits.max
    return found.to(dtype)


def check_product(
    left: torch.Tensor, right: torch.Tensor, zeros: list[Any], *, is_constant: bool, transposed: bool = False
) -> None:
    """Zero points that are tensors are operands; constants are packed at the first call and used at the second."""
    numbers = [None if isinstance(zero, torch.Tensor) else zero for zero in zeros]
    tensors = [zero for zero in zeros if isinstance(zero, torch.Tensor)]
    description = json.dumps({"zeros": numbers, "transposed": transposed, "is_constant": is_constant})
    shifts = [zero.double() if isinstance(zero, torch.Tensor) else zero for zero in zeros]
    if isinstance(shifts[0], torch.Tensor):
        shifts[0] = shifts[0].reshape(-1, 1)
    exact = (left.double() - shifts[0]) @ ((right.mT if transposed else right).double() - shifts[1])
    held: dict[Any, Any] | None = {}
    for kept in (held, held, None):
        found = multiply_integers(kept, description, left, right, *tensors)
        assert found.dtype == torch.int32 and found.is_contiguous()
        assert torch.equal(found.double(), exact)
    assert bool(held) == is_constant


def products() -> None:
    """All kinds of operands, each at sizes that no vector or tile divides, and sums beyond 2^24."""
    for left in (torch.uint8, torch.int8):
        for right in (torch.uint8, torch.int8):
            weight = codes(right, 771, 65)
            zero = codes(right, 65)
            check_product(codes(left, 3, 7, 771), weight, [0, 0], is_constant=False)
            for is_constant in (True, False):
                check_product(codes(left, 1, 771), weight, [-3, zero], is_constant=is_constant)
            check_product(codes(left, 9, 771), weight.T.contiguous(), [torch.tensor([99.0]), 7],
                          is_constant=True, transposed=True)  # fmt: skip
            check_product(codes(left, 5, 771), weight, [codes(left, 5), 128], is_constant=True)
            check_product(codes(left, 2, 3, 5, 33), codes(right, 3, 33, 17), [4, 9], is_constant=False)
            check_product(codes(left, 0, 33), codes(right, 33, 17), [4, 9], is_constant=True)
    largest = torch.full((2, 4096), 255, dtype=torch.uint8), torch.full((4096, 64), -128, dtype=torch.int8)
    check_product(*largest, [0, 0], is_constant=True)
    check_product(*largest, [0, 127], is_constant=True)


def check_convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    zero: int,
    padding: list[int],
    groups: int = 1,
    stride: int = 1,
    shift: int | torch.Tensor = 0,
) -> None:
    """Of an image whose channels stand second here. The zero point as a number and as a tensor; both results' types."""
    axes = image.ndim - 2
    widths = [width for axis in reversed(range(axes)) for width in (padding[axis], padding[axes + axis])]
    padded = F.pad(image.double() - zero, widths)
    convolution = (F.conv1d, F.conv2d)[axes - 1]
    moved = torch.as_tensor(shift).double().reshape(-1, *[1] * (axes + 1))
    exact = convolution(padded, weight.double() - moved, None, stride, 0, 1, groups).movedim(1, -1)
    last = image.movedim(1, -1).contiguous()
    held: dict[Any, Any] = {}
    for dtype in ("float32", "int32"):
        if dtype == "float32" and exact.numel() and exact.abs().max() >= 1 << 24:
            continue
        call = {"strides": [stride] * axes, "padding": padding, "dilation": [1] * axes, "groups": groups}
        for number, tensors in ((zero, []), (None, [torch.tensor([zero], dtype=torch.int32)])):
            zeros = [number, shift if isinstance(shift, int) else None]
            description = json.dumps({**call, "zeros": zeros, "result": dtype})
            given = [*tensors, *([] if isinstance(shift, int) else [shift])]
            for kept in (held, held, None):
                found = convolve_integers(kept, description, last, weight, *given)
                assert str(found.dtype) == f"torch.{dtype}" and found.is_contiguous()
                assert torch.equal(found.double(), exact)


def convolutions() -> None:
    """Groups, pixels, one axis, padding of one side, and sums beyond 2^24 of which parts are summed."""
    for dtype, zero in ((torch.uint8, 117), (torch.uint8, 0), (torch.int8, -128), (torch.int8, 3)):
        check_convolution(codes(dtype, 2, 24, 9, 7), codes(torch.int8, 20, 24, 3, 3), zero, [1, 1, 1, 1])
        check_convolution(
            codes(dtype, 1, 24, 9, 7), codes(torch.int8, 12, 6, 3, 2), zero, [0, 1, 2, 0], groups=4, stride=2
        )
        check_convolution(codes(dtype, 2, 32, 5, 7), codes(torch.int8, 32, 1, 3, 3), zero, [1, 1, 1, 1], groups=32)
        check_convolution(codes(dtype, 2, 40, 5, 7), codes(torch.int8, 9, 40, 1, 1), zero, [0, 0, 0, 0])
        check_convolution(codes(dtype, 2, 40, 11), codes(torch.int8, 9, 40, 5), zero, [2, 1])
        for axis, size in ((1, 1), (24, 3)):
            for moved in (7, codes(torch.uint8, 20)):
                weight = codes(torch.uint8, 20, 24, size, size)
                check_convolution(codes(dtype, 1, 24, 6, 7), weight, zero, [axis // 24] * 4, shift=moved)
        check_convolution(codes(dtype, 1, 24, 5, 7), codes(torch.uint8, 6, 12, 3, 3), zero, [0] * 4, groups=2, shift=50)
        check_convolution(codes(dtype, 0, 4, 5, 7), codes(torch.int8, 9, 4, 3, 3), zero, [0, 0, 0, 0])
    image = torch.full((1, 200, 4, 4), 255, dtype=torch.uint8)
    check_convolution(image, torch.full((3, 200, 3, 3), 127, dtype=torch.int8), 0, [1, 1, 1, 1])
    check_convolution(image, torch.full((2, 100, 4, 4), -128, dtype=torch.int8), 0, [1, 1, 1, 1], groups=2)


def test_products() -> None:
    """On this CPU, whatever it has."""
    products()


def test_convolutions() -> None:
    """On this CPU, whatever it has."""
    convolutions()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have no such instructions to leave out")
def test_without_vnni() -> None:
    """oneDNN saturates there, which is found; results are exact all the same."""
    script = (
        "from tests.runtime.test_integer_products import *\n"
        "assert not is_exact()\nproducts(), convolutions()\nprint('done')"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "done\n", done.stderr


def test_this_cpu_is_tried() -> None:
    """With VNNI, the library is what is called."""
    has_vnni = torch.cpu._is_vnni_supported()
    if not has_vnni or "ONEDNN_MAX_CPU_ISA" in os.environ or not torch.backends.mkldnn.is_available():
        pytest.skip("this CPU has no VNNI, or PyTorch no oneDNN")
    assert is_exact()
