"""Where models come from. A source lists cases by name and makes the examples of a case; the table is :func:`sources`.

Sources of libraries that are not installed (``LIBRARIES``, the extra ``coverage``) have no cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
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


LIBRARIES: Mapping[str, str] = {
    "diffusers": "diffusers",
    "pyg": "torch_geometric",
    "timm": "timm",
    "torchaudio": "torchaudio",
    "torchvision": "torchvision",
}
"""The package that each source needs which TKC's tests do not need otherwise."""


def absent() -> list[str]:
    """The sources whose library is not installed, sorted."""
    return sorted(source for source, library in LIBRARIES.items() if find_spec(library) is None)


def sources() -> Mapping[str, Source]:
    """All sources that have cases here, by name."""
    from .diffusers_models import Diffusers
    from .pyg_models import Pyg
    from .timm_models import Timm
    from .torch_layers import TorchLayers
    from .torchaudio_models import Torchaudio
    from .torchvision_models import Torchvision
    from .transformers_models import Transformers

    every: dict[str, Source] = {
        "torch": TorchLayers(),
        "transformers": Transformers(),
        "diffusers": Diffusers(),
        "pyg": Pyg(),
        "timm": Timm(),
        "torchaudio": Torchaudio(),
        "torchvision": Torchvision(),
    }
    return {name: source for name, source in every.items() if name not in absent()}
