"""Calls of device functions that are written in CUDA C++."""

from __future__ import annotations

from tvm import tirx


def call_cuda(name: str, type_: str, body: str, a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """A call of the function ``name`` of two numbers ``a`` and ``b``, or of each element of two vectors.

    ``type_`` is the C++ type of the numbers and of the result, ``body`` the function's statements.
    """
    lanes = a.dtype.partition("x")[2]
    called = f"{name}_lanes<{lanes}>" if lanes else name
    return tirx.call_intrin(a.dtype, "tirx.cuda_func_call", called, a, b, _source(name, type_, body))


_VALUE = """
#ifndef TKC_VALUE
#define TKC_VALUE
template <typename T>
static __device__ __forceinline__ T tkc_value(T a) {
  return a;
}
#endif
"""


def cuda_value(a: tirx.PrimExpr) -> tirx.PrimExpr:
    """``a`` as a value: what is at a place is read there and then."""
    return tirx.call_intrin(a.dtype, "tirx.cuda_func_call", "tkc_value", a, _VALUE)


def _source(name: str, type_: str, body: str) -> str:
    """Both functions. TVM writes the source once for each name that is called, so that guards keep one of them."""
    return f"""
#ifndef {name.upper()}
#define {name.upper()}
static __device__ __forceinline__ {type_} {name}({type_} a, {type_} b) {{
  {body}
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
