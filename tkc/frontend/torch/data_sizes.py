"""Sizes and numbers that only data decides: where they are defined, and what the model asserts of them."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from torch import fx
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges
from tvm import relax, tirx

from tkc.contracts import CHECK, CHECK_BOUNDS
from tkc.errors import UnsupportedModelError
from tkc.frontend.origins import held_size
from tkc.frontend.torch.converters import CHECKS
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Emitter, FaultyModelError, source_of
from tkc.frontend.torch.converters.symbols import Size, signed_number
from tkc.frontend.torch.least_sizes import bounds_of_broadcast_selections, conditions_of_operators


class DataSizes:
    """The sizes and numbers of one graph that only data decides, and what the model asserts of them.

    A size is defined where the first value that has it is settled, and checked there for what the model asserts.
    """

    def __init__(
        self, graph: fx.Graph, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]], emitter: Emitter
    ) -> None:
        """``ranges`` are the bounds of the symbols; those that ``emitter`` knows already are not data's to define."""
        self._emitter = emitter
        emitter.data_sizes = self
        self._ranges = ranges
        self._defined: set[sympy.Symbol] = set(emitter.symbols.known)
        for node in graph.find_nodes(op="placeholder"):
            self._defined |= symbols_of(node.meta.get("val"))
        self._of_data: set[sympy.Symbol] = set()
        asserted = ((condition, node) for node in graph.nodes if (condition := _condition(node)) is not None)
        too_small = set(bounds_of_broadcast_selections(graph))
        first: dict[sympy.Basic, fx.Node] = {}
        for condition, node in (*asserted, *conditions_of_operators(graph)):
            # Each by itself, so that of several in one those are seen that settle a size.
            for each in condition.args if isinstance(condition, sympy.And) else (condition,):
                if each not in too_small:
                    first.setdefault(each, node)
        self._conditions = list(first.items())
        self._is_inner = False
        self._asserted_alone: list[tuple[str, relax.Expr, Sequence[tirx.PrimExpr]]] = []

    def within(self, graph: fx.Graph, emitter: Emitter) -> DataSizes:
        """Those of a ``graph`` that this one calls."""
        inner = DataSizes(graph, self._ranges, emitter)
        inner._of_data |= self._of_data
        inner._is_inner = True
        return inner

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
        first = outputs[0]
        for message, holds, others in self._asserted_alone:
            first = self.checking(message, first, holds, *others)
        return [first, *outputs[1:]]

    def checking(self, message: str, value: relax.Expr, holds: relax.Expr, *others: tirx.PrimExpr) -> relax.Var:
        """``value``, which exists where ``holds``, and where the numbers ``others`` do."""
        arguments = [relax.StringImm(message), value, holds, *map(relax.PrimValue, others)]
        return self._emitter.builder.emit(relax.call_pure_packed(CHECK, *arguments, sinfo_args=[value.struct_info]))

    def note_asserted(self, node: fx.Node, message: str, holds: relax.Expr, *others: tirx.PrimExpr) -> None:
        """Note what is asserted of the number that ``node`` reads, if nothing else reads it."""
        if not _is_only_asserted(node):
            return
        if self._is_inner:
            raise UnsupportedModelError(
                f"{node.target} ({source_of(node)}): a branch or the body of a loop asserts something of a number that "
                "nothing else reads, which is not supported. Assert it outside of the function."
            )
        self._asserted_alone.append((message, holds, others))

    def defines_sizes(self, node: fx.Node) -> bool:
        """Whether only the data decides a size of the node's result, which no converter computes."""
        results = node.meta.get("val")
        leaves = results if isinstance(results, list | tuple) else [results]
        return any(symbol not in self._defined for leaf in leaves for symbol in symbols_of(leaf))

    def decide(self, size: Size) -> bool:
        """Whether only the data decides ``size``."""
        if isinstance(size, int | tirx.IntImm):
            return False
        symbols = self._emitter.symbols
        own = [symbols.expression(symbol) for symbol in self._of_data & symbols.known]
        return any(variable.same_as(mine) for variable in tirx.analysis.undefined_vars(size) for mine in own)

    def mixes_sizes(self, node: fx.Node) -> bool:
        """Whether the node takes several tensors with different sizes that only the data decides.

        PyTorch checks in each call that they fit each other; of a compiled function's operands that is known before.
        """
        found = [symbols & self._of_data for each in node.all_input_nodes if (symbols := _sizes_of(each))]
        return len(set().union(*found)) > 1 and sum(map(bool, found)) > 1

    def _bounds(self, symbol: sympy.Expr) -> tuple[int | None, int | None]:
        """The least and the largest integer that the model was exported for."""
        found = self._ranges.get(symbol)
        if found is None:
            return None, None
        least, most = ((int(bound) if abs(bound) < 2**62 else None) for bound in (found.lower, found.upper))
        return least, most

    def _in_bounds(self, shape: relax.Expr, symbol: sympy.Symbol, node: fx.Node) -> relax.Expr:
        """``shape`` of the one integer ``symbol`` that ``node`` reads, which is what the model was exported for."""
        least, most = self._bounds(symbol)
        if least is None and most is None:
            return shape
        bounds = f"at least {least}" if most is None else f"at most {most}" if least is None else f"{least} to {most}"
        message = (
            f"a number that the model reads out of a tensor ({source_of(node)}) is {{number}}; "
            f"it was exported for {bounds}"
        )
        number = self._emitter.symbols.expression(symbol)
        self.note_asserted(node, message, relax.PrimValue(tirx.IntImm("int64", 1)), number)
        return self._within(shape, message, (-_ANY if least is None else least, _ANY if most is None else most))

    def _within(self, shape: relax.Expr, message: str, limits: tuple[int, int]) -> relax.Var:
        """``shape`` of one number between ``limits``; else the call fails with ``message``."""
        arguments = [relax.StringImm(message), shape, *(relax.PrimValue(tirx.IntImm("int64", each)) for each in limits)]
        return self._emitter.builder.emit(
            relax.call_pure_packed(CHECK_BOUNDS, *arguments, sinfo_args=[shape.struct_info])
        )

    def read(self, tensor: relax.Expr, node: fx.Node) -> Any:
        """The integer or the truth value that ``node`` reads out of ``tensor``, which has one element."""
        emitter = self._emitter
        number = emitter.emit(emitter.reshape(emitter.cast(tensor, "int64"), [1]))
        shape, value = emitter.emit(relax.op.tensor_to_shape(number)), node.meta["val"]
        new = symbols_of(value) - self._defined
        for symbol in new if isinstance(value, torch.SymInt) else ():
            self._define_number(value)
            shape = self._in_bounds(shape, symbol, node)
        return self.settled(shape, value, node)

    def counted(self, count: relax.Expr, expected: Any, what: str | None = None) -> Size:
        """The size that ``count``, ``int64 [1]``, holds, which PyTorch calls ``expected`` if it has a name for it.

        Where it may be negative, as no size is, the error says of ``what``.
        """
        emitter = self._emitter
        shape = emitter.emit(relax.op.tensor_to_shape(count))
        if what is not None:
            message = f"{emitter.node.target} ({source_of(emitter.node)}): {what} would be negative: {{number}}"
            shape = self._within(shape, message, (0, _ANY))
        if symbols_of(expected) - self._defined:
            return self.settled(shape, expected, emitter.node)
        size = tirx.SizeVar(f"{emitter.node.name}_count", "int64")
        emitter.builder.match_cast(shape, relax.ShapeStructInfo([size]))
        if expected is None:
            return size
        wanted = emitter.symbols.size(expected)
        message = f"{emitter.node.target} ({source_of(emitter.node)}) does not find as many elements as the model needs"
        checked = self.checking(message, shape, relax.PrimValue(tirx.Cast("int64", _equal(size, wanted))))
        emitter.builder.match_cast(checked, relax.ShapeStructInfo([wanted]))
        return wanted

    def computed(self, size: Size) -> Size:
        """A variable that is ``size``, which is not negative: a result has it that PyTorch gives a name of its own."""
        if isinstance(size, int | tirx.IntImm | tirx.Var):
            return size
        emitter = self._emitter
        variable = tirx.SizeVar(f"{emitter.node.name}_size", "int64")
        emitter.builder.match_cast(held_size(emitter.builder, size), relax.ShapeStructInfo([variable]))
        return variable

    def fitted(self, value: relax.Expr, shape: Sequence[Size], own: Sequence[Size] | None = None) -> relax.Expr:
        """``value`` as one of ``shape``; a call in which it is of another shape, or ``own`` is another one, fails.

        A ``match_cast`` would not do: TVM leaves those out that tell it nothing new.
        """
        emitter = self._emitter
        pairs = zip(own or value.struct_info.shape.values, shape, strict=True)
        unlike = [_equal(size, wanted) for size, wanted in pairs if not emitter.equal(size, wanted)]
        if not unlike:
            return value
        holds = tirx.all(*unlike)
        message = (
            f"{emitter.node.target} ({source_of(emitter.node)}): sizes that the data decides do not fit each other, or "
            "what the model was exported for, in this call"
        )
        info = relax.TensorStructInfo(list(shape), value.struct_info.dtype)
        arguments = [relax.StringImm(message), value, relax.PrimValue(tirx.Cast("int64", holds))]
        return emitter.builder.emit(relax.call_pure_packed(CHECK, *arguments, sinfo_args=[info]))

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
            if not expected.node.expr.free_symbols:
                return self._asserted_truth(value, bool(expected.node.expr), node)
            (symbol,) = expected.node.expr.free_symbols  # which is 0 or 1
            self._emitter.symbols.define(symbol, nonnegative=True)
            number = self._emitter.symbols.expression(symbol)
            self._cast(value, lambda: relax.ShapeStructInfo([number]), new, node)
            return self._emitter.symbols.size(expected)
        if isinstance(expected, torch.SymInt):
            self._define_number(expected)
            self._cast(value, lambda: relax.ShapeStructInfo([self._emitter.symbols.size(expected)]), new, node)
            return self._emitter.symbols.size(expected)
        value, new = self._named(value, expected, new)
        dtype = dtype_name(expected.dtype)
        return self._cast(value, lambda: relax.TensorStructInfo(self._emitter.sizes(expected.shape), dtype), new, node)

    def _named(
        self, value: relax.Expr, expected: torch.Tensor, new: set[sympy.Symbol]
    ) -> tuple[relax.Expr, set[sympy.Symbol]]:
        """``value`` of a shape that is known already, where it is: PyTorch's ``new`` symbols are other names for its
        sizes. Those that remain new are returned, too."""
        shape = value.struct_info.shape
        if not isinstance(shape, relax.ShapeExpr):
            return value, new
        named: dict[sympy.Symbol, Size] = {}
        for size, known in zip(expected.shape, shape.values, strict=True):
            if isinstance(size, torch.SymInt) and size.node.expr in new:
                named.setdefault(size.node.expr, known)
        for symbol, known in named.items():
            self._emitter.symbols.replace(symbol, known)
        self._of_data |= named.keys()
        for message, holds in self.checks(set(named)):
            value = self.checking(message, value, relax.PrimValue(tirx.Cast("int64", holds)))
        if self._replace_equal(set(named)):
            value = self.fitted(value, self._emitter.sizes(expected.shape))
        return value, new - named.keys()

    def _replace_equal(self, new: set[sympy.Symbol]) -> bool:
        """Have the sizes ``new`` that are asserted to be equal to known ones be these from here on; whether any is.

        Refuses a model that asserts something else of them, too.
        """
        replaced: set[sympy.Symbol] = set()
        for symbol, other in _equal_sizes([condition for condition, _ in self._conditions]):
            if symbol in new - replaced and other.free_symbols <= self._defined - new:
                self._emitter.symbols.replace(symbol, self._emitter.symbols.expression(other))
                self._of_data.discard(symbol)
                replaced.add(symbol)
        self.checks(replaced)  # what still depends on the call was found before they were replaced
        return bool(replaced)

    def _asserted_truth(self, value: relax.Expr, known: bool, node: fx.Node) -> tirx.PrimExpr:
        """The truth value that ``value``, 1 or 0 as a shape, has in every call: PyTorch 2.11 puts it in place of what
        the model asserts. A call in which it has the other fails."""
        builder, number = self._emitter.builder, signed_number(node.name)
        builder.match_cast(value, relax.ShapeStructInfo([number]))
        message = f"the model asserts that {source_of(node)} reads {known}, which does not hold in this call"
        holds = relax.PrimValue(tirx.Cast("int64", number == int(known)))
        checked = self.checking(message, value, holds)
        builder.match_cast(checked, relax.ShapeStructInfo([int(known)]))
        return tirx.IntImm("bool", int(known))

    def _define_number(self, value: torch.SymInt) -> None:
        """Give a number that was read out of a tensor its variable, which may be negative, as no size is."""
        symbol = value.node.expr
        least, _ = self._bounds(symbol)
        if isinstance(symbol, sympy.Symbol):
            self._emitter.symbols.define(symbol, nonnegative=least is not None and least >= 0)

    def checks(self, new: set[sympy.Symbol]) -> list[tuple[str, tirx.PrimExpr]]:
        """What the model asserts of the numbers ``new`` and of those that are defined, and the message if it fails.

        Refuses what holds in no call: PyTorch 2.11 exports a slice of one row for two.
        """
        symbols, found = self._emitter.symbols, []
        for condition, node in self._conditions:
            if not condition.free_symbols & new or not condition.free_symbols <= self._defined:
                continue
            holds = symbols.condition(condition)
            if symbols.is_certain(tirx.Not(holds)):
                raise FaultyModelError(f"{_exported_for(condition, node)}, which holds in no call")
            if not symbols.is_certain(holds):
                found.append((_message(condition, node), holds))
        return found

    def _cast(
        self, value: relax.Expr, sinfo: Callable[[], relax.StructInfo], new: set[sympy.Symbol], node: fx.Node
    ) -> relax.Expr:
        """``value`` as ``sinfo``, which defines the sizes ``new``; calls are checked for what the model asserts.

        A new size that is asserted to be equal to a known one is that one from there on.
        """
        builder, symbols = self._emitter.builder, self._emitter.symbols
        conditions = self.checks(new)
        if conditions:
            # The sizes are those of what was checked, so that nothing is computed from others.
            unchecked = {symbols.expression(symbol): signed_number(f"{symbol.name}_unchecked") for symbol in new}
            builder.match_cast(value, _substituted(sinfo(), unchecked))
            for message, holds in conditions:
                condition = tirx.Cast("int64", tirx.stmt_functor.substitute(holds, unchecked))
                value = self.checking(message, value, relax.PrimValue(condition))
        self._of_data |= new
        self._replace_equal(new)
        result = builder.match_cast(value, sinfo())
        for message, holds in conditions:
            self.note_asserted(node, message, relax.PrimValue(tirx.Cast("int64", holds)))
        return result

    def define(self, symbol: sympy.Symbol) -> None:
        """Take ``symbol`` for a number that is known from here on."""
        self._defined.add(symbol)


def _equal(left: Size, right: Size) -> tirx.PrimExpr:
    sides = (tirx.IntImm("int64", each) if isinstance(each, int) else each for each in (left, right))
    return tirx.EQ(*sides)


_ANY = 2**63 - 1
"""No integer is larger."""


def _is_only_asserted(node: fx.Node) -> bool:
    """Whether the model does nothing with the number that ``node`` is but assert something of it."""
    if not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return all(str(user.target) in CHECKS or _is_only_asserted(user) for user in node.users)


def _message(condition: sympy.Basic, node: fx.Node) -> str:
    """What to say where ``condition``, which ``node`` asserts or asks for, does not hold."""
    said = node.args[1] if str(node.target) == "aten._assert_scalar.default" else ""
    own = f": {said}" if said and not str(said).startswith("Runtime assertion failed") else ""
    return f"{_exported_for(condition, node)}, which does not hold in this call{own}"


def _exported_for(condition: sympy.Basic, node: fx.Node) -> str:
    return f"the model was exported for {PythonPrinter().doprint(condition)} ({source_of(node)})"


def _equal_sizes(conditions: Sequence[sympy.Basic]) -> Iterator[tuple[sympy.Symbol, sympy.Expr]]:
    """The sizes that ``conditions`` say are equal to something, or both at least and at most that."""
    most: dict[sympy.Symbol, list[sympy.Expr]] = defaultdict(list)
    least: dict[sympy.Symbol, list[sympy.Expr]] = defaultdict(list)
    for condition in conditions:
        for relation in (condition, condition.reversed) if isinstance(condition, Relational) else ():
            size, other = relation.args
            if not isinstance(size, sympy.Symbol):
                continue
            if isinstance(relation, sympy.Eq):
                yield size, other
            elif isinstance(relation, sympy.Le | sympy.Lt):
                most[size].append(other - int(isinstance(relation, sympy.Lt)))
            elif isinstance(relation, sympy.Ge | sympy.Gt):
                least[size].append(other + int(isinstance(relation, sympy.Gt)))
    yield from ((size, other) for size, others in most.items() for other in others if other in least[size])


def _substituted(sinfo: relax.StructInfo, sizes: Mapping[tirx.Var, tirx.Var]) -> relax.StructInfo:
    shape = sinfo.values if isinstance(sinfo, relax.ShapeStructInfo) else sinfo.shape.values
    values = [tirx.stmt_functor.substitute(size, sizes) for size in shape]
    is_shape = isinstance(sinfo, relax.ShapeStructInfo)
    return relax.ShapeStructInfo(values) if is_shape else relax.TensorStructInfo(values, sinfo.dtype)


def _sizes_of(node: fx.Node) -> set[sympy.Symbol]:
    """The symbols in the shape of the tensor that ``node`` is."""
    value = node.meta.get("val")
    return symbols_of(value) if isinstance(value, torch.Tensor) else set()


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """The symbols in the shape of a (fake) tensor, or in a number."""
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else [value]
    return {s for size in sizes if isinstance(size, torch.SymInt | torch.SymBool) for s in size.node.expr.free_symbols}


def _condition(node: fx.Node) -> sympy.Basic | None:
    """The condition on sizes that a node asserts."""
    if str(node.target) != "aten._assert_scalar.default" or not isinstance(node.args[0], fx.Node):
        return None
    value = node.args[0].meta["val"]
    if not isinstance(value, torch.SymBool):
        return None
    # What PyTorch asserted once is true to it when it traces the same again.
    written = None if value.node.expr.free_symbols else _compared(node.args[0])
    return value.node.expr if written is None else written


def _compared(node: fx.Node) -> sympy.Basic | None:
    """The relation between sizes that ``node`` computes, or several, whatever PyTorch knows of it."""
    if node.target is operator.and_:
        both = [_compared(each) if isinstance(each, fx.Node) else None for each in node.args]
        return (
            sympy.And(*(each for each in both if each is not None)) if any(each is not None for each in both) else None
        )
    relation = _RELATIONS.get(node.target)
    if relation is None:
        return None
    values = [each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args]
    if not all(isinstance(value, int | torch.SymInt) for value in values):
        return None
    left, right = (value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value) for value in values)
    return relation(left, right)


_RELATIONS: dict[Any, Callable[..., Any]] = {
    operator.eq: sympy.Eq,
    operator.ne: sympy.Ne,
    operator.lt: sympy.Lt,
    operator.le: sympy.Le,
    operator.gt: sympy.Gt,
    operator.ge: sympy.Ge,
}
