"""The lowering of scheduled functions to code: TVM's own, followed by what TVM would otherwise lose.

Importing this module registers it with TVM under the name :data:`LOWERING`, which builds give as ``tir_pipeline``.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx

from tkc.kernels import reducers
from tkc.schedules.lowering.aligned_vectors import AlignVectors
from tkc.schedules.lowering.data_conditions import without_conditions
from tkc.schedules.lowering.float_algebra import with_guards
from tkc.schedules.lowering.guarded_divisors import GuardDivisors
from tkc.schedules.lowering.held_values import HoldValues
from tkc.schedules.lowering.nan_semantics import NanSemantics
from tkc.schedules.lowering.vector_selections import CompareForSelections
from tkc.schedules.lowering.vector_statements import ScopeVectorStatements
from tkc.schedules.lowering.wrapping_integers import WrapIntegers

LOWERING = "tkc"
"""What ``tir_pipeline`` of ``relax.build`` and ``tvm.compile`` is to be."""

_Finalize = Callable[[], tvm.transform.Pass]


def _lowering() -> tuple[tvm.transform.Pass, _Finalize, _Finalize]:
    passes, *finalize = s_tir.pipeline.default_s_tir_pipeline()
    host, device = (_followed(last) for last in finalize)
    return tvm.transform.Sequential([passes, AlignVectors()]), host, device


def _followed(finalize: _Finalize) -> _Finalize:
    return lambda: tvm.transform.Sequential(
        [
            finalize(),
            GuardDivisors(),
            NanSemantics(),
            HoldValues(),
            WrapIntegers(),
            CompareForSelections(),
            ScopeVectorStatements(),
        ]
    )


def _register_guarded(name: str, combined: reducers.Pairs, identity: Callable[..., reducers.Numbers]) -> None:
    """Have lowering divide a reduction among threads also when its comparisons are guarded."""

    def guarded(x: reducers.Numbers, y: reducers.Numbers) -> list[tirx.PrimExpr]:
        return [without_conditions(with_guards(value)) for value in combined(x, y)]

    reducers.register(f"{name}.guarded", 2, guarded, identity)


for _name, (_combined, _identity) in reducers.POSITIONS.items():
    _register_guarded(_name, _combined, _identity)

tirx.register_tir_pipeline(LOWERING, _lowering)
