"""The lowering of scheduled functions to code: TVM's own, followed by what TVM would otherwise lose.

Importing this module registers it with TVM under the name :data:`LOWERING`, which builds give as ``tir_pipeline``.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx

from tkc.kernels import reducers  # noqa: F401  lowering divides the reductions that this registers among threads
from tkc.schedules.nan_semantics import NanSemantics
from tkc.schedules.stored_variables import StoredVariables

LOWERING = "tkc"
"""What ``tir_pipeline`` of ``relax.build`` and ``tvm.compile`` is to be."""

_Finalize = Callable[[], tvm.transform.Pass]


def _lowering() -> tuple[tvm.transform.Pass, _Finalize, _Finalize]:
    passes, *finalize = s_tir.pipeline.default_s_tir_pipeline()
    host, device = (_followed(last) for last in finalize)
    return passes, host, device


def _followed(finalize: _Finalize) -> _Finalize:
    return lambda: tvm.transform.Sequential([finalize(), NanSemantics(), StoredVariables()])


tirx.register_tir_pipeline(LOWERING, _lowering)
