"""Operators that keep random numbers those of PyTorch. Importing this registers them.

``tkc::after`` is a tensor, once numbers that nothing reads are drawn: a compiled model computes what it returns, and
nothing else, and numbers that are drawn later would be other ones. ``tkc::bernoulli`` is ``bernoulli_`` of new memory.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("tkc", "FRAGMENT")
_LIBRARY.define("after(Tensor x, Tensor[] drawn) -> Tensor")
_LIBRARY.define(
    "bernoulli(Tensor x, float p, *, Generator? generator=None) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)


def after(x: torch.Tensor, drawn: list[torch.Tensor]) -> torch.Tensor:
    """``x``."""
    return x.clone()


def bernoulli(x: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """Ones with probability ``p``, and zeros: a tensor like ``x``, filled in the order in which that lies in memory."""
    return torch.empty_like(x).bernoulli_(p, generator=generator)


_LIBRARY.impl("after", after, "CompositeExplicitAutograd")
_LIBRARY.impl("bernoulli", bernoulli, "CompositeExplicitAutograd")
