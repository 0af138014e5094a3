"""The parts of SwiGLU that every form of the kernel has: its tensors, what shares a scale, and the scale."""

from collections.abc import Callable
from types import SimpleNamespace

from tvm.tirx import PrimExpr

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.fp8_scales import fp8_scale, larger_or_nan
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.spec import SwiGLU
from tkc.kernels.tensor_types import tensor_types


def swiglu_types(p: SwiGLUParameters, storage: Callable[[str], str] = str) -> SimpleNamespace:
    """The types of the kernel's tensors, each dtype as ``storage`` has it; ``None`` for those that there are not."""
    return tensor_types(SwiGLU(), p, ("gate", "up", "gate_up", "scales"), storage)


def tile_shape(p: SwiGLUParameters) -> tuple[int, int]:
    """The tokens and channels that share a scale; a token's channels where nothing has one."""
    tokens = QUANTIZATION_BLOCK if p.scale == "block" else 1
    return tokens, QUANTIZATION_BLOCK if p.scale in ("group", "block") else p.channels


def scale_of(
    p: SwiGLUParameters, amax: PrimExpr, maximum: Callable[[PrimExpr, PrimExpr], PrimExpr] = larger_or_nan
) -> PrimExpr:
    """The scale for values of at most ``amax`` in magnitude; NaN for NaN, which ``maximum`` must keep."""
    return fp8_scale(amax, p.quantized_dtype, p.minimum_amax, p.power_of_two_scales, maximum)
