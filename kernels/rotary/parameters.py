"""The parameters of rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FloatType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class RotaryParameters:
    """``layout`` is that of the tensors and of the results: ``bshd`` for ``[batch, sequence, heads, size]``, ``bhsd``
    with heads before the sequence. Sequences of a batch have their own angles, or ``shared_angles``.

    ``pairs`` says which two channels turn together: a channel of the first half with the one in its place in the
    second, or ``neighbours``, an even one with the next. Only the first ``turned`` channels of each head turn (all,
    where it is ``None``); the others stay, as they come.

    ``key_heads`` are those of a second tensor, which is turned by the same angles; 0 for none. With an ``epsilon``,
    each head is first divided by the root of its mean square plus that (Zhang and Sennrich, 2019) and, if there is a
    ``weight``, multiplied by it; keys have a weight of their own. Everything is computed in float32 and rounded once,
    to ``dtype``: what is normalized is not rounded before it is turned.
    """

    heads: int
    size: int
    dtype: FloatType
    layout: Literal["bshd", "bhsd"] = "bshd"
    angle_dtype: FloatType | None = None  # of the cosines and sines; ``None``: dtype
    shared_angles: bool = True
    key_heads: int = 0
    epsilon: float | None = None
    weight: bool = False
    weight_dtype: FloatType | None = None  # ``None``: dtype
    pairs: Literal["halves", "neighbours"] = "halves"
    turned: int | None = None  # ``None``: size

    @property
    def channels(self) -> int:
        """How many channels of a head turn, from the first on."""
        return self.size if self.turned is None else self.turned
