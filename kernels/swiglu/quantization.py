"""The parts of SwiGLU that every form of the kernel has: its tensors, what shares a scale, and the scale."""

from collections.abc import Callable
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.swiglu.parameters import QUANTIZATION_BLOCK, SwiGLUParameters
from tkc.kernels.swiglu.spec import FP8_MAX, SwiGLU
from tkc.kernels.tensor_types import tensor_types


def swiglu_types(p: SwiGLUParameters, storage: Callable[[str], str] = str) -> SimpleNamespace:
    """The types of the kernel's tensors, each dtype as ``storage`` has it; ``None`` for those that there are not."""
    return tensor_types(SwiGLU(), p, ("gate", "up", "gate_up", "scales"), storage)


def tile_shape(p: SwiGLUParameters) -> tuple[int, int]:
    """The tokens and channels that share a scale; a token's channels where nothing has one."""
    tokens = QUANTIZATION_BLOCK if p.scale == "block" else 1
    return tokens, QUANTIZATION_BLOCK if p.scale in ("group", "block") else p.channels


def _maximum(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """The larger one, or ``x`` where that is NaN."""
    return T.if_then_else(x < y, y, x)


def scale_of(
    p: SwiGLUParameters, amax: PrimExpr, maximum: Callable[[PrimExpr, PrimExpr], PrimExpr] = _maximum
) -> PrimExpr:
    """The scale for values of at most ``amax`` in magnitude; NaN for NaN, which ``maximum`` must keep."""
    scale = maximum(amax, T.float32(p.minimum_amax)) / T.float32(FP8_MAX[p.quantized_dtype])
    if not p.power_of_two_scales:
        return scale
    # Anything in the mantissa carries into the exponent, which for NaN would overflow.
    rounded = T.reinterpret((T.reinterpret(scale, "uint32") + T.uint32(0x7FFFFF)) & T.uint32(0xFF800000), "float32")
    return T.if_then_else(T.isnan(amax), amax, rounded)
