"""``manifest.json``: what an artifact's folder holds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tkc.runtime.artifact.folder import CODE
from tkc.runtime.requirements import Requirements
from tkc.runtime.signature import Signature, TensorSpec
from tkc.runtime.weights import ModelWeight

FORMAT: Literal[4] = 4
"""The format that is written. Format 3, in which flags are strings that stand for indices, is read as well."""
PROGRAM_FORMAT: Literal[5] = 5
"""That of programs of several entries: each has code, kernels and a report of its own."""
PINNED = ("apache-tvm", "apache-tvm-ffi")
"""The packages whose versions an artifact's code is tied to."""
_STRICT = ConfigDict(frozen=True, extra="forbid")


class KernelEntry(BaseModel):
    """One kernel library of an artifact."""

    model_config = _STRICT
    file: str
    key: str
    request: dict[str, Any]


class Entry(BaseModel):
    """A compiled function: how it is called, and which of the parameters it takes, in order.

    Those of a program also name the file of their code and those of their kernels, say what they need, and report.
    ``weights`` says where the model's own weights stand among the parameters.
    """

    model_config = _STRICT
    signature: Signature
    parameters: tuple[str, ...]
    code: str = CODE
    kernels: tuple[str, ...] | None = None
    requires: Requirements = Requirements()
    report: dict[str, Any] | None = None
    weights: tuple[ModelWeight, ...] | None = None


class Manifest(BaseModel):
    """What an artifact holds.

    ``entries`` are the compiled functions by name, which share ``parameters``: an LLM may have one to
    prefill and one to decode. ``requires`` is what must be there where it runs. ``files`` gives the SHA-256 of each
    file, by its path in the folder.
    """

    model_config = _STRICT
    format: Literal[3, 4, 5] = FORMAT
    versions: dict[str, str]
    target: str
    cpu_features: tuple[str, ...] = ()
    requires: Requirements = Requirements()
    entries: dict[str, Entry]
    parameters: tuple[TensorSpec, ...]
    kernels: tuple[KernelEntry, ...]
    files: dict[str, str]
    report: dict[str, Any]

    def kernel_files(self, entry: Entry) -> tuple[str, ...]:
        """The files of the kernels that ``entry`` calls."""
        return tuple(kernel.file for kernel in self.kernels) if entry.kernels is None else entry.kernels
