"""Convolutions worth measuring: those of ResNet-50, of a U-Net and of an image decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import Case, FamilyCases, shape_of
from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.matmul.parameters import BatchNorm
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_SAME = ((3, 3), (1, 1), (1, 1))
_HALF = ((3, 3), (2, 2), (1, 1))
_PIXELS_OF_TWO = ((1, 1), (2, 2), (0, 0))

# Channels of the output and of the image, the window, its stride and the zeros around the image, whose edge is last.
_LAYERS = (
    (64, 64, _SAME, 56),
    (128, 128, _HALF, 56),
    (128, 128, _SAME, 28),
    (256, 256, _SAME, 14),
    (512, 512, _SAME, 7),
    (512, 256, _PIXELS_OF_TWO, 56),
    (320, 320, _SAME, 64),
    (640, 640, _SAME, 32),
    (512, 512, _SAME, 128),
)


# Channels of the output and of the image, and the edge of both.
_PIXEL_LAYERS = (
    *((64, 64, 56), (256, 64, 56), (64, 256, 56)),
    *((128, 256, 56), (512, 128, 28), (128, 512, 28)),
    *((256, 512, 28), (1024, 256, 14), (256, 1024, 14)),
    *((512, 1024, 14), (2048, 512, 7), (512, 2048, 7)),
)


# ResNet's first layer: windows of 7 x 7 pixels of three channels and a zero, at every other pixel.
_STEM = ConvolutionParameters(64, 28, (7, 1), "bfloat16", (2, 1), before=(3, 0), after=(3, 0), lines=(8, 112))


def convolution_case(p: ConvolutionParameters, batch: int, height: int, width: int) -> Case:
    """The case of so many images; ``width`` is in pixels, or in elements where the image comes as lines."""
    sizes = (height, width if p.lines is None else p.lines[1])
    rows, columns = (
        (size + before + after - span - 1) // stride + 1
        for size, before, after, span, stride in zip(sizes, p.before, p.after, p.spans, p.strides, strict=True)
    )
    return Case("convolution", p, {"batch": batch, "height": height, "width": width, "m": batch * rows * columns})


def _input(
    parameters: ConvolutionParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    import torch

    if tensor.name != "variance":
        return None
    return torch.rand(shape_of(tensor, sizes), device=device).to(getattr(torch, tensor.dtype))


def _layers(batches: tuple[int, ...], most: int) -> tuple[Case, ...]:
    return tuple(
        convolution_case(
            ConvolutionParameters(n, channels, extents, "bfloat16", strides, before=zeros, after=zeros),
            batch,
            edge,
            edge,
        )
        for n, channels, (extents, strides, zeros), edge in _LAYERS
        for batch in batches
        if batch * edge <= most
    )


def _of_pixels(batches: tuple[int, ...]) -> tuple[Case, ...]:
    """ResNet's layers of single pixels, normalized, whose images are rows."""
    return tuple(
        convolution_case(
            ConvolutionParameters(n, channels, (1, 1), "bfloat16", batch_norm=BatchNorm("bfloat16", 1e-5)),
            *(1, 1, batch * edge * edge),
        )
        for n, channels, edge in _PIXEL_LAYERS
        for batch in batches
    )


CASES = FamilyCases(
    benchmarked=(*_layers((1, 32), 2048), convolution_case(_STEM, 32, 224, 232 * 4)),
    tuned=(
        *_layers((1, 4, 32), 2048),
        *_of_pixels((1, 4, 32)),
        *(convolution_case(_STEM, batch, 224, 232 * 4) for batch in (1, 4, 32)),
    ),
    checked=(
        convolution_case(
            ConvolutionParameters(
                24, 16, (3, 2), "bfloat16", (2, 1), (1, 2), (1, 0), (2, 1), bias=True, activation="relu", residual=True
            ),
            2,
            5,
            6,
        ),
        convolution_case(
            ConvolutionParameters(
                *(32, 24, (1, 1), "bfloat16"),
                batch_norm=BatchNorm("bfloat16", 1e-5),
                activation="relu",
                activation_is_last=True,
                residual=True,
            ),
            *(1, 1, 30),
        ),
        convolution_case(
            ConvolutionParameters(16, 12, (3, 1), "float16", (2, 1), before=(1, 0), after=(0, 0), lines=(8, 5)),
            2,
            6,
            48,
        ),
    ),
    make_input=_input,
    told=("dtype", "n", "channels", "extents", "strides"),
)
