"""Rotary position embedding of queries and keys (Su et al., 2021), which turns pairs of a head's channels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.devices import WARP
from tkc.kernels.rotary.parameters import FloatType as FloatType
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.spec import SERIAL_ON_CPU, KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

VECTOR_BYTES = 16  # the widest load of one thread


@dataclass(frozen=True)
class RotaryConfiguration:
    """``threads`` of one block, and how many blocks' registers must have room on one multiprocessor, ``resident``."""

    threads: int
    resident: int = 1


class Rotary(KernelSpec[RotaryParameters, RotaryConfiguration]):
    """``x`` in its layout, ``cos`` and ``sin [sequence, turned]`` or ``[batch, sequence, turned]``, to ``out``.

    ``out`` is like ``x``. With ``x1`` and ``x2`` for the halves of a head, it is ``x * cos + concat(-x2, x1) * sin``;
    likewise with neighbours, where even channels are ``x1`` and odd ones ``x2``. What does not turn stays. Where heads
    are normalized, ``x`` stands for ``x * rsqrt(mean(x ** 2) + epsilon) * weight``, with ``weight [size]``. ``keys``
    and ``key_weight`` become ``key_out`` in the same way.
    """

    name = "rotary"
    parameters_type = RotaryParameters
    configuration_type = RotaryConfiguration
    dispatch_size = "sequence"
    minor_parameters = frozenset(
        {"layout", "angle_dtype", "shared_angles", "weight", "weight_dtype", "pairs", "turned"}
    )

    def inputs(self, parameters: RotaryParameters) -> tuple[TensorType, ...]:
        """``x``, ``cos`` and ``sin``, then those of ``weight``, ``keys`` and ``key_weight`` that there are."""
        p = parameters
        angles: tuple[int | str, ...] = (
            ("sequence", p.channels) if p.shared_angles else ("batch", "sequence", p.channels)
        )
        angle_dtype, weight_dtype = p.angle_dtype or p.dtype, p.weight_dtype or p.dtype
        has_keys = p.key_heads > 0
        optional = (
            (p.weight, TensorType("weight", (p.size,), weight_dtype)),
            (has_keys, TensorType("keys", _shape(p, p.key_heads), p.dtype)),
            (has_keys and p.weight, TensorType("key_weight", (p.size,), weight_dtype)),
        )
        return (
            TensorType("x", _shape(p, p.heads), p.dtype),
            TensorType("cos", angles, angle_dtype),
            TensorType("sin", angles, angle_dtype),
            *(tensor for present, tensor in optional if present),
        )

    def outputs(self, parameters: RotaryParameters) -> tuple[TensorType, ...]:
        """``out``, and ``key_out`` if there are keys."""
        p = parameters
        out = TensorType("out", _shape(p, p.heads), p.dtype)
        return (out, TensorType("key_out", _shape(p, p.key_heads), p.dtype)) if p.key_heads else (out,)

    def unsupported(self, parameters: RotaryParameters, target: Target) -> str | None:
        """Refuse heads that have no halves, a weight of nothing, and on CUDA heads too large to normalize."""
        p = parameters
        if reason := without_elements(heads=p.heads):
            return reason
        if p.turned is None and (p.size < 2 or p.size % 2):
            return f"a head of {p.size} channels has no halves to turn"
        if p.channels < 2 or p.channels % 2 or p.channels > p.size:
            return f"{p.channels} of {p.size} channels are no pairs to turn"
        if p.epsilon is not None and p.channels < p.size:
            return "heads that are normalized turn as a whole"
        if p.weight and p.epsilon is None:
            return "a weight belongs to heads that are normalized, and there is no epsilon"
        if target.is_cuda and p.epsilon is not None and lanes_per_head(p) > WARP:
            held = f"the {WARP} threads of a warp load {2 * WARP * vector_width(p)} of them"
            return f"a head of {p.size} channels is too large to normalize: {held}"
        return None

    def beneficial(self, parameters: RotaryParameters, target: Target) -> str | None:
        """On the CPU the graph compiler does better."""
        return None if target.is_cuda else SERIAL_ON_CPU

    def configurations(self, parameters: RotaryParameters, target: Target) -> tuple[RotaryConfiguration, ...]:
        """On CUDA, sizes of a block, and registers for more or fewer of them."""
        if not target.is_cuda:
            return (RotaryConfiguration(1),)
        counts = ((128, 8), (256, 4), (512, 2), (128, 10), (256, 5), (128, 1))
        return tuple(RotaryConfiguration(threads, resident) for threads, resident in counts)

    def reduction_order(
        self, parameters: RotaryParameters, configuration: RotaryConfiguration, target: Target
    ) -> Hashable:
        """A head is normalized by as many lanes as its size asks for, in every configuration."""
        return "of the head's size"

    def work(self, parameters: RotaryParameters, sizes: Mapping[str, int]) -> Work:
        """Two multiplications and an addition for each element, and for normalization three operations and a weight."""
        p = parameters
        tensors = (*self.inputs(p), *self.outputs(p))
        elements = sizes["batch"] * sizes["sequence"] * (p.heads + p.key_heads) * p.size
        operations = 3 + 3 * (p.epsilon is not None) + p.weight
        return Work(flops=float(operations * elements), bytes=float(sum(tensor.num_bytes(sizes) for tensor in tensors)))

    def reference(self, parameters: RotaryParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """See :func:`tkc.kernels.rotary.reference.rotary`."""
        from tkc.kernels.rotary.reference import rotary

        return rotary(parameters, *inputs)


def vector_width(parameters: RotaryParameters) -> int:
    """How many values one thread loads at once: as many as fit and divide a head, and half of what turns of it."""
    p = parameters
    return math.gcd(VECTOR_BYTES // (4 if p.dtype == "float32" else 2), p.channels // 2, p.size)


def lanes_per_head(parameters: RotaryParameters) -> int:
    """How many threads share a head, each with a vector of either half.

    Where heads are normalized, threads add up their squares: a power of two of them, of which the last may have none.
    """
    vectors = parameters.channels // 2 // vector_width(parameters)
    return vectors if parameters.epsilon is None else 1 << (vectors - 1).bit_length()


def _shape(p: RotaryParameters, heads: int) -> tuple[int | str, ...]:
    return ("batch", "sequence", heads, p.size) if p.layout == "bshd" else ("batch", heads, "sequence", p.size)
