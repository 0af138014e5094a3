"""Parts of an imported model that compile by themselves: the smallest that shows a failure is looked for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import GLOBAL_SYMBOL, MAIN, NUM_INPUT


@dataclass(frozen=True)
class Segment:
    """The bindings of ``module``'s graph from ``start`` up to ``stop``."""

    module: tvm.IRModule
    start: int
    stop: int

    @property
    def variables(self) -> list[relax.Var]:
        """What is bound in it, in order."""
        return [binding.var for _, binding in _bindings(self.module)[self.start : self.stop]]

    def alone(self) -> tvm.IRModule:
        """A module that computes it, from whatever it reads to whatever is read of it."""
        every = _bindings(self.module)
        inside, behind = every[self.start : self.stop], every[self.stop :]
        blocks = [
            _block([binding for _, binding in run], dataflow=dataflow)
            for dataflow, run in itertools.groupby(inside, key=lambda item: item[0])
        ]
        read = relax.analysis.free_vars(relax.SeqExpr(blocks, relax.Tuple([])))
        later = {used for _, binding in behind for used in relax.analysis.all_vars(binding.value)}
        later.update(relax.analysis.all_vars(self.module[MAIN].body.body))
        used = {variable for _, binding in inside for variable in relax.analysis.all_vars(binding.value)}
        results = [b.var for _, b in inside if b.var in later or b.var not in used]
        taken = {variable: relax.Var(f"in_{i}", variable.struct_info) for i, variable in enumerate(read)}
        entry = [relax.VarBinding(variable, parameter) for variable, parameter in taken.items()]
        result = relax.Var("results", relax.TupleStructInfo([variable.struct_info for variable in results]))
        last = relax.VarBinding(result, relax.Tuple(results))
        # Variables of dataflow cannot be parameters: each is bound to one, which the canonical form leaves out again.
        blocks = [_block(entry, dataflow=False), *blocks] if blocks and not inside[0][0] else _behind(entry, blocks)
        blocks = _before(blocks, last)
        parameters = list(taken.values())
        function = _function(parameters, blocks, result)
        if sizes := list(relax.analysis.free_symbolic_vars(function)):
            parameters.append(relax.Var("sizes", relax.ShapeStructInfo(sizes)))
            function = _function(parameters, blocks, result)
        module = self.module.clone()
        module[MAIN] = function.with_attrs({GLOBAL_SYMBOL: MAIN, NUM_INPUT: len(parameters)})
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination([MAIN])]
        return tvm.transform.Sequential(passes)(module)


def whole(module: tvm.IRModule) -> Segment:
    """All bindings of ``module``."""
    return Segment(module, 0, len(_bindings(module)))


def narrowed(segment: Segment, fails: Callable[[Segment], bool], seconds: float) -> Segment:
    """The smallest part of ``segment``, which fails, found to fail by itself within ``seconds``.

    Halves are tried first, which takes about as long as compiling ``segment`` once; where none fails by itself, the
    end is moved forward, then the start.
    """
    deadline = time.monotonic() + seconds

    def still_fails(start: int, stop: int) -> bool:
        return time.monotonic() < deadline and fails(Segment(segment.module, start, stop))

    start, stop = segment.start, segment.stop
    while stop - start > 1:
        middle = (start + stop) // 2
        if still_fails(start, middle):
            stop = middle
        elif still_fails(middle, stop):
            start = middle
        else:
            break
    low = start
    while stop - low > 1:
        middle = (low + stop) // 2
        low, stop = (low, middle) if still_fails(start, middle) else (middle, stop)
    high = stop
    while high - start > 1:
        middle = (start + high) // 2
        start, high = (middle, high) if still_fails(middle, stop) else (start, middle)
    return Segment(segment.module, start, stop)


def _bindings(module: tvm.IRModule) -> list[tuple[bool, relax.Binding]]:
    """The bindings of ``main`` in order, each with whether it is dataflow."""
    return [
        (isinstance(block, relax.DataflowBlock), binding)
        for block in module[MAIN].body.blocks
        for binding in block.bindings
    ]


def _block(bindings: Sequence[relax.Binding], *, dataflow: bool) -> relax.BindingBlock:
    return relax.DataflowBlock(bindings) if dataflow else relax.BindingBlock(bindings)


def _behind(entry: Sequence[relax.Binding], blocks: Sequence[relax.BindingBlock]) -> list[relax.BindingBlock]:
    first, *others = blocks
    return [relax.DataflowBlock([*entry, *first.bindings]), *others]


def _before(blocks: Sequence[relax.BindingBlock], last: relax.Binding) -> list[relax.BindingBlock]:
    *others, end = blocks
    return [*others, type(end)([*end.bindings, last])]


def _function(
    parameters: Sequence[relax.Var], blocks: Sequence[relax.BindingBlock], result: relax.Var
) -> relax.Function:
    return relax.Function(parameters, relax.SeqExpr(blocks, result), result.struct_info)


def up_to(module: tvm.IRModule, variable: str) -> tvm.IRModule:
    """``module`` as far as it computes ``variable``, which alone it returns; it takes what it took."""
    every = _bindings(module)
    stop = next(i for i, (_, binding) in enumerate(every) if binding.var.name_hint == variable) + 1
    return _returning(module, every[:stop], [every[stop - 1][1].var], module[MAIN].params)


def isolated(module: tvm.IRModule, variables: Sequence[str]) -> tuple[tvm.IRModule, list[str], list[str]]:
    """``module`` with each of ``variables`` computed from given values of the others, and all of them returned.

    Behind its own parameters it takes those of the variables that are read, the first list; it returns the second. All
    are inputs.
    """
    every = _bindings(module)
    last = every[-1][0]
    wanted = set(variables)
    bound = [
        binding.var
        for dataflow, binding in every
        if binding.var.name_hint in wanted and (dataflow == last or not isinstance(binding.var, relax.DataflowVar))
    ]
    given = {variable: relax.Var(f"given_{variable.name_hint}", variable.struct_info) for variable in bound}
    read = {variable for _, binding in every for variable in relax.analysis.all_vars(binding.value)}
    replaced = _Replaced(given)
    bindings = [
        (
            dataflow,
            relax.MatchCast(binding.var, replaced.visit_expr(binding.value), binding.struct_info)
            if isinstance(binding, relax.MatchCast)
            else relax.VarBinding(binding.var, replaced.visit_expr(binding.value)),
        )
        for dataflow, binding in every
    ]
    taken = [variable for variable in bound if variable in read]
    parameters = [*module[MAIN].params, *(given[variable] for variable in taken)]
    made = _returning(module, bindings, bound, parameters)
    made[MAIN] = made[MAIN].with_attr(NUM_INPUT, len(parameters))  # none is a weight, which passes may join or pack
    return made, [variable.name_hint for variable in taken], [variable.name_hint for variable in bound]


@mutator
class _Replaced(PyExprMutator):
    """Reads others in place of some variables."""

    def __init__(self, others: Mapping[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.others = others

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self.others.get(op, op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self.others.get(op, op)


def _returning(
    module: tvm.IRModule,
    bindings: Sequence[tuple[bool, relax.Binding]],
    results: Sequence[relax.Var],
    parameters: Sequence[relax.Var],
) -> tvm.IRModule:
    result = relax.Var("results", relax.TupleStructInfo([variable.struct_info for variable in results]))
    blocks = [
        _block([binding for _, binding in run], dataflow=dataflow)
        for dataflow, run in itertools.groupby(bindings, key=lambda item: item[0])
    ]
    function = _function(parameters, _before(blocks, relax.VarBinding(result, relax.Tuple(results))), result)
    made = module.clone()
    inputs = int((module[MAIN].attrs or {}).get(NUM_INPUT, len(module[MAIN].params)))
    made[MAIN] = function.with_attrs({GLOBAL_SYMBOL: MAIN, NUM_INPUT: inputs})
    return relax.transform.DeadCodeElimination([MAIN])(made)
