"""Convolutions worth measuring: those of ResNet-50, of a U-Net and of an image decoder."""

from __future__ import annotations

from tkc.kernels.cases import Case, FamilyCases
from tkc.kernels.convolution.parameters import ConvolutionParameters

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


CASES = FamilyCases(
    benchmarked=(*_layers((1, 32), 2048), convolution_case(_STEM, 32, 224, 232 * 4)),
    tuned=(*_layers((1, 4, 32), 2048), *(convolution_case(_STEM, batch, 224, 232 * 4) for batch in (1, 4, 32))),
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
            ConvolutionParameters(16, 12, (3, 1), "float16", (2, 1), before=(1, 0), after=(0, 0), lines=(8, 5)),
            2,
            6,
            48,
        ),
    ),
    told=("dtype", "n", "channels", "extents", "strides"),
)
