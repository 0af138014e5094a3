"""The scale of values that are quantized to FP8, in TileLang."""

from collections.abc import Callable

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.fp8 import FP8_MAX, Fp8


def larger_or_nan(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """The larger one, or ``x`` where that is NaN."""
    return T.if_then_else(x < y, y, x)


def fp8_scale(
    amax: PrimExpr,
    quantized_dtype: Fp8,
    minimum_amax: float,
    power_of_two: bool,
    maximum: Callable[[PrimExpr, PrimExpr], PrimExpr] = larger_or_nan,
) -> PrimExpr:
    """The float32 scale for values of at most ``amax`` in magnitude: the larger one of that and ``minimum_amax``,
    divided by the format's largest number, and rounded up to a ``power_of_two`` if so asked.

    NaN for NaN, which ``maximum`` must keep.
    """
    scale = maximum(amax, T.float32(minimum_amax)) / T.float32(FP8_MAX[quantized_dtype])
    if not power_of_two:
        return scale
    # Anything in the mantissa carries into the exponent, which for NaN would overflow.
    rounded = T.reinterpret((T.reinterpret(scale, "uint32") + T.uint32(0x7FFFFF)) & T.uint32(0xFF800000), "float32")
    return T.if_then_else(T.isnan(amax), amax, rounded)
