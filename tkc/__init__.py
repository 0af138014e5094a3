"""TKC compiles whole models, PyTorch or ONNX, into one executable with TileLang kernels inside.

``compile`` makes an :class:`Executable`, ``load`` reads a saved one, ``explain`` reports what a compilation would do,
``tune`` searches faster schedules for the functions that no kernel replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tkc.errors import (
    ArtifactError,
    CacheError,
    Error,
    ForkError,
    InputError,
    InternalError,
    KernelBuildError,
    OutOfMemoryError,
    TargetError,
    TuningStoppedError,
    UnsupportedModelError,
    UsageError,
)

if TYPE_CHECKING:
    from tkc.compiler import compile, explain
    from tkc.diagnosis.debugging import debug
    from tkc.runtime.executable import Executable, load
    from tkc.runtime.report import Report
    from tkc.tuning.functions import TuningResult, tune

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CacheError",
    "Error",
    "Executable",
    "ForkError",
    "InputError",
    "InternalError",
    "KernelBuildError",
    "OutOfMemoryError",
    "Report",
    "TargetError",
    "TuningResult",
    "TuningStoppedError",
    "UnsupportedModelError",
    "UsageError",
    "compile",
    "debug",
    "explain",
    "load",
    "tune",
]

_HOMES = {
    "Executable": "tkc.runtime.executable",
    "Report": "tkc.runtime.report",
    "compile": "tkc.compiler",
    "explain": "tkc.compiler",
    "load": "tkc.runtime.executable",
    "TuningResult": "tkc.tuning.functions",
    "debug": "tkc.diagnosis.debugging",
    "tune": "tkc.tuning.functions",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the builder processes import `tkc`, too, and must never load TVM.
    if name not in _HOMES:
        raise AttributeError(f"module 'tkc' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
