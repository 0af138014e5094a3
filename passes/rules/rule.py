"""The contract of a substitution rule, and the order that rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from tvm import relax
from tvm.ir import Op

from tkc.kernels import Target
from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.found import Found, KernelCall, Refusal

TUPLE_ITEM = "tuple item"
"""The root of rules that look at what takes one field of a tuple, which is no operator in Relax."""


@dataclass(frozen=True)
class Site:
    """A bound variable at which a rule looks, in its graph, and the target that is compiled for."""

    var: relax.Var
    graph: Graph
    target: Target

    @property
    def root(self) -> relax.Expr:
        """The value bound to :attr:`var`."""
        return self.graph.value(self.var)

    @property
    def kind(self) -> str | None:
        """What rules name among their roots: the root's operator, or :data:`TUPLE_ITEM`."""
        return kind_of(self.root)


def kind_of(value: relax.Expr) -> str | None:
    """What rules name a bound ``value`` by: its operator, or :data:`TUPLE_ITEM`; ``None`` for what no rule looks at."""
    if isinstance(value, relax.TupleGetItem):
        return TUPLE_ITEM
    return value.op.name if isinstance(value, relax.Call) and isinstance(value.op, Op) else None


F = TypeVar("F", bound=Found)


@dataclass(frozen=True)
class Rule(Generic[F]):
    """One subgraph and the kernel that computes it.

    The engine looks where an operator of ``roots`` stands (names with the ``relax.`` prefix, or :data:`TUPLE_ITEM`).
    ``recognize`` returns what it found there, a :class:`Refusal` for a near miss (it goes to the report), or ``None``
    where it only looks alike on the surface. The engine refuses what it found if anything else reads a binding that it
    consumes; ``call`` makes the kernel call of the rest. ``before`` names the rules that must see the graph later.
    """

    name: str
    kernel: str
    roots: frozenset[str]
    recognize: Callable[[Site], F | Refusal | None]
    call: Callable[[F], KernelCall]
    before: tuple[str, ...] = ()


def operators(*names: str) -> frozenset[str]:
    """Operators of Relax by their names without the ``relax.`` prefix."""
    return frozenset(f"relax.{name}" for name in names)


def ordered(rules: Iterable[Rule[Any]]) -> tuple[Rule[Any], ...]:
    """``rules`` in an order that each one's ``before`` asks for; where that leaves it open, in the order given.

    Raises :class:`ValueError` with the names of rules that each want to come before the other, or of an unknown rule.
    """
    table = {rule.name: rule for rule in rules}
    places = {name: place for place, name in enumerate(table)}
    sorter: TopologicalSorter[str] = TopologicalSorter({name: () for name in table})
    for rule in table.values():
        for later in rule.before:
            if later not in table:
                raise ValueError(f"the rule {rule.name!r} is to come before {later!r}, which is not in the table")
            sorter.add(later, rule.name)
    try:
        sorter.prepare()
    except CycleError as error:
        names = " before ".join(map(repr, error.args[1]))
        raise ValueError(f"rules that cannot be ordered: {names}") from None
    ready: list[tuple[int, str]] = []
    result: list[Rule[Any]] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (places[name], name))
        _, name = heappop(ready)
        result.append(table[name])
        sorter.done(name)
    return tuple(result)
