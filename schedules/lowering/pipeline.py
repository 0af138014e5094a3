"""The lowering of scheduled functions to code: TVM's own, followed by what TVM would otherwise lose.

Importing this module registers it with TVM under the name :data:`LOWERING`, which builds give as ``tir_pipeline``.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx

from tkc.schedules.lowering.aligned_vectors import AlignVectors
from tkc.schedules.lowering.grid_axes import WidenGrids
from tkc.schedules.lowering.guarded_divisors import GuardDivisors
from tkc.schedules.lowering.held_values import HoldValues
from tkc.schedules.lowering.least_literals import LeastLiterals
from tkc.schedules.lowering.nan_semantics import NanSemantics
from tkc.schedules.lowering.negated_extrema import GuardNegatedExtrema
from tkc.schedules.lowering.selected_values import SelectValues
from tkc.schedules.lowering.vector_selections import CompareForSelections
from tkc.schedules.lowering.vector_statements import ScopeVectorStatements
from tkc.schedules.lowering.wrapping_integers import WrapIntegers

LOWERING = "tkc"
"""What ``tir_pipeline`` of ``relax.build`` and ``tvm.compile`` is to be."""

_Finalize = Callable[[], tvm.transform.Pass]


def _lowering() -> tuple[tvm.transform.Pass, _Finalize, _Finalize]:
    passes, *finalize = s_tir.pipeline.default_s_tir_pipeline()
    host, device = (_followed(last) for last in finalize)
    return tvm.transform.Sequential([passes, AlignVectors(), WidenGrids()]), host, device


def _followed(finalize: _Finalize) -> _Finalize:
    return lambda: tvm.transform.Sequential(
        [
            finalize(),
            GuardDivisors(),
            NanSemantics(),
            GuardNegatedExtrema(),
            HoldValues(),
            WrapIntegers(),
            CompareForSelections(),
            SelectValues(),
            ScopeVectorStatements(),
            LeastLiterals(),
        ]
    )


tirx.register_tir_pipeline(LOWERING, _lowering)
