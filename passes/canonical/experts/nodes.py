"""What is computed for each copy of a token, and its emission for copies that are sorted by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvm import relax, tirx
from tvm.relax import op

from tkc.passes.canonical.experts.routing import Weights
from tkc.passes.graph.bindings import dtype, shape
from tkc.passes.graph.expert_functions import expert_counts, grouped_matmul

Layout = Literal["gnk", "gkn"]


@dataclass(frozen=True, eq=False)
class Shared:
    """A number, or one for each channel, of all tokens and experts."""

    value: relax.Expr


@dataclass(frozen=True, eq=False)
class Rows:
    """``value [..., channels]``: a row for each token, the same for all experts."""

    value: relax.Expr


@dataclass(frozen=True, eq=False)
class Copies:
    """``value [..., channels]``: a row for each choice of each token, in their order."""

    value: relax.Expr


@dataclass(frozen=True, eq=False)
class Weighted:
    """``value``: a number for each choice of each token, in their order; a column."""

    value: relax.Expr


@dataclass(frozen=True, eq=False)
class Chosen:
    """The weights of the chosen experts, a column."""

    weights: Weights


@dataclass(frozen=True, eq=False)
class OfExpert:
    """Vectors of experts: one tensor ``[experts, channels]``, or one for each."""

    sources: Sequence[relax.Expr]


@dataclass(frozen=True, eq=False)
class Applied:
    """An operator on each element, or on the last axis; operands that are no nodes stay as they are."""

    call: relax.Call
    operands: Sequence[Node | relax.Expr]


@dataclass(frozen=True, eq=False)
class Piece:
    """``size`` channels from ``begin`` on, ``stride`` apart."""

    operand: Node
    begin: int
    size: int
    stride: int = 1


@dataclass(frozen=True, eq=False)
class Where:
    """``operand`` of the chosen experts; of others it is zero."""

    operand: Node


@dataclass(frozen=True, eq=False)
class Product:
    """``operand`` times the weights of experts: one tensor of all, or a matrix for each."""

    operand: Node
    sources: Sequence[relax.Expr]
    layout: Layout
    columns: int
    first: bool
    """Whether an activation reads it, so that it comes before others of the same operand."""
    packable: bool
    """Whether the weights can be concatenated once, and not at every call."""
    folded: bool = False
    """Whether the one source is ``[k, experts * columns]``."""


Node: TypeAlias = Shared | Rows | Copies | Weighted | Chosen | OfExpert | Applied | Piece | Where | Product


def is_zero_unless_chosen(node: Node) -> bool:
    """Whether ``node`` is zero for experts that a token did not choose, as long as all numbers are finite."""
    match node:
        case Chosen() | Where():
            return True
        case Product(operand=operand) | Piece(operand=operand):
            return is_zero_unless_chosen(operand)
        case Applied(call=call, operands=operands):
            zeros = [isinstance(each, Node) and is_zero_unless_chosen(each) for each in operands]
            name = call.op.name.removeprefix("relax.")
            if name == "multiply":
                return any(zeros)
            if name in ("astype", "divide", "negative"):
                return zeros[0]
            return name in ("add", "subtract") and all(zeros)
    return False


def has_product(node: Node | relax.Expr) -> bool:
    """Whether experts multiply anything in ``node``."""
    match node:
        case Product():
            return True
        case Applied(operands=operands):
            return any(map(has_product, operands))
        case Piece(operand=operand) | Where(operand=operand):
            return has_product(operand)
    return False


class Emission:
    """Emits nodes for the copies of tokens whose ``indices [..., top_k]`` name ``num_experts`` experts."""

    def __init__(
        self, builder: relax.BlockBuilder, indices: relax.Expr, top_k: int, copies: tirx.PrimExpr, num_experts: int
    ) -> None:
        self.builder, self.top_k, self.copies, self.num_experts = builder, top_k, copies, num_experts
        name = dtype(indices)
        experts = self.emit(op.reshape(indices, (copies,)))
        self._order = self.emit(op.argsort(experts, axis=0, descending=False, dtype=name))
        self._sorted = self.emit(op.take(experts, self._order, axis=0, mode="clip"))
        self._inverse = self.emit(op.argsort(self._order, axis=0, descending=False, dtype=name))
        self._tokens = self.emit(op.floor_divide(self._order, relax.const(top_k, name)))
        counts = expert_counts(builder, self._sorted, num_experts)
        self._offsets = self.emit(op.cumsum(counts, axis=0, dtype="int32"))
        self._emitted: dict[int, relax.Expr] = {}
        self._kept: list[Node] = []
        self._products: dict[int, list[Product]] = {}

    def emit(self, value: relax.Expr) -> relax.Expr:
        """A variable that holds ``value``."""
        return self.builder.emit(value)

    def combined(self, node: Node) -> relax.Expr:
        """The sum of a token's copies of ``node``, ``[tokens, channels]``."""
        self._collect(node)
        rows = self._value(node)
        own = self.emit(op.take(rows, self._inverse, axis=0, mode="clip"))
        tokens, channels = tirx.floordiv(self.copies, self.top_k), shape(rows)[-1]
        grouped = self.emit(op.reshape(own, (tokens, self.top_k, channels)))
        return self.emit(op.sum(grouped, axis=[1]))

    def _collect(self, node: Node | relax.Expr) -> None:
        """Note which products have one operand."""
        match node:
            case Product(operand=operand):
                found = self._products.setdefault(id(operand), [])
                if not any(each is node for each in found):
                    found.append(node)
                    self._collect(operand)
            case Applied(operands=operands):
                for operand in operands:
                    self._collect(operand)
            case Piece(operand=operand) | Where(operand=operand):
                self._collect(operand)

    def _value(self, node: Node) -> relax.Expr:
        """``node`` for the sorted copies, a matrix (or a vector or number of all)."""
        if id(node) not in self._emitted:
            self._kept.append(node)  # its id is no other's
            self._emitted[id(node)] = self._made(node)
        return self._emitted[id(node)]

    def _made(self, node: Node) -> relax.Expr:
        match node:
            case Shared(value=value):
                return value
            case Rows(value=value):
                rows = (tirx.floordiv(self.copies, self.top_k), _channels(value))
                return self._taken(self._reshaped(value, rows), self._tokens)
            case Copies(value=value):
                return self._taken(self._reshaped(value, (self.copies, _channels(value))), self._order)
            case Weighted(value=value):
                column = self._taken(self._reshaped(value, (self.copies,)), self._order)
                return self.emit(op.expand_dims(column, 1))
            case Chosen(weights=weights):
                column = self._taken(self.emit(op.reshape(weights(self.emit), (self.copies,))), self._order)
                return self.emit(op.expand_dims(column, 1))
            case OfExpert(sources=sources):
                return self._taken(self._stacked(sources), self._sorted)
            case Applied(call=call, operands=operands):
                values = [each if isinstance(each, relax.Expr) else self._value(each) for each in operands]
                return self.emit(relax.Call(call.op, values, call.attrs))
            case Piece(operand=operand, begin=begin, size=size, stride=stride):
                end = begin + (size - 1) * stride + 1
                return self.emit(
                    op.strided_slice(self._value(operand), [1], [begin], [end], [stride], assume_inbound=True)
                )
            case Where(operand=operand):
                return self._value(operand)
            case Product():
                return self._multiplied(node)

    def _multiplied(self, node: Product) -> relax.Expr:
        """One product for all that have an operand, if their weights can be concatenated."""
        group = [each for each in self._products[id(node.operand)] if each.layout == node.layout and each.packable]
        if not node.packable or len(group) < 2 or len({len(each.sources) for each in group}) > 1:
            group = [node]
        group.sort(key=lambda each: not each.first)
        axis = 1 if node.layout == "gnk" else 2
        if len(group) == 1:
            weight = self._stacked(node.sources)
            if node.folded:
                sizes = (shape(weight)[0], self.num_experts, node.columns)
                weight = self.emit(op.permute_dims(self._reshaped(weight, sizes), [1, 0, 2]))
        elif len(node.sources) == 1:
            weight = self.emit(op.concat([each.sources[0] for each in group], axis))
        elif node.layout == "gnk":
            weight = self._stacked([part for parts in zip(*(e.sources for e in group), strict=True) for part in parts])
            sizes = shape(group[0].sources[0])
            weight = self.emit(op.reshape(weight, (self.num_experts, sum(e.columns for e in group), sizes[1])))
        else:
            weight = self.emit(op.concat([self._stacked(each.sources) for each in group], axis))
        product = grouped_matmul(self.builder, self._value(node.operand), weight, self._offsets, node.layout)
        begin = 0
        for each in group:
            whole = len(group) == 1
            end = begin + each.columns
            part = (
                product
                if whole
                else self.emit(op.strided_slice(product, [1], [begin], [end], [1], assume_inbound=True))
            )
            self._kept.append(each)
            self._emitted[id(each)] = part
            begin = end
        return self._emitted[id(node)]

    def _stacked(self, sources: Sequence[relax.Expr]) -> relax.Expr:
        """Tensors of one shape along a new first axis; one alone is stacked already."""
        if len(sources) == 1:
            return sources[0]
        dims = shape(sources[0])
        if len({tuple(map(str, shape(each))) for each in sources}) > 1:
            return self.emit(op.concat(list(sources), 0))
        return self.emit(op.reshape(self.emit(op.concat(list(sources), 0)), (len(sources), *dims)))

    def _taken(self, value: relax.Expr, rows: relax.Expr) -> relax.Expr:
        return self.emit(op.take(value, rows, axis=0, mode="clip"))

    def _reshaped(self, value: relax.Expr, dims: Sequence[tirx.PrimExpr | int]) -> relax.Expr:
        return self.emit(op.reshape(value, dims))


def _channels(value: relax.Expr) -> tirx.PrimExpr | int:
    """The size of the last axis; 1 for a list of one number for each row."""
    dims = shape(value)
    return dims[-1] if len(dims) > 1 else 1
