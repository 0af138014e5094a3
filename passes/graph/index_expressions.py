"""Reads a value that is computed from positions alone as a scalar expression in the index of one element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tkc.passes.graph.bindings import Graph, known_dims, shape
from tkc.passes.graph.elements import (
    Choice,
    DataDependent,
    Element,
    converted,
    distributed,
    has_floats,
    literal,
    quotient,
    unequal,
    whole_quotient,
)
from tkc.passes.graph.views import Index, IndexSpace, broadcast_index, int64, view_source

_TRUE, _FALSE = tirx.const(True, "bool"), tirx.const(False, "bool")


class IndexExpressions:
    """The elements of the values of one graph, as expressions in ``space``'s variables.

    Nothing here is guessed: what cannot be told for every index in bounds is ``None``. Whole numbers are
    taken as unbounded, as positions in a tensor cannot overflow the types they are counted in.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.space = IndexSpace.of(graph)

    def element(self, expr: relax.Expr, index: Index) -> Element | None:
        """What the tensor ``expr`` holds at ``index``; ``None`` where that depends on more than the index and sizes."""
        try:
            return self._element(expr, index)
        except DataDependent:
            return None

    def source(self, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index] | None:
        """The tensor from which ``expr`` is a selection of elements, and the index there of the one at ``index``.

        Covers views, and elements taken by indices that are computed from positions. ``None`` for everything else.
        """
        try:
            return self._source(expr, index)
        except DataDependent:
            return None

    def _element(self, expr: relax.Expr, index: Index) -> Element:
        value = self.graph.value(expr)
        if isinstance(value, relax.Constant):
            return self._constant(value, index)
        if isinstance(value, relax.PrimValue):
            return literal(value.value)
        if (source := self._source(value, index)) is not None:
            return self._element(*source)
        call = self.graph.call(value, *_READERS)
        if call is None:
            raise DataDependent
        return self._simplified(_READERS[call.op.name](self, call, index))

    def _source(self, expr: relax.Expr, index: Index) -> tuple[relax.Expr, Index] | None:
        value = self.graph.value(expr)
        if (source := view_source(self.graph, self.space, value, index)) is not None:
            return source
        call = self.graph.call(value, *_SELECTIONS)
        if call is None or any(known_dims(x.struct_info) is None for x in (call, call.args[0])):
            return None
        source_index = self.space.simplified(_SELECTIONS[call.op.name](self, call, index))
        if not all(map(self.space.within, source_index, shape(call.args[0]))):
            return None
        return call.args[0], source_index

    def _simplified(self, element: Element) -> Element:
        if isinstance(element, float):
            return element
        if isinstance(element, Choice):
            return self._choice(element.condition, element.chosen, element.otherwise)
        return self.space.simplest(element)

    def _operands(self, call: relax.Call, index: Index) -> list[Element]:
        return [self._element(arg, broadcast_index(index, _dims(arg))) for arg in call.args]

    def _number(self, expr: relax.Expr, index: Index) -> tirx.PrimExpr:
        element = self._element(expr, index)
        if not isinstance(element, tirx.PrimExpr) or element.dtype == "bool":
            raise DataDependent
        return element

    def _choice(self, condition: tirx.PrimExpr, chosen: Element, otherwise: Element) -> Element:
        """``chosen`` or ``otherwise``; one alone where the other is impossible or makes no difference."""
        analyzer = self.space.analyzer
        condition = analyzer.simplify(condition)
        if analyzer.can_prove(condition) or self._same_where(tirx.Not(condition), chosen, otherwise):
            return chosen
        if analyzer.can_prove(tirx.Not(condition)) or self._same_where(condition, chosen, otherwise):
            return otherwise
        if isinstance(chosen, tirx.PrimExpr) and isinstance(otherwise, tirx.PrimExpr):
            if chosen.dtype == "bool":
                return tirx.Or(tirx.And(condition, chosen), tirx.And(tirx.Not(condition), otherwise))
            return tirx.Select(condition, chosen, otherwise)
        return Choice(condition, chosen, otherwise)

    def _same_where(self, condition: tirx.PrimExpr, left: Element, right: Element) -> bool:
        if not (isinstance(left, tirx.PrimExpr) and isinstance(right, tirx.PrimExpr)):
            return left == right
        if structural_equal(left, right):
            return True
        with self.space.analyzer.constraint_scope(condition):
            return left.dtype != "bool" and self.space.analyzer.can_prove_equal(left, right)

    def _constant(self, constant: relax.Constant, index: Index) -> Element:
        """An element of a literal that is uniform, an evenly stepped row, or a triangle of two values."""
        array = constant.data.numpy()
        if array.size == 0:
            raise DataDependent
        axes = [axis for axis in range(array.ndim) if not (array == array.take([0], axis)).all()]
        core = array[tuple(slice(None) if axis in axes else 0 for axis in range(array.ndim))]
        if core.ndim == 0:
            return literal(core.item())
        if core.ndim == 1 and np.issubdtype(core.dtype, np.integer):
            first, step = int(core[0]), int(core[1]) - int(core[0])
            if (core == first + step * np.arange(core.size)).all():
                return first + index[axes[0]] * int64(step)
        if core.ndim == 2:
            row, column = (index[axis] for axis in axes)
            return self._triangle(core, row, column)
        raise DataDependent

    def _triangle(self, matrix: np.ndarray, row: tirx.PrimExpr, column: tirx.PrimExpr) -> Element:
        low, high = matrix[-1, 0], matrix[0, -1]
        lower = matrix == low
        rows = np.flatnonzero(lower.any(axis=1))
        diagonal = int(lower[rows[0]].sum() - 1 - rows[0])
        if not np.array_equal(matrix, np.where(np.tri(len(matrix), len(matrix[0]), diagonal, dtype=bool), low, high)):
            raise DataDependent
        return self._choice(column - row <= diagonal, literal(low.item()), literal(high.item()))

    def _arange(self, call: relax.Call, index: Index) -> Element:
        start, _, step = (argument.value for argument in call.args)
        if not all(bound.dtype.startswith("int") for bound in (start, step)) or not _is_wide(call):
            raise DataDependent
        return start + index[0] * step

    def _filled_by_function(self, call: relax.Call, _: Index) -> Element:
        """A function of sizes that stores one number everywhere, which is how a size enters arithmetic with tensors."""
        name, inputs, *sizes = call.args
        dims = known_dims(call.struct_info)
        function = self.graph.module[name]
        if inputs.fields or dims is None or not isinstance(function, tirx.PrimFunc):
            raise DataDependent
        scalars = [param for param in function.params if param not in function.buffer_map]
        arguments = dict(zip(scalars, sizes[0].values if sizes else (), strict=True))
        (out,) = function.buffer_map.values()
        arguments |= {size: dim for size, dim in zip(out.shape, dims, strict=True) if isinstance(size, tirx.Var)}
        stored = _stored_everywhere(function, out)
        if any(var not in arguments for var in tirx.analysis.undefined_vars(stored)):
            raise DataDependent
        return converted(literal(tirx.stmt_functor.substitute(stored, arguments)), call.struct_info.dtype)

    def _filled(self, call: relax.Call, _: Index) -> Element:
        return converted(self._element(call.args[1], ()), call.struct_info.dtype)

    def _cast(self, call: relax.Call, index: Index) -> Element:
        return converted(self._element(call.args[0], index), call.struct_info.dtype)

    def _where(self, call: relax.Call, index: Index) -> Element:
        condition, chosen, otherwise = self._operands(call, index)
        return self._choice(converted(condition, "bool"), chosen, otherwise)

    def _concat(self, call: relax.Call, index: Index) -> Element:
        pieces = list(self.graph.value(call.args[0]).fields)
        axis = int(call.attrs.axis) % len(index)
        begins = [int64(0)]
        for piece in pieces[:-1]:
            begins.append(begins[-1] + _dims(piece)[axis])
        element: Element | None = None
        for piece, begin in reversed(list(zip(pieces, begins, strict=True))):
            position = self.space.analyzer.simplify(index[axis] - begin)
            part = self._element(piece, (*index[:axis], position, *index[axis + 1 :]))
            element = part if element is None else self._choice(position < _dims(piece)[axis], part, element)
        if element is None:
            raise DataDependent
        return element

    def _cumsum(self, call: relax.Call, index: Index) -> Element:
        """Of what is the same along the axis: that, times the number of summands."""
        if call.attrs.axis is None or not _is_wide(call):
            raise DataDependent
        axis = int(call.attrs.axis) % len(index)
        summand = self.space.variable("summand", _dims(call)[axis])
        term = converted(
            self._element(call.args[0], (*index[:axis], summand, *index[axis + 1 :])), call.struct_info.dtype
        )
        uses = isinstance(summand, tirx.Var) and isinstance(term, tirx.PrimExpr) and _reads(term, summand)
        if not isinstance(term, tirx.PrimExpr) or uses:
            raise DataDependent
        return term * (index[axis] + (0 if call.attrs.exclusive else 1))

    def _triangular(self, call: relax.Call, index: Index) -> Element:
        row, column = index[-2:]
        diagonal = call.args[1].value
        kept = column - row <= diagonal if call.op.name == "relax.tril" else column - row >= diagonal
        zero = converted(_FALSE, call.struct_info.dtype)
        return self._choice(kept, self._element(call.args[0], index), zero)

    def _taken(self, call: relax.Call, index: Index) -> Index:
        if call.attrs.axis is None:
            raise DataDependent
        axis, rank = int(call.attrs.axis) % len(_dims(call.args[0])), len(_dims(call.args[1]))
        position = self._number(call.args[1], index[axis : axis + rank])
        return (*index[:axis], position, *index[axis + rank :])

    def _gathered(self, call: relax.Call, index: Index) -> Index:
        axis = int(call.attrs.axis) % len(index)
        return (*index[:axis], self._number(call.args[1], index), *index[axis + 1 :])

    def _indexed(self, call: relax.Call, index: Index) -> Index:
        indices = list(self.graph.value(call.args[1]).fields)
        width = max(len(_dims(given)) for given in indices)
        lead = index[:width]
        return (*(self._number(given, broadcast_index(lead, _dims(given))) for given in indices), *index[width:])


_Reader = Callable[[IndexExpressions, relax.Call, Index], Element]


def _dims(expr: relax.Expr) -> tuple[tirx.PrimExpr, ...]:
    if isinstance(expr.struct_info, relax.PrimStructInfo):
        return ()
    dims = known_dims(expr.struct_info)
    if dims is None:
        raise DataDependent
    return dims


def _stored_everywhere(function: tirx.PrimFunc, out: tirx.Buffer) -> tirx.PrimExpr:
    """The value that ``function`` stores, unconditionally and once, at every index of ``out``."""
    stores: list[tirx.BufferStore] = []
    extents: dict[tirx.Var, tirx.PrimExpr] = {}
    conditions: list[object] = []

    def visit(node: object) -> None:
        if isinstance(node, tirx.BufferStore):
            stores.append(node)
        elif isinstance(node, tirx.SBlock):
            extents.update((axis.var, axis.dom.extent) for axis in node.iter_vars)
        elif isinstance(node, tirx.IfThenElse) or (
            isinstance(node, tirx.SBlockRealize) and not structural_equal(node.predicate, _TRUE)
        ):
            conditions.append(node)

    tirx.stmt_functor.post_order_visit(function.body, visit)
    if len(stores) != 1 or conditions:
        raise DataDependent
    (store,) = stores
    whole = all(structural_equal(extents.get(i), dim) for i, dim in zip(store.indices, out.shape, strict=True))
    if not whole or len(set(store.indices)) != len(store.indices):
        raise DataDependent
    return store.value


def _is_wide(expr: relax.Expr) -> bool:
    """Whether arithmetic in the dtype of ``expr`` is that of whole numbers, for numbers as large as positions."""
    return expr.struct_info.dtype in ("int32", "int64", "uint32", "uint64")


def _reads(element: tirx.PrimExpr, var: tirx.Var) -> bool:
    return any(found.same_as(var) for found in tirx.analysis.undefined_vars(element))


def _arithmetic(function: Callable[[object, object], Element]) -> _Reader:
    def of_leaves(left: tirx.PrimExpr | float, right: tirx.PrimExpr | float) -> Element:
        if any(isinstance(leaf, tirx.PrimExpr) and leaf.dtype == "bool" for leaf in (left, right)):
            raise DataDependent
        return function(left, right)

    def read(self: IndexExpressions, call: relax.Call, index: Index) -> Element:
        if call.struct_info.dtype in ("int8", "uint8", "int16", "uint16"):
            raise DataDependent
        return distributed(of_leaves, *self._operands(call, index))

    return read


def _comparison(function: Callable[..., Any]) -> _Reader:
    def of_leaves(left: tirx.PrimExpr | float, right: tirx.PrimExpr | float) -> Element:
        if isinstance(left, float):
            return tirx.const(bool(function(left, right)), "bool")
        if left.dtype == "bool":
            raise DataDependent
        return function(left, right)

    return lambda self, call, index: distributed(of_leaves, *self._operands(call, index))


def _logic(function: Callable[..., tirx.PrimExpr]) -> _Reader:
    def read(self: IndexExpressions, call: relax.Call, index: Index) -> Element:
        if call.struct_info.dtype != "bool":
            raise DataDependent
        return function(*(converted(operand, "bool") for operand in self._operands(call, index)))

    return read


def _read_constant(number: int) -> _Reader:
    return lambda self, call, index: converted(int64(number), call.struct_info.dtype)


def _negated(self: IndexExpressions, call: relax.Call, index: Index) -> Element:
    (operand,) = self._operands(call, index)
    return distributed(operator.sub, 0.0 if has_floats(operand) else int64(0), operand)


def _magnitude(self: IndexExpressions, call: relax.Call, index: Index) -> Element:
    number = self._number(call.args[0], index)
    return tirx.Select(number >= 0, number, -number)


_SELECTIONS: Mapping[str, Callable[[IndexExpressions, relax.Call, Index], Index]] = {
    "relax.take": IndexExpressions._taken,
    "relax.gather_elements": IndexExpressions._gathered,
    "relax.index_tensor": IndexExpressions._indexed,
}

_READERS: Mapping[str, _Reader] = {
    "relax.arange": IndexExpressions._arange,
    "relax.call_tir": IndexExpressions._filled_by_function,
    "relax.full": IndexExpressions._filled,
    "relax.full_like": IndexExpressions._filled,
    "relax.zeros": _read_constant(0),
    "relax.zeros_like": _read_constant(0),
    "relax.ones": _read_constant(1),
    "relax.ones_like": _read_constant(1),
    "relax.astype": IndexExpressions._cast,
    "relax.where": IndexExpressions._where,
    "relax.concat": IndexExpressions._concat,
    "relax.cumsum": IndexExpressions._cumsum,
    "relax.tril": IndexExpressions._triangular,
    "relax.triu": IndexExpressions._triangular,
    "relax.abs": _magnitude,
    "relax.negative": _negated,
    "relax.add": _arithmetic(operator.add),
    "relax.subtract": _arithmetic(operator.sub),
    "relax.multiply": _arithmetic(operator.mul),
    "relax.divide": _arithmetic(quotient),
    "relax.floor_divide": _arithmetic(whole_quotient),
    "relax.equal": _comparison(operator.eq),
    "relax.not_equal": _comparison(operator.ne),
    "relax.less": _comparison(operator.lt),
    "relax.less_equal": _comparison(operator.le),
    "relax.greater": _comparison(operator.gt),
    "relax.greater_equal": _comparison(operator.ge),
    "relax.logical_and": _logic(tirx.And),
    "relax.bitwise_and": _logic(tirx.And),
    "relax.logical_or": _logic(tirx.Or),
    "relax.bitwise_or": _logic(tirx.Or),
    "relax.logical_xor": _logic(unequal),
    "relax.bitwise_xor": _logic(unequal),
    "relax.logical_not": _logic(tirx.Not),
    "relax.bitwise_not": _logic(tirx.Not),
}
