"""Reductions that the threads of a block do together, with the bounds of what they write.

TVM 0.25 lowers such a reduction to an exchange among threads, after which one of them writes the result. It leaves out
what the schedule asked of the place: sixteen rows at a time, of which seven are there, are all written. Where it does
not read the conditions of a block it leaves the block as it is, and threads add to one place at once. Neither is an
error to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
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
        for condition in _conjuncts(self.realize.predicate):
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
    asked: defaultdict[str, list[_Reduction]] = defaultdict(list)
    for reduction in _reductions(canonical["main"]):
        asked[reduction.realize.block.name_hint + _WRITE_BACK].append(reduction)
    try:
        lowered = s_tir.transform.LowerCrossThreadReduction()(canonical)["main"]
    except Exception as error:  # of whatever type TVM has for it
        raise UnreducedError(last_line(error)) from error
    written = [realize.block.name_hint for realize in _realizes(lowered)]
    for name, reductions in asked.items():
        if written.count(name) != len(reductions):
            raise UnreducedError(f"TVM does not find a reduction in {name.removesuffix(_WRITE_BACK)}")

    def bounded(realize: tirx.SBlockRealize) -> tirx.SBlockRealize | None:
        reductions = asked.get(realize.block.name_hint)
        bounds = reductions.pop(0).bounds() if reductions else []
        if not bounds:
            return None
        return tirx.SBlockRealize(realize.iter_values, tirx.all(realize.predicate, *bounds), realize.block)

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
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reduced = (value for iterator, value in pairs if iterator.iter_type == tirx.IterVar.CommReduce)
    return frozenset(variable for value in reduced for variable in undefined_vars(value))


def _thread(node: Any) -> tirx.Var | None:
    """The variable along which the threads of a block run, if ``node`` is a loop or a launch of such."""
    if isinstance(node, tirx.For) and node.thread_binding is not None:
        return node.loop_var if str(node.thread_binding.thread_tag).startswith("threadIdx") else None
    if not isinstance(node, tirx.AttrStmt) or not isinstance(node.node, tirx.IterVar):
        return None
    return node.node.var if str(node.node.thread_tag).startswith("threadIdx") else None


def _conjuncts(condition: tirx.PrimExpr) -> Iterator[tirx.PrimExpr]:
    if isinstance(condition, tirx.And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    elif not (isinstance(condition, tirx.IntImm) and condition.value):
        yield condition
