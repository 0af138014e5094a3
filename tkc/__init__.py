"""TKC compiles whole models, PyTorch or ONNX, into one executable with TileLang kernels inside.

``compile`` makes an :class:`Executable`, ``load`` reads a saved one, ``explain`` reports what a compilation would do,
``tune`` searches faster schedules for the functions that no kernel replaces. ``converter`` and ``onnx_converter`` add
operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tkc.errors import (
    ArtifactError,
    CacheError,
    Error,
    ForkError,
    IndexInputError,
    InputError,
    InternalError,
    KernelBuildError,
    OperatorError,
    OutOfMemoryError,
    TargetError,
    TuningStoppedError,
    UnsupportedModelError,
    UsageError,
    ValueInputError,
)

if TYPE_CHECKING:
    from tkc.api import compile, debug, explain, load, tune
    from tkc.frontend.entries import Entry
    from tkc.frontend.onnx.registration import onnx_converter
    from tkc.frontend.torch.registration import converter
    from tkc.runtime.executable import Executable
    from tkc.runtime.profiling.profile import Profile
    from tkc.runtime.program import Program
    from tkc.runtime.report import ProgramReport, Report
    from tkc.tuning.functions import TuningResult

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CacheError",
    "Entry",
    "Error",
    "Executable",
    "ForkError",
    "IndexInputError",
    "InputError",
    "InternalError",
    "KernelBuildError",
    "OperatorError",
    "OutOfMemoryError",
    "Profile",
    "Program",
    "ProgramReport",
    "Report",
    "TargetError",
    "TuningResult",
    "TuningStoppedError",
    "UnsupportedModelError",
    "UsageError",
    "ValueInputError",
    "compile",
    "converter",
    "debug",
    "explain",
    "load",
    "onnx_converter",
    "tune",
]

_HOMES = {
    "Entry": "tkc.frontend.entries",
    "Executable": "tkc.runtime.executable",
    "Profile": "tkc.runtime.profiling.profile",
    "Program": "tkc.runtime.program",
    "ProgramReport": "tkc.runtime.report",
    "Report": "tkc.runtime.report",
    "compile": "tkc.api",
    "explain": "tkc.api",
    "load": "tkc.api",
    "TuningResult": "tkc.tuning.functions",
    "converter": "tkc.frontend.torch.registration",
    "debug": "tkc.api",
    "onnx_converter": "tkc.frontend.onnx.registration",
    "tune": "tkc.api",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the builder processes import `tkc`, too, and must never load TVM.
    if name not in _HOMES:
        raise AttributeError(f"module 'tkc' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
