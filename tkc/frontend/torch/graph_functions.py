"""A branch or a loop's body as a function of the module, under construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from tvm import relax, te, tirx

from tkc.errors import UnsupportedModelError
from tkc.frontend.sources import SourceBuilder
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Emitter, source_of
from tkc.frontend.torch.converters.symbols import signed_number
from tkc.frontend.torch.operator_calls import OperatorCalls
from tkc.frontend.torch.subgraphs import placeholders, used_symbols
from tkc.passes.lowering.row_writes import Element, Write
from tkc.passes.lowering.write_function import write_function
from tkc.runtime.signature import Flag

Translate = Callable[[Emitter, "OperatorCalls", fx.Graph], None]
"""Emits the nodes of a graph whose placeholders are bound."""


@dataclass(frozen=True)
class Operands:
    """What the graphs of ``node`` are called with: the nodes and numbers ``given``, and their ``values``.

    ``arguments`` are what a function of such a graph takes: the sizes that it uses, as one shape, if there are any, and
    each tensor once that is no constant.
    """

    node: fx.Node
    given: Sequence[Any]
    values: Sequence[Any]
    arguments: Sequence[relax.Expr]


class Part:
    """A function under construction. ``values`` are the operands in it, of which ``params`` are its parameters.

    State of a loop becomes further parameters. ``flags`` are known when the function has counted.
    """

    def __init__(
        self,
        outer: Emitter,
        calls: OperatorCalls,
        translate: Translate,
        given: Operands,
        *,
        numbered: bool,
    ) -> None:
        symbols, sizes = outer.symbols.within(sorted(set(used_symbols(given.node)), key=str))
        self.params: list[relax.Var] = []
        self.flags: list[Flag] = []
        assert isinstance(outer.builder, SourceBuilder)  # as the importer makes it
        self.name = relax.StringImm(outer.builder.part_name(given.node.name))
        self.result: relax.Var | None = None
        self._calls, self._translate = calls, translate
        self._node = given.node
        self._number = tirx.SizeVar("number", "int64")
        if numbered:
            self.params.append(relax.Var("step", relax.ShapeStructInfo([self._number])))
        if sizes:
            self.params.append(relax.Var("sizes", relax.ShapeStructInfo(list(sizes))))
        held: dict[relax.Expr, relax.Var] = {}
        self.values: list[Any] = []
        for each, value in zip(given.given, given.values, strict=True):
            if is_held_tensor(value) and value not in held:
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
        for placeholder, value in zip(placeholders(module), values, strict=True):
            expected = placeholder.meta.get("val")
            if isinstance(expected, torch.Tensor):
                emitter.bind(placeholder, value)
                continue
            emitter.env[placeholder] = value
            if isinstance(expected, torch.SymInt) and isinstance(expected.node.expr, sympy.Symbol):
                symbols.replace(expected.node.expr, value)
        calls = self._calls.within(module.graph, emitter)
        self._translate(emitter, calls, module.graph)
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
        number = signed_number("state")
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
        if isinstance(condition, bool | tirx.PrimExpr):  # of numbers, as of a loop's count or a size
            return self._emitter.tensor(condition, "bool")
        return truth_value(self._emitter, condition)

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


def is_held_tensor(value: Any) -> bool:
    """Whether a value of a graph is a tensor that no function can hold itself."""
    return isinstance(value, relax.Expr) and not isinstance(value, relax.Constant)


def truth_value(emitter: Emitter, condition: relax.Expr) -> relax.Expr:
    """A tensor of one element as a truth value without dimensions."""
    if condition.struct_info.ndim:
        condition = emitter.emit(relax.op.reshape(condition, ()))
    return emitter.cast(condition, "bool")
