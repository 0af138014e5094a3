"""What an artifact holds, in memory and in files that an executable may load."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tkc.kernels.kernel_library import KernelLibrary
from tkc.kernels.target import Target
from tkc.runtime.report import Report
from tkc.runtime.requirements import Requirements
from tkc.runtime.signature import Signature
from tkc.runtime.tensors import identity
from tkc.runtime.weights import ModelWeight

MAIN = "main"


@dataclass(frozen=True)
class EntryContents:
    """What an artifact holds of one entry, in memory and in files that an executable may load.

    ``code`` is the generated code; ``requires`` is what must be there when it runs. With ``shares_weights``, the
    parameters are a model's in this process, whose owner may change them. ``weights`` says where the model's own
    weights stand among the parameters, if that is known.
    """

    signature: Signature
    parameters: Mapping[str, torch.Tensor]
    code: Path
    libraries: tuple[KernelLibrary, ...]
    report: Report
    requires: Requirements
    shares_weights: bool = False
    weights: tuple[ModelWeight, ...] | None = None


@dataclass(frozen=True)
class Contents:
    """What an artifact holds: :data:`MAIN` alone, or the entries of a program, whose equal weights are the same memory.

    ``folder`` is the temporary folder that the code lives in, if any.
    """

    target: Target
    entries: Mapping[str, EntryContents]
    folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_program(self) -> bool:
        """Whether there are entries that have names."""
        return self.entries.keys() != {MAIN}


def named_weights(
    entries: Mapping[str, EntryContents],
) -> tuple[dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """The weights by the names that they are stored by, what entries share once; and those names for each entry."""
    stored: dict[str, torch.Tensor] = {}
    found: dict[Hashable, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    for entry, contents in entries.items():
        own: list[str] = []
        for name, weight in contents.parameters.items():
            kept = found.get(identity(weight))
            if kept is None or kept in own:
                # Of several entries, two may have different weights of one name.
                kept = name if name not in stored else f"{entry}.{name}"
                while kept in stored:
                    kept += "_"
                stored[kept] = weight
                found.setdefault(identity(weight), kept)
            own.append(kept)
        names[entry] = tuple(own)
    return stored, names
