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
    windows = convolved(parameters, image.float(), weight.float()).flatten(0, 2)
    return with_epilogue(parameters.product, windows, epilogue).contiguous()


def convolved(parameters: ConvolutionParameters, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution alone, ``[batch, rows, columns, n]``."""
    p = parameters
    if p.lines is not None:
        step, windows = p.lines
        image = image.as_strided((*image.shape[:2], windows, p.channels), (*image.stride()[:2], step, 1))
    second = image.movedim(-1, 1)
    kernel = weight.unflatten(1, (*p.extents, p.depth))[..., : p.channels].movedim(-1, 1)
    (top, left), (bottom, right) = p.before, p.after
    if (top, left) == (bottom, right):
        found = functional.conv2d(second, kernel, None, p.strides, (top, left), p.dilation)
    else:
        padded = functional.pad(second, (left, right, top, bottom))
        found = functional.conv2d(padded, kernel, None, p.strides, 0, p.dilation)
    return found.movedim(1, -1)
