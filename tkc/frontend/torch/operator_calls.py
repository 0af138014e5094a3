"""Operators without a converter as calls of PyTorch's own, in place: the last resort, which the report names."""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._sympy.value_ranges import ValueRanges
from tvm import relax, tirx

from tkc.contracts import CALL_OPERATOR, CHECK_SIZES
from tkc.errors import UnsupportedModelError
from tkc.frontend.model import OperatorCall
from tkc.frontend.torch.converters import CHECKS
from tkc.frontend.torch.converters.emitter import Emitter, dtype_name, source_of
from tkc.frontend.torch.least_sizes import conditions_of_operators
from tkc.frontend.torch.mutation import functional_name
from tkc.frontend.torch.pair_calls import CALL_ON_PAIRS

READS_ELEMENT = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that read a number out of a tensor."""

_ITEM = "aten::_local_scalar_dense"

_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


_VIEWS = {"slice": ("slice_dim", "slice_start", "slice_end"), "strided": ("size", "stride", "storage_offset")}
"""How PyTorch's functional form names the parts of a view that an operator writes into."""


def can_be_called(node: fx.Node) -> bool:
    """Whether the node's operator can be called in place: it takes what can be described, and returns tensors of real
    numbers, or one integer. What it writes into is copied, as in functional form (:func:`written_by`)."""
    called = written_by(node) or _operator(node)
    if called is None or (called._schema.is_mutable and not _can_be_copied(node)):
        return False
    results = node.meta.get("val")
    if isinstance(results, torch.SymInt | torch.SymFloat | torch.SymBool):
        return str(node.target) in READS_ELEMENT
    leaves = results if isinstance(results, list | tuple) else [results]
    if not any(map(_is_real_tensor, leaves)) or not all(leaf is None or _is_real_tensor(leaf) for leaf in leaves):
        return False  # without a result nothing says when it is called: it tests for errors, or prints
    inputs = [given.meta.get("val") for given in node.all_input_nodes]
    return all(_is_real_tensor(part) or not isinstance(part, torch.Tensor) for part in inputs)


def written_by(node: fx.Node) -> OpOverload | None:
    """The operator whose writes into its arguments the node returns as new tensors: ``auto_functionalized_v2``, which
    PyTorch's functional form has for operators of other libraries."""
    if node.target is not torch.ops.higher_order.auto_functionalized_v2:
        return None
    operator = node.args[0]
    return operator if isinstance(operator, OpOverload) else None


def _can_be_copied(node: fx.Node) -> bool:
    """Whether what the operator writes into are whole tensors or views that can be made of copies of them."""
    if written_by(node) is None:
        return False
    bases: Any = node.kwargs["_all_bases"]
    # Strides are those of PyTorch's tensors, which in compiled models are contiguous.
    strided = any(name.endswith("_storage_offset") for name in node.kwargs)
    return not strided or all(base.meta["val"].is_contiguous() for base in bases)


def reads_float(node: fx.Node) -> bool:
    """Whether the node reads a float out of a tensor."""
    return isinstance(node.meta.get("val"), torch.SymFloat) and str(node.target) in READS_ELEMENT


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


def _is_real_tensor(value: Any) -> bool:
    # What the graph holds is dense and of the default device; other kinds TVM has no tensors of.
    return isinstance(value, torch.Tensor) and not value.is_complex() and value.layout == torch.strided


def _operator(node: fx.Node) -> OpOverload | None:
    """The operator that computes what the node's does, and writes into nothing; ``None`` where PyTorch has none."""
    if not isinstance(node.target, OpOverload):
        return None
    name = functional_name(node)
    if name == str(node.target):
        return node.target
    namespace, base, overload = name.split(".", 2)
    found = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
    return found if isinstance(found, OpOverload) else None


class OperatorCalls:
    """Emits calls of operators in one graph, and the checks of the sizes that only they decide."""

    def __init__(
        self, graph: fx.Graph, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]], emitter: Emitter
    ) -> None:
        """``ranges`` are the bounds of the symbols; those that ``emitter`` knows already are no call's to define."""
        self._emitter = emitter
        self._ranges = ranges
        self._defined: set[sympy.Symbol] = set(emitter.symbols.known)
        for node in graph.find_nodes(op="placeholder"):
            self._defined |= symbols_of(node.meta.get("val"))
        self._of_data: set[sympy.Symbol] = set()
        self._conditions = [(condition, node) for node in graph.nodes if (condition := _condition(node)) is not None]
        asserted = {condition for condition, _ in self._conditions}
        self._conditions += (each for each in conditions_of_operators(graph) if each[0] not in asserted)
        self._calls: dict[str, list[str]] = {}
        self._why: dict[str, str] = {}
        self._is_inner = False
        self._asserted_alone: list[tuple[str, relax.Expr]] = []

    def within(self, graph: fx.Graph, emitter: Emitter) -> OperatorCalls:
        """Calls in a ``graph`` that this one calls; they are listed with the others."""
        inner = OperatorCalls(graph, self._ranges, emitter)
        inner._of_data |= self._of_data
        inner._is_inner = True
        inner._calls, inner._why = self._calls, self._why
        return inner

    def calls(self) -> tuple[OperatorCall, ...]:
        """What was emitted, by operator."""
        return tuple(
            OperatorCall(name, len(sources), tuple(Counter(sources)), self._why[name])
            for name, sources in self._calls.items()
        )

    def checked(self, outputs: list[relax.Expr]) -> list[relax.Expr]:
        """``outputs`` of the graph, which exist where all holds that is asserted of numbers that nothing else reads.

        What is checked where such a number is read would be removed with it, as what nothing reads.
        """
        if not self._asserted_alone:
            return outputs
        if not outputs:
            raise UnsupportedModelError(
                "the model asserts something of a number and returns no tensor, which is not supported. Return one."
            )
        first, *others = outputs
        for message, holds in self._asserted_alone:
            first = self._emitter.builder.emit(
                relax.call_pure_packed(
                    CHECK_SIZES, relax.StringImm(message), first, holds, sinfo_args=[first.struct_info]
                )
            )
        return [first, *others]

    def _note_asserted(self, node: fx.Node, message: str, holds: relax.Expr) -> None:
        """Note what is asserted of the number that ``node`` reads, if nothing else reads it."""
        if not _is_only_asserted(node):
            return
        if self._is_inner:
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): a branch or the body of a loop asserts something of a number that "
                "nothing else reads, which is not supported. Assert it outside of the function."
            )
        self._asserted_alone.append((message, holds))

    def defines_sizes(self, node: fx.Node) -> bool:
        """Whether only the data decides a size of the node's result, which no converter computes."""
        results = node.meta.get("val")
        leaves = results if isinstance(results, list | tuple) else [results]
        return any(symbol not in self._defined for leaf in leaves for symbol in symbols_of(leaf))

    def mixes_sizes(self, node: fx.Node) -> bool:
        """Whether the node takes tensors of several sizes that only the data decides.

        PyTorch checks in each call that they fit each other; of a compiled function's operands that is known before.
        """
        values = (given.meta.get("val") for given in node.all_input_nodes)
        found = {symbol for value in values if isinstance(value, torch.Tensor) for symbol in symbols_of(value)}
        return len(found & self._of_data) > 1

    def emit(self, node: fx.Node, why: str) -> None:
        """Emit a call of the node's operator, which TKC does not compile because ``why``.

        Raises :class:`UnsupportedModelError` where an argument cannot be described.
        """
        called = written_by(node) or _operator(node)
        assert called is not None
        name = called.name()
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
        if isinstance(results, torch.SymInt):
            description["results"] = self._bounds(results)
        if isinstance(results, torch.SymBool):
            description["results"] = [0, 1]
        if torch.Tag.nondeterministic_seeded in called.tags:
            description["call"] = node.name  # equal calls give different numbers
        sinfo = _struct_info(results)
        call = relax.call_pure_packed(
            CALL_OPERATOR, relax.StringImm(json.dumps(description)), *operands, sinfo_args=[sinfo]
        )
        with self._emitter.converting(node):
            self._emitter.env[node] = self.settled(self._emitter.builder.emit(call), results, node)
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
            self._defined.add(symbol)
            for message, condition in self._checks({symbol}):
                holds = emitter.tensor(condition, "bool")
                self._note_asserted(node, message, holds)
                number = emitter.builder.emit(
                    relax.call_pure_packed(
                        CHECK_SIZES, relax.StringImm(message), number, holds, sinfo_args=[number.struct_info]
                    )
                )
                self._note(_ITEM, node, "the model asserts something of a number that it reads out of a tensor")
            emitter.read_float(symbol, number)
            emitter.env[node] = symbols.expression(symbol)

    def read_integer(self, node: fx.Node) -> None:
        """Emit how an integer that is computed from floats of tensors becomes one that sizes can be computed from."""
        emitter = self._emitter
        value = node.meta["val"]
        with emitter.converting(node):
            number = emitter.tensor(emitter.symbols.size(value), "int64")
            description = {
                "operator": _ITEM,
                "arguments": [{"tensor": 0}],
                "named": {},
                "results": [None, None],
            }
            shape = emitter.builder.emit(
                relax.call_pure_packed(
                    CALL_OPERATOR,
                    relax.StringImm(json.dumps(description)),
                    number,
                    sinfo_args=[relax.ShapeStructInfo(ndim=1)],
                )
            )
            variable = tirx.Var(node.name, "int64")
            emitter.builder.match_cast(shape, relax.ShapeStructInfo([variable]))
            emitter.symbols.replace(value.node.expr, variable)
            emitter.env[node] = variable
        self._note(_ITEM, node, "a number is computed from one that is read out of a tensor")

    def _plain_call(self, node: fx.Node, called: OpOverload, operands: list[relax.Expr]) -> dict[str, Any]:
        """The description of a call that writes into nothing; tensors and sizes go to ``operands``."""
        names = (argument.name for argument in called._schema.arguments)
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)

        def described(each: torch.Argument) -> Any:
            return self._described(self._emitter.resolve(given.get(each.name, each.default_value)), operands, node)

        return _description(called, described)

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

    def _bounds(self, value: torch.SymInt) -> list[int | None]:
        """What the integer was exported for."""
        found = self._ranges.get(value.node.expr)
        if found is None:
            return [None, None]
        least, most = ((int(bound) if abs(bound) < 2**62 else None) for bound in (found.lower, found.upper))
        return [least, most]

    def settled(self, value: relax.Expr, expected: Any, node: fx.Node) -> Any:
        """``value`` with the sizes that PyTorch states; those met for the first time are defined by it."""
        builder = self._emitter.builder
        if isinstance(expected, list | tuple):
            # Of results that nothing reads, PyTorch may state sizes that they do not have.
            read = {user.args[1] for user in node.users if user.target is operator.getitem and user.users}
            return [
                self.settled(builder.emit(relax.TupleGetItem(value, i)), each, node) if i in read else None
                for i, each in enumerate(expected)
            ]
        if expected is None:
            return None
        new = {symbol for symbol in symbols_of(expected) if symbol not in self._defined}
        self._defined |= new
        if isinstance(expected, torch.SymBool):
            (symbol,) = expected.node.expr.free_symbols  # which is 0 or 1
            self._emitter.symbols.define(symbol, nonnegative=True)
            number = self._emitter.symbols.expression(symbol)
            self._cast(value, lambda: relax.ShapeStructInfo([number]), new, node)
            return self._emitter.symbols.size(expected)
        if isinstance(expected, torch.SymInt):
            self._define_number(expected)
            self._cast(value, lambda: relax.ShapeStructInfo([self._emitter.symbols.size(expected)]), new, node)
            return self._emitter.symbols.size(expected)
        dtype = dtype_name(expected.dtype)
        return self._cast(value, lambda: relax.TensorStructInfo(self._emitter.sizes(expected.shape), dtype), new, node)

    def _define_number(self, value: torch.SymInt) -> None:
        """Give a number that was read out of a tensor its variable, which may be negative, as no size is."""
        symbol, (least, _) = value.node.expr, self._bounds(value)
        if isinstance(symbol, sympy.Symbol):
            self._emitter.symbols.define(symbol, nonnegative=least is not None and least >= 0)

    def _checks(self, new: set[sympy.Symbol]) -> list[tuple[str, tirx.PrimExpr]]:
        """What the model asserts of the numbers ``new`` and of those that are defined, and the message if it fails."""
        return [
            (f"the model was exported for {condition} ({source_of(node)}), which does not hold in this call", holds)
            for condition, node in self._conditions
            if condition.free_symbols & new and condition.free_symbols <= self._defined
            if not self._emitter.symbols.is_certain(holds := self._emitter.symbols.condition(condition))
        ]

    def _cast(
        self, value: relax.Expr, sinfo: Callable[[], relax.StructInfo], new: set[sympy.Symbol], node: fx.Node
    ) -> relax.Expr:
        """``value`` as ``sinfo``, which defines the sizes ``new``; calls are checked for what the model asserts.

        A new size that is asserted to be equal to a known one is that one from there on.
        """
        builder, symbols = self._emitter.builder, self._emitter.symbols
        conditions = self._checks(new)
        if conditions:
            # The sizes are those of what was checked, so that nothing is computed from others.
            unchecked = {symbols.expression(symbol): tirx.Var(f"{symbol.name}_unchecked", "int64") for symbol in new}
            seen = value.struct_info
            builder.match_cast(value, _substituted(sinfo(), unchecked))
            for message, holds in conditions:
                condition = tirx.Cast("int64", tirx.stmt_functor.substitute(holds, unchecked))
                value = builder.emit(
                    relax.call_pure_packed(
                        CHECK_SIZES, relax.StringImm(message), value, relax.PrimValue(condition), sinfo_args=[seen]
                    )
                )
        self._of_data |= new
        for condition, _ in self._conditions:
            for symbol, other in _equal_sizes(condition):
                if symbol in new and other.free_symbols <= self._defined - new:
                    symbols.replace(symbol, symbols.expression(other))
                    self._of_data.discard(symbol)
        result = builder.match_cast(value, sinfo())
        for message, holds in conditions:
            self._note_asserted(node, message, relax.PrimValue(tirx.Cast("int64", holds)))
        return result


def _description(called: OpOverload, described: Callable[[torch.Argument], Any]) -> dict[str, Any]:
    """A call as :mod:`tkc.runtime.operators` reads it, of arguments as ``described`` describes each."""
    arguments, named = [], {}
    for each in called._schema.arguments:
        if each.kwarg_only:
            named[each.name] = described(each)
        else:
            arguments.append(described(each))
    return {"operator": called.name(), "arguments": arguments, "named": named, "results": "tensors"}


def _is_only_asserted(node: fx.Node) -> bool:
    """Whether the model does nothing with the number that ``node`` is but assert something of it."""
    if not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return all(str(user.target) in CHECKS or _is_only_asserted(user) for user in node.users)


def _equal_sizes(condition: sympy.Basic) -> list[tuple[sympy.Symbol, sympy.Expr]]:
    """The sizes that ``condition`` says are equal to something."""
    pairs = [condition.args, condition.args[::-1]] if isinstance(condition, sympy.Eq) else []
    return [(left, right) for left, right in pairs if isinstance(left, sympy.Symbol)]


def _substituted(sinfo: relax.StructInfo, sizes: Mapping[tirx.Var, tirx.Var]) -> relax.StructInfo:
    shape = sinfo.values if isinstance(sinfo, relax.ShapeStructInfo) else sinfo.shape.values
    values = [tirx.stmt_functor.substitute(size, sizes) for size in shape]
    is_shape = isinstance(sinfo, relax.ShapeStructInfo)
    return relax.ShapeStructInfo(values) if is_shape else relax.TensorStructInfo(values, sinfo.dtype)


def _struct_info(results: Any) -> relax.StructInfo:
    if isinstance(results, torch.SymInt | torch.SymBool):
        return relax.ShapeStructInfo(ndim=1)
    if isinstance(results, torch.Tensor):
        return relax.TensorStructInfo(dtype=dtype_name(results.dtype), ndim=results.dim())
    if results is None:
        return relax.ObjectStructInfo()
    return relax.TupleStructInfo([_struct_info(result) for result in results])


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """The symbols in the shape of a (fake) tensor, or in a number."""
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else [value]
    return {s for size in sizes if isinstance(size, torch.SymInt | torch.SymBool) for s in size.node.expr.free_symbols}


def _condition(node: fx.Node) -> sympy.Basic | None:
    """The condition on sizes that a node asserts."""
    if str(node.target) != "aten._assert_scalar.default" or not isinstance(node.args[0], fx.Node):
        return None
    value = node.args[0].meta["val"]
    return value.node.expr if isinstance(value, torch.SymBool) else None
