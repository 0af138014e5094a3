"""Which of the model's nodes each call of a compiled model computes, and how much work that is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import relax, tirx
from tvm.ir import IRModule, Op

from tkc.contracts import (
    CALL_OPERATOR,
    CALL_TEXT,
    CONTROL_FLOW,
    LIBRARY_CALLS,
    PRODUCT,
    RETAINING_MAIN,
    RUNTIME_CHECKS,
    product_name,
)
from tkc.kernels.spec import as_json
from tkc.passes.graph.kernel_call import kernel_dispatch
from tkc.passes.graph.runtime_calls import runtime_call
from tkc.passes.substitute_kernels import SubstitutionReport
from tkc.runtime.call_table import DYNAMIC_CALL, CallSite, CallTable, FunctionWork, GraphCalls
from tkc.schedules.work import formulated_work

_CALL_TIR = tuple(Op.get(name) for name in ("relax.call_tir", "relax.call_tir_inplace"))
_ENTRY = -1
"""Stands for the beginning of a graph function among the positions of its calls."""
_NO_WORK = ("vm.builtin.", *RUNTIME_CHECKS, *CONTROL_FLOW)


@dataclass(frozen=True)
class _Site:
    """A call in a graph before lowering: the variable it is bound to, and how the machine will call what."""

    variable: relax.Var
    symbol: str
    function: str
    following: tuple[int, ...] | None = None


def call_table(
    module: IRModule, imported: IRModule, sources: Mapping[str, str], substitutions: SubstitutionReport
) -> CallTable:
    """The calls of ``module``, whose functions are neither scheduled nor lowered yet.

    Variables of ``imported``, the model as it was imported, come from the nodes that ``sources`` says; what kernels
    replaced, ``substitutions`` says. By the names that variables kept, each call computes what lies between what it
    reads and what it returns.
    """
    graphs = {
        str(name.name_hint): _Graph(function)
        for name, function in module.functions_items()
        if isinstance(function, relax.Function) and name.name_hint != RETAINING_MAIN
    }
    model = _Model(imported, sources, substitutions, graphs.values())
    nodes: dict[str, int] = {}
    calls = {}
    for name, graph in graphs.items():
        computed = model.nodes(graph)
        calls[name] = GraphCalls(
            tuple(
                CallSite(
                    site.symbol,
                    site.function,
                    tuple(nodes.setdefault(node, len(nodes)) for node in computed[position]),
                    site.following,
                )
                for position, site in enumerate(graph.sites)
            ),
            graph.first,
        )
    works = (
        _work(str(name.name_hint), function)
        for name, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
    )
    return CallTable(tuple(nodes), tuple(works), calls)


def _work(name: str, function: tirx.PrimFunc) -> FunctionWork:
    formulated = formulated_work(function)
    work = FunctionWork(name, formulated.parameters, formulated.flops, formulated.bytes)
    dispatch = kernel_dispatch(function)
    if dispatch is None:
        return work
    return replace(work, flops=None, bytes=None, kernel=dispatch.kernel, settings=as_json(dispatch.parameters))


class _Graph:
    """The calls of one graph function in their order, and what every variable is computed of."""

    def __init__(self, function: relax.Function) -> None:
        self.values: dict[relax.Var, relax.Expr] = {}
        self._sites: list[_Site] = []
        self._following: dict[int, tuple[int, ...]] = {_ENTRY: ()}
        self._visit(function.body, [_ENTRY])
        self.first = self._following[_ENTRY]

    @property
    def sites(self) -> list[_Site]:
        """The calls, with what may follow each where that is not the next one."""
        return [
            replace(site, following=None if following == (position + 1,) else following)
            for position, site in enumerate(self._sites)
            for following in [self._following.get(position, ())]
        ]

    def _visit(self, body: relax.SeqExpr, before: list[int]) -> list[int]:
        """Note the calls of ``body``, of which the first follows the places ``before``; the places of its last."""
        for binding in (binding for block in body.blocks for binding in block.bindings):
            value = binding.value
            self.values[binding.var] = value
            if isinstance(value, relax.If):
                ends = [*self._visit(value.true_branch, before), *self._visit(value.false_branch, before)]
                before = list(dict.fromkeys(ends))
            elif (called := _called(value)) is not None:
                for place in before:
                    self._following[place] = (*self._following.get(place, ()), len(self._sites))
                before = [len(self._sites)]
                self._sites.append(_Site(binding.var, *called))
        return before


def _called(value: relax.Expr) -> tuple[str, str] | None:
    """How the machine will call what ``value`` calls, and what that is; ``None`` for what is no work."""
    if not isinstance(value, relax.Call):
        return None
    if value.op in _CALL_TIR:
        name = str(value.args[0].name_hint)
        return (DYNAMIC_CALL if len(value.args) > 2 else name), name
    if (call := runtime_call(value)) is None:
        return None
    symbol, operands = call
    return None if symbol.startswith(_NO_WORK) else (symbol, _external_name(symbol, operands))


def _external_name(symbol: str, operands: Sequence[relax.Expr]) -> str:
    """What a call of the runtime's function ``symbol`` is: PyTorch's operator, if it calls one, a function of strings
    or a product."""
    if symbol == CALL_OPERATOR:
        return str(json.loads(str(operands[0].value))["operator"])
    if symbol == CALL_TEXT:
        return str(json.loads(str(operands[0].value))["function"])
    if symbol == PRODUCT:
        return product_name([int(number) for number in operands[0].values])
    return LIBRARY_CALLS.get(symbol, symbol)


class _Model:
    """The model as it was imported: where its variables come from, and of which others they are computed."""

    def __init__(
        self,
        imported: IRModule,
        sources: Mapping[str, str],
        substitutions: SubstitutionReport,
        graphs: Iterable[_Graph],
    ) -> None:
        self._sources = sources
        self._order = {name: position for position, name in enumerate(sources)}
        self._reads: dict[str, tuple[str, ...]] = {}
        for function in imported.functions.values():
            if isinstance(function, relax.Function):
                for variable, value in _Graph(function).values.items():
                    self._reads[str(variable.name_hint)] = tuple(_read(value))
        self._named = self._reads.keys() & sources.keys()  # other names may be those that passes make, too
        self._replaced = {
            root: variables
            for row in substitutions.substitutions
            for root, variables in zip(row.variables, row.replaced, strict=False)
        }
        self._computed = {str(site.variable.name_hint) for graph in graphs for site in graph.sites}
        self._shown: set[str] = set()
        self._computed |= {name for root in self._computed for name in self._replaced.get(root, ())}

    def nodes(self, graph: _Graph) -> list[list[str]]:
        """The nodes that each call of ``graph`` computes, in the model's order."""
        sites = {site.variable: position for position, site in enumerate(graph.sites)}
        views: dict[relax.Var, relax.Var] = {}  # from what is no call's result to the one that it shows
        names: list[list[str]] = [[str(variable.name_hint)] for variable in sites]
        for variable, value in graph.values.items():
            if variable not in sites:
                shown = [views.get(read, read) for read in relax.analysis.free_vars(value)]
                shown = [read for read in shown if read in sites]
                if len(shown) == 1:
                    views[variable] = shown[0]
                    names[sites[shown[0]]].append(str(variable.name_hint))
        found = []
        for each in names:
            computed = self._between(each)
            # What several calls need for themselves, a mask or angles, say, is named at the first of them.
            own = [name for name in computed if name not in self._shown] or computed
            self._shown.update(computed)
            found.append(list(dict.fromkeys(self._sources[name] for name in own)))
        self._name_intermediates(graph, sites, views, found)
        return found

    def _between(self, names: list[str]) -> list[str]:
        """The variables on the way to ``names`` from what other calls compute, in the model's order."""
        roots = [name for each in names for name in self._replaced.get(each, (each,)) if name in self._named]
        seen = dict.fromkeys(roots)
        pending = list(seen)
        while pending:
            for read in self._reads[pending.pop()]:
                if read in self._reads and read not in seen and read not in self._computed:
                    seen[read] = None
                    pending.append(read)
        return sorted((name for name in seen if name in self._sources), key=self._order.__getitem__)

    @staticmethod
    def _name_intermediates(
        graph: _Graph,
        sites: Mapping[relax.Var, int],
        views: Mapping[relax.Var, relax.Var],
        found: list[list[str]],
    ) -> None:
        """Give a call of which nothing in the model has the name the nodes of what reads its result, or of what it
        reads, if nothing does."""
        for variable, position in reversed(list(sites.items())):
            for read in relax.analysis.free_vars(graph.values[variable]):
                source = sites.get(views.get(read, read))
                if source is not None and not found[source]:
                    found[source] = list(found[position])
        for variable, position in sites.items():
            if not found[position]:
                read = (sites.get(views.get(each, each)) for each in relax.analysis.free_vars(graph.values[variable]))
                found[position] = next((list(found[source]) for source in read if source is not None), [])


def _read(value: relax.Expr) -> Iterator[str]:
    if isinstance(value, relax.If):
        for branch in (value.true_branch, value.false_branch):
            yield from (str(each.name_hint) for each in relax.analysis.free_vars(branch.body))
            bound = [binding.var for block in branch.blocks for binding in block.bindings]
            yield from (str(var.name_hint) for var in bound)
        return
    yield from (str(variable.name_hint) for variable in relax.analysis.free_vars(value))
