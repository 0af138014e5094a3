"""Which call of a compiled model the virtual machine is making, told from what it says before and after each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tkc.contracts import (
    ALLOC_STORAGE,
    ALLOC_TENSOR,
    AWAIT,
    CALL_OPERATOR,
    CALL_TEXT,
    CONTROL_FLOW,
    LIBRARY_CALLS,
    MAIN,
    PRODUCT,
    RUNTIME_CHECKS,
    product_name,
)
from tkc.runtime.call_table import DYNAMIC_CALL, CallTable, FunctionWork, GraphCalls
from tkc.runtime.profiling.node_names import named_nodes

Kind = Literal["kernel", "generated", "PyTorch", "product", "other"]


_SIZES = ("shape_func", "compute_symbolic_expr")
"""How lowering calls the functions that compute sizes on the host, before a number."""
_NO_WORK = (ALLOC_STORAGE, ALLOC_TENSOR, AWAIT, *RUNTIME_CHECKS)
_ENTERED = re.compile(r"ErrorContext\(fn=(\w+), loc=param\[0\]")
"""The machine checks the first parameter of each graph function as the first thing that it does there."""


@dataclass(frozen=True)
class Called:
    """A function that is called to compute ``nodes`` of the model, as messages name them."""

    function: str
    kind: Kind
    nodes: tuple[str, ...] = ()

    @cached_property
    def name(self) -> str:
        """The name of ranges and rows: the function, and the nodes in short."""
        return f"{self.function} [{named_nodes(self.nodes)}]" if self.nodes else self.function


class _Frame:
    """A graph function that is running, and the positions of its calls of which one may be the next."""

    def __init__(self, graph: GraphCalls | None) -> None:
        self.graph = graph
        self.next: Sequence[int] = graph.first if graph else ()

    def take(self, symbol: str) -> list[int]:
        """The positions of the calls that a call of ``symbol`` can be; those behind them are the next."""
        if self.graph is None:
            return []
        sites = self.graph.sites
        found = [place for place in self.next if place < len(sites) and sites[place].symbol == symbol]
        if found:
            self.next = tuple(dict.fromkeys(n for place in found for n in self._following(place)))
        return found

    def _following(self, place: int) -> tuple[int, ...]:
        assert self.graph is not None
        following = self.graph.sites[place].following
        return (place + 1,) if following is None else following


class CallTracker:
    """Follows one call of a model. Where branches call one function, a call of it is known to be one of these alone:
    it gets the nodes of all of them.
    """

    def __init__(self, table: CallTable) -> None:
        self._table = table
        self._works = {work.function: work for work in table.functions}
        self._known: dict[tuple[str, tuple[int, ...]], Called] = {}
        self._frames: list[_Frame] = []
        self.restart()

    def restart(self) -> None:
        """Expect the first call of the model."""
        self._frames = [_Frame(self._table.graphs.get(MAIN))]

    def enter(self, symbol: str, arguments: Sequence[Any]) -> Called | None:
        """What the machine is about to call by ``symbol``; ``None`` if that is none of the model's functions."""
        if symbol in CONTROL_FLOW or symbol in self._table.graphs:
            self._frames.append(_Frame(None))
            return None
        if symbol != DYNAMIC_CALL and symbol.startswith("vm.builtin."):
            if len(self._frames) > 1 and arguments:
                self._note_function(str(arguments[-1]))
            return None
        if symbol in _NO_WORK or (symbol.startswith(_SIZES) and symbol not in self._works):
            return None
        places = self._frames[-1].take(symbol)
        graph = self._frames[-1].graph
        if places and graph is not None:
            nodes = tuple(dict.fromkeys(node for place in places for node in graph.sites[place].nodes))
            return self._called(graph.sites[places[0]].function, nodes)
        return self._called(self._unplaced(symbol, arguments), ())

    def leave(self, symbol: str) -> None:
        """Note that the call of ``symbol``, the last that was entered, has returned."""
        if symbol in CONTROL_FLOW or symbol in self._table.graphs:
            self._frames.pop()

    def work_of(self, called: Called) -> FunctionWork | None:
        """What is known of the work of a called function."""
        return self._works.get(called.function)

    def _note_function(self, context: str) -> None:
        if entered := _ENTERED.search(context):
            self._frames[-1] = _Frame(self._table.graphs.get(entered[1]))

    def _called(self, function: str, nodes: tuple[int, ...]) -> Called:
        known = self._known.get((function, nodes))
        if known is None:
            named = tuple(self._table.nodes[node] for node in nodes)
            known = self._known[function, nodes] = Called(function, _kind(function, self._works), named)
        return known

    def _unplaced(self, symbol: str, arguments: Sequence[Any]) -> str:
        if symbol == CALL_OPERATOR:
            return str(json.loads(str(arguments[0]))["operator"])
        if symbol == CALL_TEXT:
            return str(json.loads(str(arguments[0]))["function"])
        if symbol in LIBRARY_CALLS:
            return LIBRARY_CALLS[symbol]
        if symbol == PRODUCT:
            return product_name(arguments[0])
        return "a function that takes sizes" if symbol == DYNAMIC_CALL else symbol


def _kind(function: str, works: Mapping[str, FunctionWork]) -> Kind:
    if "::" in function:
        return "PyTorch"
    work = works.get(function)
    if work is None and function.startswith("tkc."):
        return "product"
    if work is None:
        return "other" if works else "generated"
    return "generated" if work.kernel is None else "kernel"
