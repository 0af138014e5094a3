"""The convolution with epilogue in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tkc.kernels.matmul.reference import with_epilogue

if TYPE_CHECKING:
    from tkc.kernels.convolution.parameters import ConvolutionParameters


def convolution(
    parameters: ConvolutionParameters, image: torch.Tensor, weight: torch.Tensor, *epilogue: torch.Tensor
) -> torch.Tensor:
    """``activation(image * weight + bias) + residual`` in float32, as rows of the output's dtype.

    ``epilogue`` holds the bias and the residual, each where the parameters have one.
    """
    pixels = functional.pad(as_pixels(parameters, image), (0, parameters.depth - parameters.channels))
    windows = convolved(parameters, pixels.float(), weight.float()).flatten(0, 2)
    return with_epilogue(parameters.product, windows, epilogue).contiguous()


def as_pixels(parameters: ConvolutionParameters, image: torch.Tensor) -> torch.Tensor:
    """``image`` as ``[batch, height, width, channels]``; of lines, all that a window reads of one is a pixel."""
    if parameters.lines is None:
        return image
    step, windows = parameters.lines
    return image.as_strided((*image.shape[:2], windows, parameters.channels), (*image.stride()[:2], step, 1))


def convolved(parameters: ConvolutionParameters, pixels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution alone, ``[batch, rows, columns, n]``, of as many of the weight's channels as ``pixels`` have."""
    p = parameters
    second = pixels.movedim(-1, 1)
    kernel = weight.unflatten(1, (*p.extents, p.depth))[..., : pixels.shape[-1]].movedim(-1, 1)
    (top, left), (bottom, right) = p.before, p.after
    if (top, left) == (bottom, right):
        found = functional.conv2d(second, kernel, None, p.strides, (top, left), p.dilation)
    else:
        padded = functional.pad(second, (left, right, top, bottom))
        found = functional.conv2d(padded, kernel, None, p.strides, 0, p.dilation)
    return found.movedim(1, -1)
