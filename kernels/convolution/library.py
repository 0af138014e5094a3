"""PyTorch's convolution with channels last: cuDNN on a GPU."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.convolution.reference import as_pixels, convolved


def candidate(parameters: ConvolutionParameters) -> Candidate:
    """The convolution alone, without the kernel's epilogue."""
    return convolution


def convolution(
    parameters: ConvolutionParameters, image: torch.Tensor, weight: torch.Tensor, *added: torch.Tensor
) -> object:
    """The convolution; what the kernel adds is left out."""
    return convolved(parameters, as_pixels(parameters, image), weight)
