"""Convolutions of 16-bit images become the kernel that loads their windows from the image."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import tkc
from tests.passes.reference_execution import checked_substitutions, imported, substituted
from tests.schedules.graphs import Applied
from tkc.kernels import Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.rules.convolution import CONVOLUTION
from tkc.passes.rules.matmul import MATMUL

HOPPER = Target.parse("cuda:sm_90a")
Function = Callable[[Tensor, Tensor], Tensor]
Shape = tuple[int, ...]

FORMS: dict[str, tuple[Function, Shape, Shape]] = {
    "image": (lambda x, w: F.conv2d(x, w, padding=1), (2, 32, 9, 12), (16, 32, 3, 3)),
    "by twos": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (2, 64, 9, 12), (24, 64, 3, 3)),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=(2, 1), padding=(0, 2)), (2, 32, 9, 12), (16, 32, 3, 2)),
    "even windows": (lambda x, w: F.conv2d(x, w, padding="same"), (2, 32, 7, 8), (16, 32, 4, 2)),
    "every third pixel": (lambda x, w: F.conv2d(x, w, stride=3), (2, 32, 7, 8), (16, 32, 1, 1)),
    "sequence": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), (2, 32, 21), (16, 32, 3)),
    "channels that are filled up": (lambda x, w: F.conv2d(x, w, padding=1), (2, 40, 6, 5), (16, 40, 3, 3)),
    "eight channels": (lambda x, w: F.conv2d(x, w, padding=1), (2, 8, 6, 5), (16, 8, 3, 3)),
    "colors": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), (2, 3, 21, 30), (64, 3, 7, 7)),
    "an odd width": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (2, 3, 9, 11), (16, 3, 5, 5)),
    "long lines": (lambda x, w: F.conv2d(x, w, stride=2, padding=5), (2, 3, 14, 15), (16, 3, 3, 11)),
    "by threes": (lambda x, w: F.conv2d(x, w, stride=3, padding=2), (2, 12, 10, 11), (16, 12, 3, 3)),
}
EPILOGUES: dict[str, Function] = {
    "nothing": lambda y, b: y,
    "a bias": lambda y, b: y + b[:, None, None],
    "an activation": lambda y, b: F.silu(y),
    "a residual": lambda y, b: F.relu(y + b[:, None, None]) + torch.ones_like(y),
}


def _tensors(*shapes: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def _products(function: Function, *examples: Tensor) -> object:
    return Canonicalize()(ConvolutionProducts(target=HOPPER)(imported(function, *examples, symbolic=(0,))))


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_is_the_kernel(form: str) -> None:
    """At a symbolic batch, with the numbers of gathered windows."""
    function, *shapes = FORMS[form]
    examples = _tensors(*shapes)
    (found,) = checked_substitutions(_products(function, *examples), *examples, rules=(CONVOLUTION, MATMUL), rtol=2**-7)
    assert found.rule == "convolution"


@pytest.mark.daily(1)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("form", ["image", "sequence", "colors"])
def test_epilogues_are_the_kernels(form: str, epilogue: str) -> None:
    """Those of the matmul."""
    function, *shapes = FORMS[form]
    examples = _tensors(*shapes, (shapes[1][0],))
    rank = len(shapes[0]) - 3

    def whole(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = function(x, w)
        return EPILOGUES[epilogue](y if rank else y.unsqueeze(-1), b)

    module = Canonicalize()(ConvolutionProducts()(imported(whole, *examples, symbolic=(0,))))
    found = checked_substitutions(module, *examples, rules=(CONVOLUTION, MATMUL), rtol=2**-7)
    assert "convolution" in [each.rule for each in found]


REFUSED: dict[str, tuple[Function, Shape, Shape, str]] = {
    "few channels, one axis": (lambda x, w: F.conv1d(x, w, stride=5), (3, 1, 40), (16, 1, 10), "in zeros"),
    "few channels, apart": (lambda x, w: F.conv2d(x, w, dilation=2), (3, 3, 20, 20), (16, 3, 5, 5), "no neighbors"),
    "odd columns": (lambda x, w: F.conv2d(x, w), (3, 32, 9, 9), (20, 32, 3, 3), "multiples of 16 bytes"),
    "far apart": (lambda x, w: F.conv2d(x, w, dilation=130), (2, 32, 300, 300), (16, 32, 3, 3), "tensor map"),
    "long steps": (lambda x, w: F.conv2d(x, w, stride=9), (2, 32, 30, 30), (16, 32, 3, 3), "at most 8"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_others_are_products_of_gathered_windows(form: str) -> None:
    """With the reason."""
    function, *shapes, reason = FORMS[form] if form in FORMS else REFUSED[form]
    module = _products(function, *_tensors(*shapes))
    _, report = substituted(module, (CONVOLUTION, MATMUL), HOPPER)
    assert [found.rule for found in report.substitutions] == ["matmul"]
    assert reason in report.refusals[0].reason


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_120"])
def test_other_gpus_gather_windows(architecture: str) -> None:
    """Which do not load windows, or do not multiply them as they lie."""
    function, *shapes = FORMS["image"]
    target = Target.parse(f"cuda:{architecture}")
    _, report = substituted(_products(function, *_tensors(*shapes)), (CONVOLUTION, MATMUL), target)
    assert [found.rule for found in report.substitutions] == ["matmul"]


@pytest.mark.daily(1)
@pytest.mark.nvcc
def test_windows_beyond_two_gigabytes_are_not_written_down() -> None:
    """An image decoder's last layer."""
    layer = nn.Conv2d(256, 128, 3, padding=1).bfloat16()
    image = torch.empty(1, 256, 1024, 1024, dtype=torch.bfloat16)
    executable = tkc.compile(layer, (image,), target=str(HOPPER), database=False)
    assert executable.activation_bytes() < 2 << 30


def test_windows_that_no_kernel_loads_are_not_too_large() -> None:
    """Those of strides that no tensor map has, of rows that TMA cannot store, and on other GPUs stay convolutions."""
    image = torch.empty(8, 64, 2048, 2048, dtype=torch.bfloat16, device="meta")
    for weight, options, target, are_loaded in (
        ((64, 64, 3, 3), {}, HOPPER, True),
        ((64, 64, 3, 3), {}, Target.parse("cuda:sm_80"), False),
        ((60, 64, 3, 3), {}, HOPPER, False),
        ((64, 64, 18, 18), {"stride": 9}, HOPPER, False),
    ):
        module = imported(
            lambda x, w, options=options: F.conv2d(x, w, **options),
            image,
            torch.empty(weight, dtype=torch.bfloat16, device="meta"),
            symbolic=(),
        )
        found = ConvolutionProducts(target=target)(module).script()
        assert ("R.nn.conv" not in found) == are_loaded


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", [*FORMS, *REFUSED])
def test_on_a_gpu(form: str, dtype: torch.dtype) -> None:
    """Of any number of images, none too; NaN and infinities reach what reads them, and nothing else."""
    function, shape, weight = (FORMS[form] if form in FORMS else REFUSED[form])[:3]
    x, w = (tensor.to(dtype) for tensor in _tensors((5, *shape[1:]), weight))
    x.flatten()[::997] = torch.tensor([torch.inf, torch.nan, -torch.inf] * x.numel())[: len(x.flatten()[::997])].to(
        dtype
    )
    w = w / w[0].numel() ** 0.5
    batch = {"args": ({0: Dim("batch", min=0, max=512)}, None)}
    executable = tkc.compile(
        Applied(function), (x.cuda(), w.cuda()), target="cuda", database=False, dynamic_shapes=batch
    )
    for count in (5, 5, 5, 1, 0):
        given = x[:count]
        expected = function(given.float(), w.float())
        found = executable(given.cuda(), w.cuda()).cpu().float()
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7, equal_nan=True)
