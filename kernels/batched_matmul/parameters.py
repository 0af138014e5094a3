"""The parameters of a batched matmul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class BatchedMatmulParameters:
    """``a @ b`` of every entry, accumulated in float32 and stored in ``out_dtype`` (``None``: in ``dtype``).

    ``layout`` ``nk`` holds each right operand as ``[n, k]``, ``kn`` as ``[k, n]``. ``n`` and ``k`` are ``None`` where
    only calls know them, as the length of a sequence.
    """

    n: int | None
    k: int | None
    dtype: Literal["float32", "float16", "bfloat16"]
    layout: Literal["nk", "kn"] = "nk"
    out_dtype: Literal["float32", "float16", "bfloat16"] | None = None

    @property
    def stored_dtype(self) -> str:
        """The dtype of the output."""
        return self.out_dtype or self.dtype

    @property
    def strides(self) -> tuple[int | None, int | None]:
        """The elements from one row of each operand to the next; ``None`` where only calls know them."""
        return self.k, self.k if self.layout == "nk" else self.n
