"""Reductions that the threads of a block do together, with the bounds of what they write.

TVM 0.25 lowers such a reduction to an exchange among threads, after which one of them writes the result. It leaves out
what the schedule asked of the place: sixteen rows at a time, of which seven are there, are all written. Where it does
not read the conditions of a block it leaves the block as it is, and threads add to one place at once. Neither is an
error to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform

from tkc.kernels import reducers
from tkc.schedules.blocks import bound_values, conjuncts, nodes, thread_tag
from tkc.schedules.lowering.data_conditions import without_conditions
from tkc.schedules.lowering.float_algebra import with_guards
from tkc.schedules.refusals import last_line

_WRITE_BACK = "_write_back"  # what TVM appends to the name of a block


class UnreducedError(ValueError):
    """Threads cannot reduce together as a schedule asks."""


@dataclass(frozen=True)
class _Reduction:
    """A block along whose reduction threads run, with the variables of the loops that it reduces over, ``steps``, and
    of those that decide the place, ``others``."""

    realize: tirx.SBlockRealize
    steps: frozenset[tirx.Var]
    others: frozenset[tirx.Var]

    def bounds(self) -> list[tirx.PrimExpr]:
        """What has to hold of the place that the block writes. Raises where it is not apart from what is reduced."""
        bounds = []
        for condition in conjuncts(self.realize.predicate):
            used = set(undefined_vars(condition))
            if not used & self.steps:
                bounds.append(condition)
            elif used & self.others:
                raise UnreducedError(f"a condition is about what is written and what is reduced: {condition}")
        return bounds


def reduce_among_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, scheduled for a GPU, with its reductions among threads lowered.

    Raises :class:`UnreducedError` where TVM cannot.
    """
    if not any(True for _ in _reductions(func)):
        return func
    canonical = s_tir.transform.CanonicalizeLoop()(tvm.IRModule({"main": func}))
    bounds: defaultdict[str, list[list[tirx.PrimExpr]]] = defaultdict(list)
    for reduction in _reductions(canonical["main"]):
        bounds[reduction.realize.block.name_hint + _WRITE_BACK].append(reduction.bounds())
    try:
        lowered = s_tir.transform.LowerCrossThreadReduction()(canonical)["main"]
    except Exception as error:  # of whatever type TVM has for it
        raise UnreducedError(last_line(error)) from error
    written = [realize.block.name_hint for realize in _realizes(lowered)]
    for name, asked in bounds.items():
        if written.count(name) != len(asked):
            raise UnreducedError(f"TVM does not find a reduction in {name.removesuffix(_WRITE_BACK)}")

    def bounded(realize: tirx.SBlockRealize) -> tirx.SBlockRealize | None:
        if not (asked := bounds.get(realize.block.name_hint)):
            return None
        return tirx.SBlockRealize(realize.iter_values, tirx.all(realize.predicate, *asked.pop(0)), realize.block)

    return lowered.with_body(ir_transform(lowered.body, None, bounded, ["tirx.SBlockRealize"]))


def _reductions(func: tirx.PrimFunc) -> Iterator[_Reduction]:
    """The blocks of ``func`` that reduce among threads, in program order."""
    threads: defaultdict[tirx.SBlockRealize, set[tirx.Var]] = defaultdict(set)
    for loop in nodes(func.body):
        variable = _thread(loop)
        for realize in () if variable is None else _realizes(loop):
            threads[realize].add(variable)
    loops = frozenset(node.loop_var for node in nodes(func.body) if isinstance(node, tirx.For))
    for realize in _realizes(func):
        steps = _steps(realize)
        if not steps & threads[realize]:
            continue
        if realize.block.init is not None:
            yield _Reduction(realize, steps, (loops | threads[realize]) - steps)
        elif any(write.buffer.scope() != "local" for write in realize.block.writes):
            raise UnreducedError(f"threads add to one place in {realize.block.name_hint}, which begins elsewhere")


def _realizes(node: Any) -> list[tirx.SBlockRealize]:
    body = node.body if isinstance(node, tirx.PrimFunc) else node
    return [each for each in nodes(body) if isinstance(each, tirx.SBlockRealize)]


def _steps(realize: tirx.SBlockRealize) -> frozenset[tirx.Var]:
    """The variables that decide what a block adds to a place."""
    values = bound_values(realize, reducing=True)
    return frozenset(variable for value in values for variable in undefined_vars(value))


def _thread(node: Any) -> tirx.Var | None:
    """The variable along which the threads of a block run, if ``node`` is a loop or a launch of such."""
    if not (thread_tag(node) or "").startswith("threadIdx"):
        return None
    return node.loop_var if isinstance(node, tirx.For) else node.node.var


def _register_guarded(name: str, combined: reducers.Pairs, identity: Callable[..., reducers.Numbers]) -> None:
    """Have TVM divide a reduction among threads also when its comparisons are guarded."""

    def guarded(x: reducers.Numbers, y: reducers.Numbers) -> list[tirx.PrimExpr]:
        return [without_conditions(with_guards(value)) for value in combined(x, y)]

    reducers.register(f"{name}.guarded", 2, guarded, identity)


for _name, (_combined, _identity) in reducers.POSITIONS.items():
    _register_guarded(_name, _combined, _identity)
