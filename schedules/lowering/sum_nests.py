"""Loop nests that add to sums: what they add, in which loops, and to which sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import substitute

from tkc.schedules.blocks import bound_values, conjuncts, nodes, static

_ONE_BY_ONE = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


@dataclass(frozen=True)
class SumNest:
    """A block that adds to sums, and the loops around it from the outermost over what it adds."""

    loops: tuple[tirx.For, ...]
    realize: tirx.SBlockRealize

    @property
    def store(self) -> tirx.BufferStore:
        """The addition."""
        return self.realize.block.body

    @cached_property
    def reducing(self) -> list[tirx.For]:
        """The loops over what is added."""
        added = _variables(bound_values(self.realize, reducing=True))
        return [loop for loop in self.loops if loop.loop_var in added]

    @cached_property
    def spatial(self) -> list[tirx.For]:
        """The loops over sums."""
        added = _variables(bound_values(self.realize, reducing=True))
        return [loop for loop in self.loops if loop.loop_var not in added]

    @cached_property
    def indices(self) -> list[tirx.PrimExpr]:
        """Where the sums are, by the loops."""
        pairs = zip(self.realize.block.iter_vars, self.realize.iter_values, strict=True)
        bound = {iterator.var: value for iterator, value in pairs}
        return [substitute(index, bound) for index in self.store.indices]

    @cached_property
    def predicate(self) -> tirx.PrimExpr:
        """Which sums there are, of those that the loops run over."""
        reducing = {loop.loop_var for loop in self.reducing}
        parts = [part for part in conjuncts(self.realize.predicate) if not reducing & _variables([part])]
        return tirx.all(*parts) if parts else tirx.const(True, "bool")

    def is_perfect(self) -> bool:
        """Whether the loops do nothing else."""
        return all(inner.same_as(outer.body) for outer, inner in pairwise([*self.loops, self.realize]))


def sum_nest(outermost: tirx.For) -> SumNest | None:
    """The nest of which this is the outermost loop over what is added; ``None`` if it adds to no sums of float32.

    Nothing else in the loops touches the sums, and the order of the additions is that of the loops.
    """
    summing = _reducing_over(outermost)
    if len(summing) != 1:
        return None
    (nest,) = summing
    return nest if _adds(nest.realize.block) and _loops_are_simple(nest) and _is_alone(nest) else None


def adds_in(loop: tirx.For) -> bool:
    """Whether there is a block of which this loop runs over what is added to sums of float32."""
    return any(_adds(nest.realize.block) for nest in _reducing_over(loop))


def known_product(loops: list[tirx.For]) -> int | None:
    """How many iterations loops have together, if that is known."""
    extents = [static(loop.extent) for loop in loops]
    return None if None in extents else prod(extent or 0 for extent in extents)


def _reducing_over(loop: tirx.For) -> list[SumNest]:
    found = [SumNest(loops, realize) for loops, realize in _blocks(loop)]
    return [nest for nest in found if any(loop.same_as(other) for other in nest.reducing)]


def _blocks(
    statement: tirx.Stmt, around: tuple[tirx.For, ...] = ()
) -> Iterator[tuple[tuple[tirx.For, ...], tirx.SBlockRealize]]:
    """The blocks in loops and sequences, each with the loops around it."""
    if isinstance(statement, tirx.For):
        yield from _blocks(statement.body, (*around, statement))
    elif isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _blocks(part, around)
    elif isinstance(statement, tirx.SBlockRealize):
        yield around, statement


def _variables(expressions: list[tirx.PrimExpr]) -> set[tirx.Var]:
    return {variable for expression in expressions for variable in undefined_vars(expression)}


def _adds(block: tirx.SBlock) -> bool:
    """Whether ``block`` adds one number to one element of float32, which starts from a value."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and store.buffer.dtype == "float32"
        and isinstance(store.value, tirx.Add)
        and any(_is_load_of(store, operand) for operand in (store.value.a, store.value.b))
        and (block.init is None or isinstance(block.init, tirx.BufferStore))
    )


def _is_load_of(store: tirx.BufferStore, operand: tirx.PrimExpr) -> bool:
    return (
        isinstance(operand, tirx.BufferLoad)
        and operand.buffer.same_as(store.buffer)
        and all(map(tirx.analysis.expr_deep_equal, operand.indices, store.indices))
    )


def _loops_are_simple(nest: SumNest) -> bool:
    """Whether each loop runs over sums or over what is added, one after the other, and as often for all of them."""
    own = {loop.loop_var for loop in nest.loops}
    reducing = {loop.loop_var for loop in nest.reducing}
    ends = [nest.indices, bound_values(nest.realize, reducing=False)]
    if any(reducing & _variables(list(end)) for end in ends):
        return False
    for condition in conjuncts(nest.realize.predicate):
        if reducing & _variables([condition]) and (own - reducing) & _variables([condition]):
            return False
    # An outer loop over what is added, which is none of these, would start the sums, or divide them among threads.
    added = bound_values(nest.realize, reducing=True)
    if nest.realize.block.init is not None and not _variables(added) <= own:
        return False
    return all(
        loop.kind in _ONE_BY_ONE
        and static(loop.min) == 0
        and not own & _variables([loop.extent])
        and not (loop.loop_var in reducing and loop.kind == tirx.ForKind.VECTORIZED)
        for loop in nest.loops
    )


def _is_alone(nest: SumNest) -> bool:
    """Whether nothing else in the loops touches the sums."""
    accesses = [
        node
        for node in nodes(nest.loops[0])
        if isinstance(node, tirx.BufferLoad | tirx.BufferStore) and node.buffer.same_as(nest.store.buffer)
    ]
    return len(accesses) == (2 if nest.realize.block.init is None else 3)
