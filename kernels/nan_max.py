"""The maximum of float32 numbers that is NaN where one of them is, on CUDA: ``T.max`` there returns the other one."""

import tilelang.language as T
from tvm.tirx import PrimExpr

_NAME = "tkc_nan_max"

# One instruction, as the other maximum is; comparisons would be three. It finds the magnitude of an operand, too, where
# both make zero of numbers below 2**-126. (PTX ISA, "max", from sm_80 on.)
NAN_MAX = f"""
#ifndef TKC_NAN_MAX  // one source holds all kernels of a library
#define TKC_NAN_MAX
__device__ __forceinline__ float {_NAME}(float x, float y) {{
  float larger;
  asm("max.ftz.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}}
#endif
"""
"""What a kernel that calls :func:`nan_max` takes as ``prelude``."""


def nan_max(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """The larger one of ``x`` and ``y``, or NaN where one of them is; numbers below 2**-126 are zero."""
    return T.call_pure_extern("float32", _NAME, x, y)
