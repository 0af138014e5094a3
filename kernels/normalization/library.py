"""PyTorch's normalizations."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Candidate
from tkc.kernels.normalization.parameters import NormalizationParameters


def candidate(parameters: NormalizationParameters) -> Candidate | None:
    """None for what is combined of experts' rows first."""
    return normalized if parameters.combined is None else None


def normalized(parameters: NormalizationParameters, x: torch.Tensor, weight: torch.Tensor) -> object:
    """RMS or layer normalization."""
    if parameters.kind == "rms":
        return torch.nn.functional.rms_norm(x, (parameters.channels,), weight, parameters.epsilon)
    return torch.nn.functional.layer_norm(x, (parameters.channels,), weight, None, parameters.epsilon)
