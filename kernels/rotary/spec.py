"""Rotary position embedding of queries or keys (Su et al., 2021), in the form that turns the halves of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

FloatType = Literal["float32", "float16", "bfloat16"]
VECTOR_BYTES = 16  # the widest load of one thread


@dataclass(frozen=True)
class RotaryParameters:
    """``layout`` is that of the tensor and of the result: ``bshd`` for ``[batch, sequence, heads, size]``, ``bhsd``
    with heads before the sequence. Sequences of a batch have their own angles, or ``shared_angles``. Products and sums
    are float32 and are rounded once.
    """

    heads: int
    size: int
    dtype: FloatType
    layout: Literal["bshd", "bhsd"] = "bshd"
    angle_dtype: FloatType | None = None  # of the cosines and sines; ``None``: dtype
    shared_angles: bool = True


@dataclass(frozen=True)
class RotaryConfiguration:
    """``threads`` of one block."""

    threads: int


class Rotary(KernelSpec[RotaryParameters, RotaryConfiguration]):
    """``x`` in its layout, ``cos`` and ``sin [sequence, size]`` or ``[batch, sequence, size]``, to ``out`` like ``x``.

    With ``x1`` and ``x2`` for the halves of a head, ``out`` is ``x * cos + concat(-x2, x1) * sin``.
    """

    name = "rotary"
    parameters_type = RotaryParameters
    configuration_type = RotaryConfiguration

    def inputs(self, parameters: RotaryParameters) -> tuple[TensorType, ...]:
        """``x``, ``cos`` and ``sin``."""
        p = parameters
        angles: tuple[int | str, ...] = ("sequence", p.size) if p.shared_angles else ("batch", "sequence", p.size)
        angle_dtype = p.angle_dtype or p.dtype
        return (
            TensorType("x", _shape(p), p.dtype),
            TensorType("cos", angles, angle_dtype),
            TensorType("sin", angles, angle_dtype),
        )

    def outputs(self, parameters: RotaryParameters) -> tuple[TensorType, ...]:
        """``out``."""
        return (TensorType("out", _shape(parameters), parameters.dtype),)

    def unsupported(self, parameters: RotaryParameters, target: Target) -> str | None:
        """Refuse heads that have no halves."""
        if parameters.size < 2 or parameters.size % 2:
            return f"a head of {parameters.size} channels has no halves to turn"
        return None

    def beneficial(self, parameters: RotaryParameters, target: Target) -> str | None:
        """On the CPU the graph compiler does better."""
        return None if target.is_cuda else SERIAL_ON_CPU

    def configurations(self, parameters: RotaryParameters, target: Target) -> tuple[RotaryConfiguration, ...]:
        """On CUDA, sizes of a block."""
        if not target.is_cuda:
            return (RotaryConfiguration(1),)
        return tuple(RotaryConfiguration(threads) for threads in (128, 256, 512))

    def work(self, parameters: RotaryParameters, sizes: Mapping[str, int]) -> Work:
        """Two multiplications and an addition for each element."""
        tensors = (*self.inputs(parameters), *self.outputs(parameters))
        elements = sizes["batch"] * sizes["sequence"] * parameters.heads * parameters.size
        return Work(flops=3.0 * elements, bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)))

    def reference(self, parameters: RotaryParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.rotary.reference.rotary`."""
        from tkc.kernels.rotary.reference import rotary

        return (rotary(parameters, *inputs),)


def vector_width(parameters: RotaryParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide half a head."""
    wide = "float32" in (parameters.dtype, parameters.angle_dtype)
    return math.gcd(VECTOR_BYTES // (4 if wide else 2), parameters.size // 2)


def _shape(p: RotaryParameters) -> tuple[int | str, ...]:
    return ("batch", "sequence", p.heads, p.size) if p.layout == "bshd" else ("batch", p.heads, "sequence", p.size)
