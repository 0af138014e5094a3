"""What a sum over windows reads, for each channel or each group of them, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tvm import arith, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import conditional_loads, is_injective, loads, nodes, same_load, static
from tkc.schedules.rules.thread_code import index
from tkc.schedules.rules.thread_vectors import runs_along

_LEAST_LANES, _MOST_LANES = 2, 8
_MOST_UNROLLED = 16


def iterators(reduction: tirx.SBlock) -> tuple[list[tirx.IterVar], list[tirx.IterVar]]:
    """The spatial iterators of a block, and those over which it reduces."""
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    spatial, reducing = ([i for i in reduction.iter_vars if i.iter_type == kind] for kind in kinds)
    return spatial, reducing


@dataclass(frozen=True)
class Operand:
    """What the reduction reads by vectors: ``load``, along channels, or, if ``grouped``, along those of a group.

    All channels of a vector read the same of a group.
    """

    load: tirx.BufferLoad
    grouped: bool

    def varies_with(self, variable: tirx.Var) -> bool:
        """Whether ``variable`` decides what is read."""
        return any(variable in undefined_vars(place) for place in self.load.indices)


@dataclass(frozen=True)
class Sums:
    """One reduction over ``rows``, a ``window`` of a row, and ``among`` the channels of a group; and what follows.

    ``reduction`` has the iterators of ``result`` in place of its own. ``window`` is the iterator over what positions
    share, if it is short. ``padding`` is the block that surrounds operands with zeros.
    """

    reduction: tirx.BufferStore
    initial: tirx.PrimExpr
    result: tirx.SBlock
    padding: tirx.SBlock | None
    operands: list[Operand]
    rows: list[tirx.IterVar]
    window: tirx.IterVar | None
    among: tirx.IterVar | None
    lanes: int
    group: int
    """How many channels of a group are read at a time."""


def sums_of_windows(block: tirx.SBlock, result: tirx.SBlock, padding: tirx.SBlock | None) -> Sums | None:
    """What is to be written out; ``None`` where the blocks are of other forms."""
    spatial, reducing = iterators(block)
    buffer = block.writes[0].buffer
    (taken,) = (read for read in result.reads if read.buffer.same_as(buffer))
    own = dict(zip(block.body.indices, (part.min for part in taken.region), strict=True))
    if set(own) != {iterator.var for iterator in spatial} or block.init is None:
        return None
    body, initial = substitute(block.body, own), substitute(block.init, own).value
    *_, along, last = [iterator.var for iterator in result.iter_vars]
    if last.dtype != "int64" or (padding is not None and surrounded(padding) is None):
        return None
    operands = _operands(body.value, buffer, last, reducing[-1].var)
    if operands is None:
        return None
    among = reducing.pop() if any(operand.grouped for operand in operands) else None
    short = bool(reducing) and (static(reducing[-1].dom.extent) or 0) <= _MOST_UNROLLED
    window = reducing.pop() if short else None
    lanes = _lanes(operands, result, padding, last)
    group = 1 if among is None else gcd(_MOST_LANES, int(among.dom.extent))
    for operand in operands:
        if operand.grouped:
            group = gcd(group, static(operand.load.buffer.shape[-1]) or 1)
        elif among is not None and operand.varies_with(along) and operand.varies_with(among.var):
            return None
    if lanes < _LEAST_LANES:
        return None
    return Sums(body, initial, result, padding, operands, reducing, window, among, lanes, group)


def _operands(value: tirx.PrimExpr, result: tirx.Buffer, last: tirx.Var, among: tirx.Var) -> list[Operand] | None:
    """What ``value`` loads but for ``result``; ``None`` where that is no vectors."""
    found: list[Operand] = []
    for load, condition in conditional_loads(value):
        if condition is not None:
            return None
        if load.buffer.same_as(result):
            continue
        if not load.indices:
            return None
        *outer, inner = load.indices
        if last in undefined_vars(tirx.tvm_tuple(*outer)) or loads(tirx.tvm_tuple(*load.indices)):
            return None
        first = arith.Analyzer().simplify(inner - among)
        if not inner.same_as(last) and (among in undefined_vars(first) or _channels_together(first, last) is None):
            return None
        if not any(same_load(load, other.load) for other in found):
            found.append(Operand(load, grouped=not inner.same_as(last)))
    return found


def _channels_together(place: tirx.PrimExpr, last: tirx.Var) -> int | None:
    """How many channels that follow each other have the same ``place``; ``None`` where it is not known."""
    quotients = [node for node in nodes(tirx.Evaluate(place)) if isinstance(node, tirx.FloorDiv)]
    divisors = [static(node.b) or 1 for node in quotients if node.a.same_as(last)]
    return None if last in undefined_vars(for_vector(place, last, last, 1)) or not divisors else gcd(*divisors)


def for_vector(place: tirx.PrimExpr, last: tirx.Var, vector: tirx.Var, lanes: int) -> tirx.PrimExpr:
    """``place``, the same for all channels of a vector, by the number of that."""

    def divided_by(node: tirx.FloorDiv) -> tirx.PrimExpr | None:
        return tirx.truncdiv(vector, index(int(node.b) // lanes)) if node.a.same_as(last) else None

    if vector.same_as(last):
        vector = tirx.Var("vector", last.dtype)
    return ir_transform(tirx.Evaluate(place), None, divided_by, ["tirx.FloorDiv"]).value


def surrounded(padding: tirx.SBlock) -> tuple[tirx.PrimExpr, tirx.PrimExpr] | None:
    """Where ``padding`` has an image, as a condition, and that; ``None`` for any other block."""
    store = padding.body
    if not is_injective(padding):
        return None
    variables = [iterator.var for iterator in padding.iter_vars]
    value = store.value
    if not all(map(tirx.Var.same_as, variables, store.indices)) or not isinstance(value, tirx.Select):
        return None
    is_zero = isinstance(value.false_value, tirx.FloatImm) and value.false_value.value == 0
    read = loads(value.true_value)
    if not is_zero or loads(value.condition) or variables[-1] in undefined_vars(value.condition):
        return None
    return (value.condition, value.true_value) if all(runs_along(load, variables[-1]) for load in read) else None


def _lanes(operands: list[Operand], result: tirx.SBlock, padding: tirx.SBlock | None, last: tirx.Var) -> int:
    """How many channels a vector has: all that is moved by vectors has rows of whole ones."""
    moved = [result.body, *(load for load in loads(result.body.value) if runs_along(load, last))]
    moved += [operand.load for operand in operands if not operand.grouped]
    moved += [] if padding is None else loads(padding.body.value)
    lanes = gcd(_MOST_LANES, *((static(access.buffer.shape[-1]) or 1) for access in moved))
    for operand in operands:
        lanes = gcd(lanes, _channels_together(operand.load.indices[-1], last) or 1) if operand.grouped else lanes
    return lanes if runs_along(result.body, last) else 1
