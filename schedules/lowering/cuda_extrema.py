"""Device functions for maxima and minima that are NaN where an operand is: one instruction each from sm_80 on."""

from __future__ import annotations

from tvm import tirx

# The C++ type, and the two operands' extremum where PTX, or CUDA's headers, have one. Doubles have none.
_TYPES = {
    "float32": ("float", 'float r; asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;'),
    "float16": ("half", "return __h{op}_nan(a, b);"),
    "bfloat16": ("nv_bfloat16", "return __h{op}_nan(a, b);"),
    "float64": ("double", "return b != b ? b : (b {relation} a ? b : a);"),
}
_RELATIONS = {"max": ">", "min": "<"}


def cuda_extremum(a: tirx.PrimExpr, b: tirx.PrimExpr, op: str) -> tirx.PrimExpr:
    """The ``op``, ``max`` or ``min``, of two numbers or of two vectors of them, by a device function.

    Raises :class:`KeyError` for a dtype that CUDA does not compute in.
    """
    element, _, lanes = a.dtype.partition("x")
    name = f"tkc_{op}_{element}"
    called = f"{name}_lanes<{lanes}>" if lanes else name
    return tirx.call_intrin(a.dtype, "tirx.cuda_func_call", called, a, b, _source(name, op, element))


def _source(name: str, op: str, dtype: str) -> str:
    """Both functions. TVM writes the source once for each name that is called, so that guards keep one of them."""
    type_, body = _TYPES[dtype]
    return f"""
#ifndef {name.upper()}
#define {name.upper()}
static __device__ __forceinline__ {type_} {name}({type_} a, {type_} b) {{
  {body.format(op=op, relation=_RELATIONS[op])}
}}
template <int lanes, typename Vector>
static __device__ __forceinline__ Vector {name}_lanes(Vector a, Vector b) {{
#pragma unroll
  for (int i = 0; i < lanes; ++i) {{
    reinterpret_cast<{type_}*>(&a)[i] = {name}(reinterpret_cast<{type_}*>(&a)[i], reinterpret_cast<{type_}*>(&b)[i]);
  }}
  return a;
}}
#endif
"""
