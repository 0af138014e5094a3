"""The tensor instructions that MetaSchedule's spaces name, registered for one kind of target."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from tkc.kernels.target import Target

_PACKAGE = "tvm.s_tir.tensor_intrin"


def register(target: Target) -> None:
    """Register the instructions of ``target``.

    TVM parses those of every target when it imports their package, for half a minute, so this takes the package's
    place before that happens.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        assert spec is not None
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    importlib.import_module(f"{_PACKAGE}.{'cuda' if target.is_cuda else 'x86'}")
