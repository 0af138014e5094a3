"""What recognizers, rules and the engine hand on: what was found, why it was refused, the kernel call it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, tirx

Restore = Callable[[Sequence[relax.Expr]], relax.Expr]
"""From a kernel's outputs to the value of one variable that the call replaces (a reshape back, a cast)."""


@dataclass(frozen=True)
class Found:
    """A subgraph that one kernel computes.

    ``inputs`` are what the kernel reads, by name: tensors of the graph, or expressions over them. ``replaces`` has each
    bound variable that the kernel computes, and which of the kernel's outputs that is. ``consumed`` are the bindings in
    between that must vanish when the call is written: if anything else reads one of them, the match is refused. A
    binding that may just as well be computed twice is not listed. ``sizes`` gives those run-time sizes of the kernel
    that no input shows.
    """

    parameters: Any
    inputs: Mapping[str, relax.Expr]
    replaces: Mapping[relax.Var, int]
    consumed: frozenset[relax.Var] = frozenset()
    sizes: Mapping[str, tirx.PrimExpr] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Why a near miss keeps its ordinary operators, as a clause a user can read."""

    reason: str


@dataclass(frozen=True)
class KernelCall:
    """A call of a rule's kernel.

    ``inputs`` may be new expressions over the graph's variables (a reshape to two dimensions). ``replaces`` has an
    entry for each bound variable that the call computes. ``sizes`` gives those run-time sizes of the kernel that no
    input shows.
    """

    parameters: Any
    inputs: tuple[relax.Expr, ...]
    replaces: Mapping[relax.Var, Restore]
    sizes: Mapping[str, tirx.PrimExpr] = field(default_factory=dict)
