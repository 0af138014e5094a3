"""The parameters of a grouped matmul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GroupedMatmulParameters:
    """``weight_layout`` ``gnk`` holds each group's weight as ``[n, k]``, ``gkn`` as ``[k, n]``.

    ``gated`` names the activation of a gated product, as :class:`~tkc.kernels.gated_matmul.spec.GatedMatmulParameters`
    has it: each group has two weights of ``n`` columns, in one tensor of ``2 * n``, the gate's first. ``rows`` is the
    dtype of the row numbers where ``a``'s rows are gathered: a row of the product takes the one of its number.
    """

    groups: int
    n: int
    k: int
    dtype: Literal["float32", "float16", "bfloat16"]
    weight_layout: Literal["gnk", "gkn"] = "gnk"
    gated: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = None
    rows: Literal["int32", "int64"] | None = None

    @property
    def weight_columns(self) -> int:
        """The columns of each group's weight."""
        return self.n if self.gated is None else 2 * self.n

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        """The shape of all groups' weights."""
        n = self.weight_columns
        return (self.groups, n, self.k) if self.weight_layout == "gnk" else (self.groups, self.k, n)
