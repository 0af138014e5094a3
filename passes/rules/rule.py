"""The contract of a substitution rule: a pattern, a check, and the kernel call or the refusal the check returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, get_args

from tvm import IRModule, relax, tirx
from tvm.relax.dpl import DFPattern

from tkc.kernels import Target
from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.matching import matched

KernelFloat = Literal["float32", "float16", "bfloat16"]

Restore = Callable[[Sequence[relax.Expr]], relax.Expr]
"""From a kernel's outputs to the value of one variable that the call replaces (a reshape back, a cast)."""


@dataclass(frozen=True)
class Match:
    """Where a rule's pattern was found: the root's variable and each named part that took part.

    Parts are variables, or constants, as the graph holds them; a name whose optional part did not match is absent.
    """

    var: relax.Var
    parts: Mapping[str, relax.Expr]
    graph: Graph
    target: Target

    @property
    def root(self) -> relax.Expr:
        """The value bound to :attr:`var`."""
        return self.graph.value(self.var)

    @property
    def module(self) -> IRModule:
        """The module that holds the function."""
        return self.graph.module

    def __getitem__(self, name: str) -> relax.Expr:
        return self.parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self.parts


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


@dataclass(frozen=True)
class Refusal:
    """Why a near miss keeps its ordinary operators, as a clause a user can read."""

    reason: str


def is_kernel_float(name: str) -> TypeGuard[KernelFloat]:
    """Whether kernels compute on tensors of the dtype ``name``."""
    return name in get_args(KernelFloat)


def unfit_dtype(name: str) -> Refusal:
    """The refusal of floating-point tensors that no kernel takes."""
    return Refusal(f"it computes in {name}, and the kernel in {', '.join(get_args(KernelFloat))}")


@dataclass(frozen=True)
class Rule:
    """``pattern``, rooted at the value to replace, and what becomes of its matches.

    ``parts`` names the sub-patterns that ``check`` wants to see. ``check`` returns the call, a :class:`Refusal` for a
    near miss (it goes to the report), or ``None`` where the match only looks alike on the surface.
    """

    name: str
    kernel: str
    pattern: DFPattern
    parts: Mapping[str, DFPattern]
    check: Callable[[Match], KernelCall | Refusal | None]

    def match(self, var: relax.Var, graph: Graph, target: Target) -> Match | None:
        """The match rooted at ``var``, a bound variable of ``graph``; ``None`` where the pattern is not there."""
        found = matched(graph, self.pattern, var)
        if found is None:
            return None
        parts = {name: found[part] for name, part in self.parts.items() if part in found}
        return Match(var, parts, graph, target)
