"""Where models come from. A source lists cases by name and makes the examples of a case; the table is ``SOURCES``.

Another library (timm, torchvision, diffusers, PyG) is one more entry of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn


class NotConstructibleError(Exception):
    """There is no small model, or no input that PyTorch takes for it: nothing is said about TKC."""


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """What ``torch.export`` makes of a call."""
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, strict=False)


@dataclass(frozen=True)
class Example:
    """A module with random weights and a call of it that PyTorch computes."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    export: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], torch.export.ExportedProgram] = exported


class Source(Protocol):
    """Models of one library."""

    def names(self) -> list[str]:
        """The names of its cases, sorted."""

    def variants(self, name: str) -> tuple[str, ...]:
        """What is exported of a case, each by itself: ``base``, ``prefill``, ``decode``."""

    def make(self, name: str, variant: str) -> Example:
        """The example; raises :class:`NotConstructibleError`."""


def sources() -> Mapping[str, Source]:
    """All sources by name."""
    from .torch_layers import TorchLayers
    from .transformers_models import Transformers

    return {"torch": TorchLayers(), "transformers": Transformers()}
