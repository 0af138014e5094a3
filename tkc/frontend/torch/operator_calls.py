"""Operators without a converter as calls of PyTorch's own, in place: the last resort, which the report names."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._sympy.value_ranges import ValueRanges
from tvm import relax, tirx

from tkc.contracts import CALL_OPERATOR
from tkc.errors import UnsupportedModelError
from tkc.frontend.model import OperatorCall
from tkc.frontend.torch.callable_operators import (
    can_be_called,
    draws_numbers,
    functional_operator,
    is_sparse,
    of_another_library,
    written_by,
)
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Emitter, source_of
from tkc.frontend.torch.converters.symbols import signed_number
from tkc.frontend.torch.data_sizes import DataSizes
from tkc.frontend.torch.faster_operators import WHY_FASTER
from tkc.frontend.torch.memory_order import follows_memory, memory_order
from tkc.frontend.torch.mutation import functional_name
from tkc.frontend.torch.pair_calls import CALL_ON_PAIRS

_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


_VIEWS = {"slice": ("slice_dim", "slice_start", "slice_end"), "strided": ("size", "stride", "storage_offset")}
"""How PyTorch's functional form names the parts of a view that an operator writes into."""


_TAKE_NUMBERS = frozenset(
    f"aten.{name}.{overload}"
    for names, overloads in (
        (("add", "sub", "rsub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"), ("Tensor", "Scalar")),
        (("pow",), ("Tensor_Scalar", "Scalar")),
        (("where",), ("self", "ScalarSelf", "ScalarOther", "Scalar")),
        (("clamp", "clamp_min", "clamp_max", "scalar_tensor", "full", "full_like", "new_full"), ("default",)),
        (("fill", "masked_fill"), ("Scalar",)),
    )
    for name in names
    for overload in overloads
)
"""Operators whose converters take numbers that only data decides."""


class OperatorCalls:
    """Emits calls of operators in one graph, and reads of numbers that only data decides."""

    def __init__(
        self,
        graph: fx.Graph,
        ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]],
        emitter: Emitter,
        *,
        fallback: bool,
    ) -> None:
        """``ranges`` are the bounds of the symbols; those that ``emitter`` knows already are no call's to define.
        Without ``fallback`` every call is refused."""
        self.fallback = fallback
        self.sizes = DataSizes(graph, ranges, emitter)
        """The sizes and numbers that only data decides, with their checks."""
        self._emitter = emitter
        self._calls: dict[str, list[str]] = {}
        self._why: dict[str, str] = {}

    def within(self, graph: fx.Graph, emitter: Emitter) -> OperatorCalls:
        """Calls in a ``graph`` that this one calls; they are listed with the others."""
        inner = copy.copy(self)
        inner._emitter = emitter
        inner.sizes = self.sizes.within(graph, emitter)
        return inner

    def calls(self) -> tuple[OperatorCall, ...]:
        """What was emitted, by operator."""
        return tuple(
            OperatorCall(name, len(sources), tuple(Counter(sources)), self._why[name], self._why[name] in WHY_FASTER)
            for name, sources in self._calls.items()
        )

    def emit(self, node: fx.Node, why: str) -> None:
        """Emit a call of the node's operator, which TKC does not compile because ``why``.

        Raises :class:`UnsupportedModelError` without a fallback, and where the call cannot be described.
        """
        if not self.fallback or not can_be_called(node):
            raise UnsupportedModelError(why if source_of(node) in why else f"{node.target} ({source_of(node)}): {why}.")
        called = written_by(node) or functional_operator(node)
        assert called is not None
        name = called.name()
        if is_sparse(node.meta["val"]):
            self._note(name, node, why)
            return  # it is called where its result is read
        operands: list[relax.Expr] = []
        results = node.meta["val"]
        if written_by(node) is not None:
            description = self._writing_call(node, called, operands)
        elif str(called) == CALL_ON_PAIRS:
            tensors, sizes, text = node.args
            description = json.loads(str(text))
            name = description["operator"]
            for operand in self._emitter.resolve([*tensors, *sizes]):  # type: ignore[misc]  # lists, by its schema
                is_tensor = isinstance(operand, relax.Expr) and not isinstance(operand, relax.PrimValue)
                operands.append(operand if is_tensor else relax.PrimValue(operand))
        else:
            description = self._plain_call(node, called, operands)
        if of_another_library(called):
            description["declared"] = _declared(results)
        if draws_numbers(called):
            description["call"] = node.name  # equal calls give different numbers
        sinfo = _struct_info(results)
        call = relax.call_pure_packed(
            CALL_OPERATOR, relax.StringImm(json.dumps(description)), *operands, sinfo_args=[sinfo]
        )
        with self._emitter.converting(node):
            self._emitter.env[node] = self.sizes.settled(self._emitter.builder.emit(call), results, node)
        self._note(name, node, why)

    def _writing_call(self, node: fx.Node, called: OpOverload, operands: list[relax.Expr]) -> dict[str, Any]:
        """The description of a call that writes into copies."""
        given = dict(node.kwargs)
        bases: Any = given["_all_bases"]
        operands += [self._emitter.env[base] for base in bases]

        def argument(name: str, like: str) -> Any:
            if like == "list":
                length: Any = given[f"_{name}_length"]
                return None if length is None else [argument(f"{name}_{i}", "tensor") for i in range(length)]
            base = given[f"_{name}_base_index"]
            if base is None:
                return None
            for kind, parts in _VIEWS.items():
                if f"_{name}_{parts[0]}" in given:
                    values = [self._emitter.resolve(given[f"_{name}_{part}"]) for part in parts]
                    return {kind: [base, *(self._described(value, operands, node) for value in values)]}
            return {"tensor": base}

        def described(each: torch.Argument) -> Any:
            if each.alias_info is not None and each.alias_info.is_write:
                return argument(each.name, "list" if "List" in str(each.type) else "tensor")
            return self._described(self._emitter.resolve(given.get(each.name, each.default_value)), operands, node)

        return {**_description(called, described), "bases": list(range(len(bases)))}

    def _note(self, operator: str, node: fx.Node, why: str) -> None:
        self._calls.setdefault(operator, []).append(source_of(node))
        self._why.setdefault(operator, why)

    def takes_read_float(self, node: fx.Node) -> bool:
        """Whether an argument of the node depends on a float that was read out of a tensor, and its converter, as most,
        takes no such."""
        values = (self._emitter.env[given] for given in node.all_input_nodes)
        return functional_name(node) not in _TAKE_NUMBERS and any(map(self._emitter.depends_on_read_float, values))

    def read_float(self, node: fx.Node) -> None:
        """Emit how the node reads a float out of a tensor, with the checks of what the model asserts of it."""
        emitter, symbols = self._emitter, self._emitter.symbols
        symbol = node.meta["val"].node.expr
        (tensor,) = node.all_input_nodes
        with emitter.converting(node):
            number = emitter.emit(emitter.reshape(emitter.cast(emitter.env[tensor], "float64"), []))
            emitter.read_float(symbol, number)
            self.sizes.define(symbol)
            for message, condition in self.sizes.checks({symbol}):
                holds = emitter.tensor(condition, "bool")
                self.sizes.note_asserted(node, message, holds)
                number = self.sizes.checking(message, number, holds)
            emitter.read_float(symbol, number)
            emitter.env[node] = symbols.expression(symbol)

    def read_number(self, node: fx.Node) -> None:
        """Emit how the node reads an integer or a truth value out of a tensor, with what the model asserts of it."""
        (tensor,) = node.all_input_nodes
        with self._emitter.converting(node):
            self._emitter.env[node] = self.sizes.read(self._emitter.env[tensor], node)

    def read_integer(self, node: fx.Node) -> None:
        """Emit how an integer that is computed from floats of tensors becomes one that sizes can be computed from."""
        emitter = self._emitter
        value = node.meta["val"]
        with emitter.converting(node):
            number = emitter.emit(emitter.reshape(emitter.tensor(emitter.symbols.size(value), "int64"), [1]))
            variable = signed_number(node.name)
            shape = emitter.emit(relax.op.tensor_to_shape(number))
            emitter.builder.match_cast(shape, relax.ShapeStructInfo([variable]))
            emitter.symbols.replace(value.node.expr, variable)
            emitter.env[node] = variable

    def _plain_call(self, node: fx.Node, called: OpOverload, operands: list[relax.Expr]) -> dict[str, Any]:
        """The description of a call that writes into nothing; tensors and sizes go to ``operands``."""
        names = (argument.name for argument in called._schema.arguments)
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)

        def described(each: torch.Argument) -> Any:
            argument = given.get(each.name, each.default_value)
            description = self._argument(argument, operands, node)
            return _in_memory_order(argument, description) if follows_memory(called) else description

        return _description(called, described)

    def _argument(self, argument: Any, operands: list[relax.Expr], node: fx.Node) -> Any:
        """The description of an argument of ``node``, in which sparse tensors are calls of what makes them."""
        if isinstance(argument, list | tuple):
            return [self._argument(part, operands, node) for part in argument]
        value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
        if not is_sparse(value):
            return self._described(self._emitter.resolve(argument), operands, node)
        if argument.op == "call_function":
            called = functional_operator(argument)
            assert called is not None
            return {"call": self._plain_call(argument, called, operands)}
        operands.append(self._emitter.env[argument])
        layout = {"layout": str(value.layout).removeprefix("torch.")}
        named = {"layout": layout, "blocksize": None, "dense_dim": None}
        return {"call": {"operator": "aten::to_sparse", "arguments": [{"tensor": len(operands) - 1}], "named": named}}

    def _described(self, value: Any, operands: list[relax.Expr], node: fx.Node) -> Any:
        if isinstance(value, list | tuple):
            return [self._described(part, operands, node) for part in value]
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            value = value.value
        if isinstance(value, tirx.PrimExpr) and value.dtype != "int64":  # the virtual machine has integers alone
            operands.append(self._emitter.tensor(value, value.dtype))
            return {"number": len(operands) - 1}
        if isinstance(value, relax.Expr | tirx.PrimExpr):
            is_size = isinstance(value, tirx.PrimExpr)
            operands.append(relax.PrimValue(value) if is_size else value)
            return {"size" if is_size else "tensor": len(operands) - 1}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.device):
            return {"device": None}
        for kind, key in _NAMED.items():
            if isinstance(value, kind):
                return {key: str(value).removeprefix("torch.")}
        raise UnsupportedModelError(
            f"{node.target} ({source_of(node)}): an argument is a {type(value).__name__}, which a compiled model "
            "cannot hand to PyTorch. Write it with other operators, or keep that part outside the model."
        )


def _in_memory_order(argument: Any, description: Any) -> Any:
    """The description of an argument whose tensors lie in memory as PyTorch's do; compiled models' are contiguous."""
    if isinstance(argument, list | tuple):
        return [_in_memory_order(*each) for each in zip(argument, description, strict=True)]
    if not (isinstance(argument, fx.Node) and isinstance(description, dict) and "tensor" in description):
        return description
    order = memory_order(argument.meta["val"])
    return description if order is None else {"ordered": [description["tensor"], *order]}


def _description(called: OpOverload, described: Callable[[torch.Argument], Any]) -> dict[str, Any]:
    """A call as :mod:`tkc.runtime.operators` reads it, of arguments as ``described`` describes each."""
    arguments, named = [], {}
    for each in called._schema.arguments:
        if each.kwarg_only:
            named[each.name] = described(each)
        else:
            arguments.append(described(each))
    return {"operator": called.name(), "arguments": arguments, "named": named, "results": "tensors"}


def _declared(results: Any) -> list[Any]:
    """What a fake function says of each result: its dtype and sizes, ``null`` those that only calls know; ``null`` for
    what is no tensor."""
    return [
        {"dtype": str(each.dtype).removeprefix("torch."), "shape": [_static(size) for size in each.shape]}
        if isinstance(each, torch.Tensor)
        else None
        for each in (results if isinstance(results, list | tuple) else [results])
    ]


def _static(size: int | torch.SymInt) -> int | None:
    return None if isinstance(size, torch.SymInt) else size


def _struct_info(results: Any) -> relax.StructInfo:
    if isinstance(results, torch.Tensor):
        return relax.TensorStructInfo(dtype=dtype_name(results.dtype), ndim=results.dim())
    if isinstance(results, torch.SymInt):
        return relax.ShapeStructInfo(ndim=1)
    if results is None:
        return relax.ObjectStructInfo()
    return relax.TupleStructInfo([_struct_info(result) for result in results])
