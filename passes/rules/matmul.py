"""Matmul with a weight, and its epilogue, to the ``matmul`` kernel.

``activation(a @ weight + bias) + residual``, where bias, activation and residual may each be missing: ``F.linear`` and
what follows it. Whatever else reads the matmul or a step of the epilogue keeps these steps out of the kernel.
"""

from __future__ import annotations

from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import as_matrix, as_vector, kernel_call
from tkc.passes.recognizers.matmul_epilogue import ROOTS, matmul_with_epilogue
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Found | Refusal | None:
    return matmul_with_epilogue(site.graph, site.var)


_LAYOUTS = {"a": as_matrix, "weight": lambda weight: weight, "bias": as_vector, "residual": as_matrix}


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [_LAYOUTS[name](tensor) for name, tensor in found.inputs.items()])


MATMUL = Rule(
    name="matmul",
    kernel="matmul",
    roots=operators(*ROOTS),
    recognize=_recognize,
    call=_call,
    before=("normalization",),
)
