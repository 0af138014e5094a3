"""The parameters of ordering token copies by their expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MoePermuteParameters:
    """``num_experts`` bounds the ids; ``indices_dtype`` is that of the ids and of the orders.

    ``top_k`` copies in a row belong to one token, and it is returned which; ``None``: that is not asked.
    """

    num_experts: int
    indices_dtype: Literal["int32", "int64"] = "int64"
    top_k: int | None = None
