"""PyTorch's control flow: choices and loops as functions of the program that the runtime calls.

A branch or a loop's body becomes a function of the module, with a dataflow block of its own, so that all passes
treat it as they treat ``main``: kernels, fusion, memory. :data:`tkc.contracts.CONTROL_FLOW` says how the runtime calls
it. Behind the operator's results, functions return what they counted of bad indices (:mod:`tkc.frontend.indices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
import torch
from torch import fx
from tvm import relax, te, tirx

from tkc.contracts import CHOOSE, REPEAT, WHILE
from tkc.errors import UnsupportedModelError
from tkc.frontend.sources import SourceBuilder
from tkc.frontend.torch.converters.emitter import Emitter, dtype_name, source_of
from tkc.frontend.torch.operator_calls import OperatorCalls, symbols_of
from tkc.passes.lowering.row_writes import Element, Write
from tkc.passes.lowering.write_function import write_function
from tkc.runtime.signature import Flag

Translate = Callable[[Emitter, "OperatorCalls | None", fx.Graph], None]
"""Emits the nodes of a graph whose placeholders are bound."""


def subgraph(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a ``get_attr`` node stands for, if it is one."""
    module = node.graph.owning_module
    found = getattr(module, str(node.target), None) if node.op == "get_attr" and module is not None else None
    return found if isinstance(found, fx.GraphModule) else None


def held_tensor(node: fx.Node) -> torch.Tensor | None:
    """The tensor that a ``get_attr`` node stands for, if it is one: what a branch makes of Python's numbers."""
    module = node.graph.owning_module
    found = getattr(module, str(node.target), None) if node.op == "get_attr" and module is not None else None
    return found.detach() if isinstance(found, torch.Tensor) and not found.is_complex() else None


def subgraphs(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a node calls."""
    return [found for given in node.all_input_nodes if (found := subgraph(given)) is not None]


def is_control_flow(node: fx.Node) -> bool:
    """Whether the node's operator is one that :class:`ControlFlow` emits."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and str(node.target) in _OPERATORS


class ControlFlow:
    """Emits the control flow of one graph; ``translate`` emits the graphs that it calls."""

    def __init__(self, emitter: Emitter, calls: OperatorCalls | None, translate: Translate) -> None:
        self.emitter = emitter
        self.calls = calls
        self.translate = translate

    def emit(self, node: fx.Node) -> None:
        """Emit ``node``, for which :func:`is_control_flow` holds.

        Raises :class:`UnsupportedModelError` for what its graphs take or return besides tensors and integers.
        """
        _OPERATORS[str(node.target)](self, node)

    def choice(self, node: fx.Node) -> None:
        """``cond(condition, graph, other, operands)``."""
        condition, first, second, operands = _arguments(node)
        given = self._operands(node, operands)
        with self._part(node, given) as one:
            made = one.run(first, one.values)
            ours = one.counted()
            with self._part(node, given) as other:
                others = other.run(second, other.values)
                theirs = other.counted()
                other.end([*others, *_none_counted(one.flags), *theirs])
            one.end([*made, *ours, *_none_counted(other.flags)])
        with self.emitter.converting(node):
            arguments = [self._condition(condition), one.name, other.name, *given.arguments]
            self._call(node, CHOOSE, arguments, [one.flags, other.flags])

    def loop(self, node: fx.Node) -> None:
        """``while_loop(condition, body, carried, others)``."""
        condition, body, carried, others = _arguments(node)
        count = len(carried)
        given = self._operands(node, [*carried, *others])
        with self._part(node, given) as begin:
            (holds,) = begin.run(condition, begin.values)
            ours = begin.counted()
            with self._part(node, given) as step:
                state = [step.state(placeholder.meta["val"]) for placeholder in _placeholders(body)[:count]]
                counted = [step.state_of(counts.struct_info) for counts in ours]
                made = step.run(body, [*state, *step.values[count:]])
                (again,) = step.run(condition, [*made, *step.values[count:]])
                step.end([step.truth(again), *made, *counted, *step.added()])
            begin.end([begin.truth(holds), *begin.values[:count], *ours, *_none_counted(step.flags)])
        with self.emitter.converting(node):
            self._call(node, WHILE, [begin.name, step.name, *given.arguments], [begin.flags, step.flags])

    def scan(self, node: fx.Node) -> None:
        """``scan(body, init, xs, others)``: the body makes the next state, and a row of each result."""
        body, init, xs, others = _arguments(node)
        self._rows(node, body, list(init), list(xs), list(others))

    def map(self, node: fx.Node) -> None:
        """``map_impl(body, xs, others)``: the body makes a row of each result."""
        body, xs, others = _arguments(node)
        self._rows(node, body, [], list(xs), list(others))

    def _rows(self, node: fx.Node, body: fx.GraphModule, init: list[Any], xs: list[Any], others: list[Any]) -> None:
        given = self._operands(node, [*init, *xs, *others])
        first, last = len(init), len(init) + len(xs)
        results = node.meta["val"][first:]
        with self._part(node, given) as begin:
            with self._part(node, given, numbered=True) as step:
                state = [step.state(placeholder.meta["val"]) for placeholder in _placeholders(body)[:first]]
                stored = [step.state(result) for result in results]
                rows = [step.row(tensor) for tensor in step.values[first:last]]
                made = step.run(body, [*state, *rows, *step.values[last:]])
                written = [step.write(*pair) for pair in zip(stored, made[first:], strict=True)]
                step.end([*made[:first], *written, *step.added()])
            begin.end([*begin.values[:first], *map(begin.zeros, results), *_none_counted(step.flags)])
        self._repeat(node, xs[0], begin, step, given)

    def running(self, node: fx.Node) -> None:
        """``associative_scan(body, xs, others)``: one row after the other, combined with what came before."""
        body, xs, others = _arguments(node)
        given = self._operands(node, [*xs, *others])
        results = node.meta["val"]
        with self._part(node, given) as begin:
            with self._part(node, given, numbered=True) as step:
                rows = [step.row(tensor) for tensor in step.values[: len(xs)]]
                stored = [step.state(result) for result in results]
                before = [step.state_of(row.struct_info) for row in rows]
                combined = step.run(body, [*before, *rows, *step.values[len(xs) :]])
                made = [step.unless_first(*pair) for pair in zip(combined, rows, strict=True)]
                written = [step.write(*pair) for pair in zip(stored, made, strict=True)]
                step.end([*written, *made, *step.added()])
            firsts = map(begin.first_row, begin.values[: len(xs)])
            begin.end([*map(begin.zeros, results), *firsts, *_none_counted(step.flags)])
        self._repeat(node, xs[0], begin, step, given, hidden=len(xs))

    def _operands(self, node: fx.Node, given: Sequence[Any]) -> _Operands:
        """What ``node`` hands to its functions, ``given`` the operands of its graphs."""
        symbols = self.emitter.symbols.within(sorted(set(_used_symbols(node)), key=str))[1]
        tensors = [value for each in given if _is_tensor(value := self._value(each))]
        sizes = [relax.ShapeExpr(list(symbols.values()))] if symbols else []
        return _Operands(node, given, [self._value(each) for each in given], [*sizes, *dict.fromkeys(tensors)])

    def _value(self, operand: Any) -> Any:
        return self.emitter.env[operand] if isinstance(operand, fx.Node) else operand

    @contextmanager
    def _part(self, node: fx.Node, given: _Operands, *, numbered: bool = False) -> Iterator[_Part]:
        """A function that ``node`` has called, under construction; what is emitted meanwhile is the function's."""
        builder = self.emitter.builder
        part = _Part(self, given, numbered=numbered)
        with builder.function(part.name.value, part.params):
            with builder.dataflow():
                yield part
            builder.emit_func_output(part.result)

    def _condition(self, condition: Any) -> relax.Expr:
        """A truth value as the runtime takes it."""
        value = condition.meta["val"] if isinstance(condition, fx.Node) else condition
        if isinstance(value, torch.SymBool):
            return relax.PrimValue(tirx.Cast("int64", self.emitter.symbols.condition(value.node.expr)))
        if isinstance(value, bool):
            return relax.PrimValue(tirx.IntImm("int64", int(value)))
        return _truth(self.emitter, self._value(condition))

    def _repeat(
        self, node: fx.Node, xs: fx.Node, begin: _Part, step: _Part, given: _Operands, *, hidden: int = 0
    ) -> None:
        with self.emitter.converting(node):
            steps = relax.ShapeExpr([self.emitter.symbols.size(xs.meta["val"].shape[0])])
            self._call(node, REPEAT, [steps, begin.name, step.name, *given.arguments], [step.flags], hidden)

    def _call(
        self,
        node: fx.Node,
        function: str,
        arguments: Sequence[relax.Expr],
        counted: Sequence[Sequence[Flag]],
        hidden: int = 0,
    ) -> None:
        """Bind ``node`` to the first results of a call of ``function``; ``hidden`` ones follow, then what it
        ``counted``."""
        builder, expected = self.emitter.builder, node.meta["val"]
        counted = [flags for flags in counted if flags]
        infos = [self._info(value, node) for value in expected] + [relax.ObjectStructInfo()] * hidden
        infos += [relax.TensorStructInfo([len(flags)], "int32") for flags in counted]
        call = relax.call_pure_packed(function, *arguments, sinfo_args=[relax.TupleStructInfo(infos)])
        results = builder.emit(call)
        for position, flags in enumerate(counted, len(expected) + hidden):
            self.emitter.index_uses.add_counts(builder.emit(relax.TupleGetItem(results, position)), flags)
        self.emitter.env[node] = [
            self._settled(builder.emit(relax.TupleGetItem(results, position)), value, node)
            for position, value in enumerate(expected)
        ]

    def _info(self, value: Any, node: fx.Node) -> relax.StructInfo:
        """What is known of a result before the call."""
        if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            return relax.ShapeStructInfo(ndim=1)
        if not isinstance(value, torch.Tensor):
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): a result is a {type(value).__name__}; expected tensors and "
                "integers. Return a tensor."
            )
        if self._is_known(value):
            return relax.TensorStructInfo(self.emitter.sizes(value.shape), dtype_name(value.dtype))
        return relax.TensorStructInfo(dtype=dtype_name(value.dtype), ndim=value.dim())

    def _is_known(self, value: Any) -> bool:
        return symbols_of(value) <= self.emitter.symbols.known

    def _settled(self, value: relax.Expr, expected: Any, node: fx.Node) -> Any:
        """``value`` with the sizes that PyTorch states; those met for the first time are defined by it."""
        if isinstance(expected, torch.Tensor):
            if self.calls is None or self._is_known(expected):
                return self.emitter.settled(value, expected)
            return self.calls.settled(value, expected, node)
        if self.calls is not None and isinstance(expected, torch.SymInt):
            return self.calls.settled(value, expected, node)
        for symbol in symbols_of(expected):
            self.emitter.symbols.define(symbol, nonnegative=False)
        self.emitter.builder.match_cast(value, relax.ShapeStructInfo([self.emitter.symbols.size(expected)]))
        return self.emitter.symbols.size(expected)


@dataclass(frozen=True)
class _Operands:
    """What the graphs of ``node`` are called with: the nodes and numbers ``given``, and their ``values``.

    ``arguments`` are what a function of such a graph takes: the sizes that it uses, as one shape, if there are any, and
    each tensor once that is no constant.
    """

    node: fx.Node
    given: Sequence[Any]
    values: Sequence[Any]
    arguments: Sequence[relax.Expr]


class _Part:
    """A function under construction. ``values`` are the operands in it, of which ``params`` are its parameters.

    State of a loop becomes further parameters. ``flags`` are known when the function has counted.
    """

    def __init__(self, flow: ControlFlow, given: _Operands, *, numbered: bool) -> None:
        outer = flow.emitter
        symbols, sizes = outer.symbols.within(sorted(set(_used_symbols(given.node)), key=str))
        self.params: list[relax.Var] = []
        self.flags: list[Flag] = []
        assert isinstance(outer.builder, SourceBuilder)  # as the importer makes it
        self.name = relax.StringImm(outer.builder.part_name(given.node.name))
        self.result: relax.Var | None = None
        self._flow = flow
        self._node = given.node
        self._number = tirx.SizeVar("number", "int64")
        if numbered:
            self.params.append(relax.Var("step", relax.ShapeStructInfo([self._number])))
        if sizes:
            self.params.append(relax.Var("sizes", relax.ShapeStructInfo(list(sizes))))
        held: dict[relax.Expr, relax.Var] = {}
        self.values: list[Any] = []
        for each, value in zip(given.given, given.values, strict=True):
            if _is_tensor(value) and value not in held:
                fake = each.meta["val"]
                shape = [symbols.size(size) for size in fake.shape]
                held[value] = relax.Var(each.name, relax.TensorStructInfo(shape, dtype_name(fake.dtype)))
            is_number = isinstance(each, fx.Node) and isinstance(each.meta["val"], torch.SymInt)
            self.values.append(symbols.size(each.meta["val"]) if is_number else held.get(value, value))
        self.params += held.values()
        uses = outer.index_uses.part({parameter: value for value, parameter in held.items()})
        self._uses = uses
        self._emitter = Emitter(outer.builder, symbols, uses)

    def run(self, module: fx.GraphModule, values: Sequence[Any]) -> list[Any]:
        """Emit what the graph of ``module`` makes of ``values``."""
        emitter, symbols = self._emitter, self._emitter.symbols
        for placeholder, value in zip(_placeholders(module), values, strict=True):
            expected = placeholder.meta.get("val")
            if isinstance(expected, torch.Tensor):
                emitter.bind(placeholder, value)
                continue
            emitter.env[placeholder] = value
            if isinstance(expected, torch.SymInt) and isinstance(expected.node.expr, sympy.Symbol):
                symbols.replace(expected.node.expr, value)
        calls = self._flow.calls and self._flow.calls.within(module.graph, emitter)
        self._flow.translate(emitter, calls, module.graph)
        (end,) = module.graph.find_nodes(op="output")
        made = end.args[0] if isinstance(end.args[0], list | tuple) else [end.args[0]]
        return [self._known(each) for each in made]

    def _known(self, made: Any) -> Any:
        return self._emitter.env[made] if isinstance(made, fx.Node) else made

    def end(self, results: Sequence[Any]) -> None:
        """Return ``results``, tensors and integers."""
        self.result = self._emitter.builder.emit_output(relax.Tuple([self._returned(each) for each in results]))

    def _returned(self, value: Any) -> relax.Expr:
        if isinstance(value, relax.Expr):
            return value
        if isinstance(value, tirx.PrimExpr) or (isinstance(value, int) and not isinstance(value, bool)):
            return relax.ShapeExpr([value])
        raise UnsupportedModelError(
            f"{self._node.target} ({source_of(self._node)}): it takes or returns a {type(value).__name__}; expected "
            "tensors and integers. Make it a tensor."
        )

    def counted(self) -> list[relax.Expr]:
        """What the graphs count, ``int32 [flags]``, if they count anything. To be asked once."""
        counts, self.flags = self._uses.counted()
        return [] if counts is None else [counts]

    def added(self) -> list[relax.Expr]:
        """The same, of all steps up to this one."""
        return [
            self._emitter.emit(relax.op.add(counts, self.state_of(counts.struct_info))) for counts in self.counted()
        ]

    def state(self, like: Any) -> Any:
        """One more parameter, for what is like the (fake) tensor or the integer ``like``, and its value."""
        if isinstance(like, torch.Tensor):
            return self.state_of(relax.TensorStructInfo(self._emitter.sizes(like.shape), dtype_name(like.dtype)))
        number = tirx.Var("state", "int64")
        self.state_of(relax.ShapeStructInfo([number]))
        return number

    def state_of(self, info: relax.StructInfo) -> relax.Var:
        """One more parameter, of what is known of it."""
        parameter = relax.Var(f"state_{len(self.params)}", info)
        self.params.append(parameter)
        return parameter

    def truth(self, condition: Any) -> relax.Expr:
        """A truth value as a tensor without dimensions."""
        if isinstance(condition, torch.SymBool):
            return self._emitter.tensor(self._emitter.symbols.condition(condition.node.expr), "bool")
        if isinstance(condition, bool):
            return relax.const(condition, "bool")
        return _truth(self._emitter, condition)

    def zeros(self, like: torch.Tensor) -> relax.Expr:
        """Zeros of the shape and dtype of a (fake) tensor."""
        return self._emitter.emit(relax.op.zeros(self._emitter.sizes(like.shape), dtype_name(like.dtype)))

    def row(self, tensor: relax.Expr) -> relax.Expr:
        """The row of ``tensor`` that has the step's number."""
        return self._rowwise(lambda source, number: lambda *index: source[(number, *index)], tensor, self._number)

    def first_row(self, tensor: relax.Expr) -> relax.Expr:
        """The row of ``tensor`` that the first step has; zeros where there is none."""
        zero = tirx.const(0, tensor.struct_info.dtype)
        rows = tensor.struct_info.shape.values[0]
        if isinstance(rows, tirx.IntImm):
            return self._rowwise(lambda source: lambda *index: source[(0, *index)] if int(rows) else zero, tensor)
        return self._rowwise(
            lambda source: lambda *index: tirx.if_then_else(source.shape[0] > 0, source[(0, *index)], zero), tensor
        )

    def _rowwise(self, element: Callable[..., Any], tensor: relax.Expr, *numbers: tirx.Var) -> relax.Expr:
        def compute(source: te.Tensor, *given: tirx.Var) -> te.Tensor:
            return te.compute(source.shape[1:], element(source, *given), name="row")

        return self._emitter.emit_te("row", compute, tensor, *numbers)

    def unless_first(self, value: relax.Expr, other: relax.Expr) -> relax.Expr:
        """``value``, but in the first step ``other``."""

        def compute(value: te.Tensor, other: te.Tensor, number: tirx.Var) -> te.Tensor:
            return te.compute(
                value.shape, lambda *index: tirx.Select(number > 0, value[index], other[index]), name="unless_first"
            )

        return self._emitter.emit_te("unless_first", compute, value, other, self._number)

    def write(self, rows: relax.Var, row: relax.Expr) -> relax.Expr:
        """``rows`` with ``row`` written where the step's number says, in place."""
        if any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in rows.struct_info.shape.values):
            return rows
        loops = tuple((tirx.Var(f"i{axis}", "int64"), size) for axis, size in enumerate(row.struct_info.shape.values))
        index = tuple(var for var, _ in loops)
        function, sizes = write_function(rows, Write(loops, (self._number, *index), Element(row, index)))
        name = self._emitter.builder.add_func(function, "write_row")
        call = relax.call_tir_inplace(name, [rows, row], 0, rows.struct_info, relax.ShapeExpr(sizes) if sizes else None)
        return self._emitter.builder.emit(call)


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _arguments(node: fx.Node) -> list[Any]:
    """The node's arguments, graphs in place of what names them."""
    return [(subgraph(given) or given) if isinstance(given, fx.Node) else given for given in node.args]


def _is_tensor(value: Any) -> bool:
    """Whether a value of a graph is a tensor that no function can hold itself."""
    return isinstance(value, relax.Expr) and not isinstance(value, relax.Constant)


def _none_counted(flags: Sequence[Flag]) -> list[relax.Expr]:
    """Counts of nothing for ``flags``, if there are any."""
    return [relax.const(np.zeros(len(flags), "int32"))] if flags else []


def _truth(emitter: Emitter, condition: relax.Expr) -> relax.Expr:
    """A tensor of one element as a truth value without dimensions."""
    if condition.struct_info.ndim:
        condition = emitter.emit(relax.op.reshape(condition, ()))
    return emitter.cast(condition, "bool")


def _used_symbols(node: fx.Node) -> Iterator[sympy.Symbol]:
    """The symbols in ``node``, what it is called with, and the graphs that it calls."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for leaf in value if isinstance(value, list | tuple) else [value]:
            yield from symbols_of(leaf)
            if isinstance(leaf, torch.SymBool | torch.SymFloat):
                yield from leaf.node.expr.free_symbols
    for module in subgraphs(node):
        for inner in module.graph.nodes:
            yield from _used_symbols(inner)


_OPERATORS: dict[str, Callable[[ControlFlow, fx.Node], None]] = {
    "cond": ControlFlow.choice,
    "while_loop": ControlFlow.loop,
    "scan": ControlFlow.scan,
    "map_impl": ControlFlow.map,
    "associative_scan": ControlFlow.running,
}
"""The operators by the names that ``str(node.target)`` gives."""
