"""The parameters of a matmul with an epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, Literal


@dataclass(frozen=True)
class BatchNorm:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift``, of four vectors ``[n]`` of the same ``dtype``."""

    dtype: Literal["float32", "float16", "bfloat16"]
    epsilon: float

    VECTORS: ClassVar[tuple[str, ...]] = ("mean", "variance", "scale", "shift")


@dataclass(frozen=True)
class MatmulParameters:
    """``activation(a @ b + bias) + residual``, accumulated in float32. ``gelu`` is the exact one (erf).

    ``residual`` has the output's dtype: ``out_dtype``, or ``dtype`` where that is ``None``. ``outputs`` lists the
    columns of several outputs, which stand side by side in ``b`` (query, key and value); none: there is one.
    """

    n: int
    k: int
    dtype: Literal["float32", "float16", "bfloat16"]
    weight_layout: Literal["nk", "kn"] = "nk"
    out_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    bias: bool = False
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = None
    residual: bool = False
    outputs: tuple[int, ...] = ()

    @property
    def stored_dtype(self) -> str:
        """The dtype of the outputs and of a residual."""
        return self.out_dtype or self.dtype

    @property
    def strides(self) -> tuple[int, int]:
        """The elements from one row of each operand to the next."""
        return self.k, self.k if self.weight_layout == "nk" else self.n

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Where each output's columns begin and end."""
        return tuple(pairwise(accumulate(self.outputs or (self.n,), initial=0)))
