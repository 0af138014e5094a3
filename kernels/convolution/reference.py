"""The convolution with epilogue in PyTorch."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tkc.kernels.matmul.reference import ACTIVATIONS

if TYPE_CHECKING:
    from tkc.kernels.convolution.parameters import ConvolutionParameters


def convolution(
    parameters: ConvolutionParameters, image: torch.Tensor, weight: torch.Tensor, *epilogue: torch.Tensor
) -> torch.Tensor:
    """``activation(batch_norm(image * weight + bias)) + residual`` in float32, as rows of the output's dtype.

    ``epilogue`` holds the bias, the vectors of the batch normalization and the residual, each where there is one.
    """
    p, operands = parameters, iter(epilogue)
    pixels = functional.pad(as_pixels(p, image), (0, p.depth - p.channels))
    if 0 in pixels.shape[1:3] and prod(p.extents) == 1:  # PyTorch convolves no image without pixels
        x = pixels.new_empty(0, p.n, dtype=torch.float32)
    else:
        x = convolved(p, pixels.float(), weight.float()).flatten(0, 2)
    if p.bias:
        x = x + next(operands).float()
    if p.batch_norm is not None:
        mean, variance, scale, shift = (next(operands).float() for _ in p.batch_norm.VECTORS)
        # Where a scale is infinite, PyTorch's own differs between the CPU and GPUs. This is the latter's.
        x = (x - mean) * ((variance + p.batch_norm.epsilon).rsqrt() * scale) + shift
    activation = ACTIVATIONS[p.activation] if p.activation is not None else torch.clone
    x = x if p.activation_is_last else activation(x)
    if p.residual:
        x = x + next(operands).float()
    x = activation(x) if p.activation_is_last else x
    return x.to(getattr(torch, p.stored_dtype)).contiguous()


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
