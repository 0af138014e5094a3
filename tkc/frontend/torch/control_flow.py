"""PyTorch's control flow: choices and loops as functions of the program that the runtime calls.

A branch or a loop's body becomes a function of the module, with a dataflow block of its own, so that all passes
treat it as they treat ``main``: kernels, fusion, memory. :data:`tkc.contracts.CONTROL_FLOW` says how the runtime calls
it. Behind the operator's results, functions return what they counted of bad indices (:mod:`tkc.frontend.indices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx

from tkc.contracts import CHOOSE, REPEAT, WHILE
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Emitter, source_of
from tkc.frontend.torch.data_sizes import symbols_of
from tkc.frontend.torch.graph_functions import Operands, Part, Translate, is_held_tensor, truth_value
from tkc.frontend.torch.operator_calls import OperatorCalls
from tkc.frontend.torch.subgraphs import placeholders, subgraph, used_symbols
from tkc.runtime.signature import Flag


def is_control_flow(node: fx.Node) -> bool:
    """Whether the node's operator is one that :class:`ControlFlow` emits."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and str(node.target) in _OPERATORS


class ControlFlow:
    """Emits the control flow of one graph; ``translate`` emits the graphs that it calls."""

    def __init__(self, emitter: Emitter, calls: OperatorCalls, translate: Translate) -> None:
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
                state = [step.state(placeholder.meta["val"]) for placeholder in placeholders(body)[:count]]
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
                state = [step.state(placeholder.meta["val"]) for placeholder in placeholders(body)[:first]]
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

    def _operands(self, node: fx.Node, given: Sequence[Any]) -> Operands:
        """What ``node`` hands to its functions, ``given`` the operands of its graphs."""
        symbols = self.emitter.symbols.within(sorted(set(used_symbols(node)), key=str))[1]
        tensors = [value for each in given if is_held_tensor(value := self._value(each))]
        sizes = [relax.ShapeExpr(list(symbols.values()))] if symbols else []
        return Operands(node, given, [self._value(each) for each in given], [*sizes, *dict.fromkeys(tensors)])

    def _value(self, operand: Any) -> Any:
        return self.emitter.env[operand] if isinstance(operand, fx.Node) else operand

    @contextmanager
    def _part(self, node: fx.Node, given: Operands, *, numbered: bool = False) -> Iterator[Part]:
        """A function that ``node`` has called, under construction; what is emitted meanwhile is the function's."""
        builder = self.emitter.builder
        part = Part(self.emitter, self.calls, self.translate, given, numbered=numbered)
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
        return truth_value(self.emitter, self._value(condition))

    def _repeat(self, node: fx.Node, xs: fx.Node, begin: Part, step: Part, given: Operands, *, hidden: int = 0) -> None:
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
            if self._is_known(expected):
                return self.emitter.settled(value, expected)
            return self.calls.sizes.settled(value, expected, node)
        if isinstance(expected, torch.SymInt):
            return self.calls.sizes.settled(value, expected, node)
        for symbol in symbols_of(expected):
            self.emitter.symbols.define(symbol, nonnegative=False)
        self.emitter.builder.match_cast(value, relax.ShapeStructInfo([self.emitter.symbols.size(expected)]))
        return self.emitter.symbols.size(expected)


def _arguments(node: fx.Node) -> list[Any]:
    """The node's arguments, graphs in place of what names them."""
    return [(subgraph(given) or given) if isinstance(given, fx.Node) else given for given in node.args]


def _none_counted(flags: Sequence[Flag]) -> list[relax.Expr]:
    """Counts of nothing for ``flags``, if there are any."""
    return [relax.const(np.zeros(len(flags), "int32"))] if flags else []


_OPERATORS: dict[str, Callable[[ControlFlow, fx.Node], None]] = {
    "cond": ControlFlow.choice,
    "while_loop": ControlFlow.loop,
    "scan": ControlFlow.scan,
    "map_impl": ControlFlow.map,
    "associative_scan": ControlFlow.running,
}
"""The operators by the names that ``str(node.target)`` gives."""
