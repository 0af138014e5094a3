"""An operator ``tkc::after``: a tensor, once random numbers that nothing reads are drawn. Importing this registers it.

A compiled model computes what it returns, and nothing else; numbers that are drawn later would be other ones.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("tkc", "FRAGMENT")
_LIBRARY.define("after(Tensor x, Tensor[] drawn) -> Tensor")


def after(x: torch.Tensor, drawn: list[torch.Tensor]) -> torch.Tensor:
    """``x``."""
    return x.clone()


_LIBRARY.impl("after", after, "CompositeExplicitAutograd")
