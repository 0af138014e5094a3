"""Functions of float32 for TileLang's C target, written so that a C++ compiler vectorizes the loop around them."""

import functools

import tilelang.language as T
from tvm.tirx import PrimExpr

# The C target prints a constant's first seven digits, so each part of ln(2) that must be exact has fewer.
_LOG2_E = 1.442695
_LN2_HIGH = 0.6875
_LN2_LOW = 0.005647181
# exp(r) for |r| <= ln(2) / 2, from the highest power down: Cephes' expf (Moshier, single precision).
_COEFFICIENTS = (1.987569e-4, 1.398200e-3, 8.333452e-3, 4.166580e-2, 1.666667e-1, 0.5, 1.0, 1.0)


@T.macro
def exp(x: PrimExpr) -> PrimExpr:
    """``e**x`` to a few units in the last place; the C library's ``expf`` would be one call for every number."""
    clamped = T.if_then_else(x > 89.0, T.float32(89.0), T.if_then_else(x < -104.0, T.float32(-104.0), x))
    whole = T.floor(clamped * T.float32(_LOG2_E) + T.float32(0.5))
    rest = clamped - whole * T.float32(_LN2_HIGH) - whole * T.float32(_LN2_LOW)
    exponent = T.cast(whole, "int32")
    half = exponent >> 1  # two factors, since 2**128 and 2**-149 are out of reach for one
    return _polynomial(rest) * _power_of_two(half) * _power_of_two(exponent - half)


def _polynomial(r: PrimExpr) -> PrimExpr:
    return functools.reduce(lambda sum_, coefficient: sum_ * r + T.float32(coefficient), _COEFFICIENTS, T.float32(0.0))


def _power_of_two(exponent: PrimExpr) -> PrimExpr:
    return T.reinterpret((exponent + 127) << 23, "float32")
