"""Convolutions become products over gathered windows, or sums, and nothing between two of them is transposed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tkc
from tests.passes.reference_execution import evaluated, imported, substituted
from tkc.kernels import Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.rules.matmul import MATMUL


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Of these shapes."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


SEQUENCE, IMAGE = ((3, 8, 21), (16, 8, 3)), ((3, 8, 9, 12), (16, 8, 3, 3))
FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "sequence": (lambda x, w: F.conv1d(x, w, padding=1), SEQUENCE),
    "sequence by twos": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), SEQUENCE),
    "one channel": (lambda x, w: F.conv1d(x, w, stride=5), ((3, 1, 40), (16, 1, 10))),
    "image": (lambda x, w: F.conv2d(x, w, padding=1), IMAGE),
    "image by twos": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), IMAGE),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, padding=(0, 2)), IMAGE),
    "asymmetric": (lambda x, w: F.conv2d(F.pad(x, (1, 0, 2, 1)), w, padding="same"), IMAGE),
    "colors": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), ((2, 3, 11, 12), (16, 3, 7, 7))),
    "pixels": (lambda x, w: F.conv2d(x, w), ((3, 8, 5, 4), (16, 8, 1, 1))),
    "every other pixel": (lambda x, w: F.conv2d(x, w, stride=2), ((3, 8, 5, 4), (16, 8, 1, 1))),
    "volume": (lambda x, w: F.conv3d(x, w, padding=1), ((2, 8, 4, 3, 5), (16, 8, 3, 3, 3))),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_becomes_a_product(form: str) -> None:
    """At a symbolic batch."""
    function, shapes = FORMS[form]
    examples = tensors(*shapes)
    module = ConvolutionProducts(("float32",))(imported(function, *examples, symbolic=(0,)))
    assert "R.nn.conv" not in module.script() and module.script().count("R.matmul(") == 1
    torch.testing.assert_close(evaluated(module, *examples)[0], function(*examples), rtol=1e-4, atol=1e-4)


GROUPS = {
    "a channel each": (lambda x, w: F.conv2d(x, w, padding=1, groups=8), ((3, 8, 9, 12), (8, 1, 3, 3)), 0),
    "two filters a channel, by twos": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=(0, 1), groups=8),
        ((3, 8, 9, 12), (16, 1, 3, 3)),
        0,
    ),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2, padding=2, groups=8), ((3, 8, 9, 12), (8, 1, 3, 3)), 0),
    "few channels each": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), ((3, 8, 9, 12), (32, 4, 3, 3)), 0),
    "few filters each": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), ((3, 16, 9, 12), (16, 8, 3, 3)), 0),
    "tiles of tensor cores": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), ((3, 16, 9, 12), (32, 8, 3, 3)), 1),
    "pixels": (lambda x, w: F.conv2d(x, w, groups=2), ((3, 16, 9, 12), (32, 8, 1, 1)), 1),
    "a sequence": (lambda x, w: F.conv1d(x, w, padding=3, groups=8), ((3, 8, 21), (8, 1, 4)), 0),
    "positions of a sequence": (lambda x, w: F.conv1d(x, w, padding=8, groups=2), ((3, 16, 21), (32, 8, 16)), 1),
}


@pytest.mark.parametrize("form", GROUPS)
def test_groups_are_products_where_they_are_large_enough(form: str) -> None:
    """One for all of them, and sums otherwise; at a symbolic batch."""
    function, shapes, products = GROUPS[form]
    examples = tensors(*shapes)
    module = ConvolutionProducts(("float32",))(imported(function, *examples, symbolic=(0,)))
    assert "R.nn.conv" not in module.script() and module.script().count("R.matmul(") == products
    torch.testing.assert_close(evaluated(module, *examples)[0], function(*examples), rtol=1e-4, atol=1e-4)


def test_sums_of_sixteen_bits_are_rounded_once() -> None:
    """They are taken in float32."""
    examples = tensors((3, 8, 9, 12), (8, 1, 7, 7), dtype=torch.bfloat16)
    module = ConvolutionProducts()(imported(lambda x, w: F.conv2d(x, w, padding=3, groups=8), *examples, symbolic=()))
    exact = F.conv2d(*(tensor.double() for tensor in examples), padding=3, groups=8)
    torch.testing.assert_close(evaluated(module, *examples)[0].double(), exact, rtol=2**-8, atol=1e-4)


def test_nothing_between_two_convolutions_is_transposed() -> None:
    """A bias, an activation and a residual become the products' epilogues, with channels last throughout."""

    def block(x: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x.permute(0, 3, 1, 2), first, bias, padding=1))
        return (F.conv2d(x, second, bias, padding=1) + x).permute(0, 2, 3, 1)

    examples = tensors((3, 6, 5, 16), (16, 16, 3, 3), (16, 16, 3, 3), (16,), dtype=torch.bfloat16)
    examples[1:3] = [weight / 12 for weight in examples[1:3]]
    module = Canonicalize()(ConvolutionProducts()(imported(block, *examples, symbolic=(0,))))
    found = evaluated(module, *examples)[0]
    torch.testing.assert_close(found, block(*examples), rtol=2e-2, atol=4e-2)
    _, report = substituted(module, (MATMUL,), Target.parse("cuda:sm_90a"))
    forms = {(p.bias, p.activation, p.residual) for p in (row.parameters for row in report.substitutions)}
    assert forms == {(True, "relu", False), (True, None, True)}
    images = [line for line in module.script().splitlines() if "permute_dims(" in line and "6, 5" in line]
    assert not images


def test_what_computes_the_image_of_groups_moves_vectors(tmp_path: Path) -> None:
    """The windows' view of its channels as groups is not fused into it, and what vectors move stays contiguous."""
    layers = [nn.Conv2d(16, 64, 1), nn.BatchNorm2d(64), nn.Tanh(), nn.Conv2d(64, 64, 3, padding=1, groups=2)]
    image = torch.randn(2, 16, 14, 14, dtype=torch.bfloat16)
    tkc.explain(nn.Sequential(*layers).bfloat16().eval(), (image,), target="cuda:sm_90a", dump=tmp_path)
    (scheduled,) = tmp_path.glob("*_schedule.py")
    functions = scheduled.read_text().split("@T.prim_func")
    (activation,) = [function for function in functions if "tanhf" in function]
    assert activation.count("T.vectorized(T.int64(8))") >= 2  # loads and stores
    assert "R.reshape(" in functions[-1]


OTHERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], torch.dtype]] = {
    "float32": (lambda x, w: F.conv2d(x, w), (16, 8, 3, 3), torch.float32),
    "an image's patches": (lambda x, w: F.conv2d(x[:, :3], w, stride=3), (16, 3, 3, 3), torch.bfloat16),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_convolutions_stay(form: str) -> None:
    """What tensor cores would round, and what a reshape makes patches of."""
    function, weight, dtype = OTHERS[form]
    module = imported(function, *tensors((3, 8, 9, 12), weight, dtype=dtype), symbolic=(0,))
    assert "R.nn.conv" in ConvolutionProducts()(module).script()
