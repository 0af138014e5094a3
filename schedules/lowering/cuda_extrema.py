"""Device functions for maxima and minima: of floats, NaN where an operand is, one instruction each from sm_80 on.

Those of integers turn the sign bit and compare numbers of the other kind, signed or not
(:mod:`~tkc.schedules.lowering.negated_extrema`).
"""

from __future__ import annotations

from tvm import tirx

from tkc.schedules.lowering.cuda_functions import call_cuda

# The C++ type, and the two operands' extremum where PTX, or CUDA's headers, have one. Doubles have none.
_TYPES = {
    "float32": ("float", 'float r; asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;'),
    "float16": ("half", "return __h{op}_nan(a, b);"),
    "bfloat16": ("nv_bfloat16", "return __h{op}_nan(a, b);"),
    "float64": ("double", "return b != b ? b : (b {relation} a ? b : a);"),
    "int32": ("int", "return (int)({op}((unsigned)a ^ 0x80000000u, (unsigned)b ^ 0x80000000u) ^ 0x80000000u);"),
    "uint32": ("unsigned", "return (unsigned){op}((int)(a ^ 0x80000000u), (int)(b ^ 0x80000000u)) ^ 0x80000000u;"),
}
_RELATIONS = {"max": ">", "min": "<"}


def cuda_extremum(a: tirx.PrimExpr, b: tirx.PrimExpr, op: str) -> tirx.PrimExpr:
    """The ``op``, ``max`` or ``min``, of two numbers or of two vectors of them, by a device function.

    Raises :class:`KeyError` for a dtype that CUDA does not compute in.
    """
    element = a.dtype.partition("x")[0]
    type_, body = _TYPES[element]
    return call_cuda(f"tkc_{op}_{element}", type_, body.format(op=op, relation=_RELATIONS[op]), a, b)
