"""bfloat16 and FP8 as integers, for TileLang's C target, which has no such types."""

import struct
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import PrimExpr


@dataclass(frozen=True)
class _Format:
    """An FP8 format (OCP 8-bit floating point specification, revision 1.0, table 1)."""

    mantissa_bits: int
    smallest_exponent: int  # of a normal number
    largest: float
    nan: int = 0x7F
    infinity: int | None = None


_FP8 = {"float8_e4m3fn": _Format(3, -6, 448.0), "float8_e5m2": _Format(2, -14, 57344.0, infinity=0x7C)}
_BFLOAT16_NAN = 0x7FC0


def storage_dtype(dtype: str) -> str:
    """The dtype that holds ``dtype``'s bits in the C target: an integer's where that target lacks the type."""
    if dtype in _FP8:
        return "uint8"
    return "uint16" if dtype == "bfloat16" else dtype


def to_float32(stored: PrimExpr, dtype: str) -> PrimExpr:
    """The float32 value of a ``dtype`` in its :func:`storage_dtype`."""
    if dtype in _FP8:
        return _from_fp8(stored, _FP8[dtype])
    if dtype == "bfloat16":
        return T.reinterpret(T.cast(stored, "uint32") << 16, "float32")
    return T.cast(stored, "float32")


def from_float32(x: PrimExpr, dtype: str) -> PrimExpr:
    """``x`` rounded to nearest even, in ``dtype``'s :func:`storage_dtype`; for FP8, no more than its largest number."""
    if dtype in _FP8:
        return _to_fp8(x, _FP8[dtype])
    if dtype != "bfloat16":
        return T.cast(x, dtype)
    rounded = _drop_low_bits(T.reinterpret(x, "uint32"), 16)
    return T.cast(T.if_then_else(T.isnan(x), T.uint32(_BFLOAT16_NAN), rounded), "uint16")


@T.macro
def _to_fp8(x: PrimExpr, to: _Format) -> PrimExpr:
    bits = T.reinterpret(x, "uint32")
    largest = T.uint32(_bits(to.largest))
    magnitude = T.min(bits & T.uint32(0x7FFFFFFF), largest)
    # Normal: shorten the mantissa and change the exponent's bias. Float32's smallest is -126.
    rebias = (126 + to.smallest_exponent) << to.mantissa_bits
    normal = _drop_low_bits(magnitude, 23 - to.mantissa_bits) - T.uint32(rebias)
    # Subnormal: the addition aligns the format's smallest step with float32's last bit, and rounds there.
    aligner = 2.0 ** (23 + to.smallest_exponent - to.mantissa_bits)
    aligned = T.reinterpret(T.reinterpret(magnitude, "float32") + T.float32(aligner), "uint32")
    subnormal = aligned - T.uint32(_bits(aligner))
    is_normal = magnitude >= T.uint32(_bits(2.0**to.smallest_exponent))
    code = T.if_then_else(T.isnan(x), T.uint32(to.nan), T.if_then_else(is_normal, normal, subnormal))
    return T.cast(code | ((bits >> 24) & T.uint32(0x80)), "uint8")


def _from_fp8(stored: PrimExpr, of: _Format) -> PrimExpr:
    code = T.cast(stored, "uint32")
    magnitude = code & T.uint32(0x7F)
    # The exponent's bias changes by a product, which is exact for subnormal numbers too. Float32's smallest is -126.
    scaled = T.reinterpret(magnitude << T.uint32(23 - of.mantissa_bits), "float32")
    value = scaled * T.float32(2.0 ** (126 + of.smallest_exponent))
    finite = T.if_then_else(value > T.float32(of.largest), T.float32(float("nan")), value)
    if of.infinity is not None:
        finite = T.if_then_else(magnitude == T.uint32(of.infinity), T.float32(float("inf")), finite)
    return T.if_then_else(code > T.uint32(0x7F), -finite, finite)


def _drop_low_bits(bits: PrimExpr, count: int) -> PrimExpr:
    """``bits >> count`` rounded to nearest, ties to even."""
    return (bits + T.uint32((1 << (count - 1)) - 1) + ((bits >> count) & T.uint32(1))) >> count


def _bits(x: float) -> int:
    """The bits of ``x`` as a float32."""
    return int.from_bytes(struct.pack("<f", x), "little")
