"""Questions about the bindings of one Relax function: what a variable holds, who reads it, what is constant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from tvm import arith, relax, tirx
from tvm.ir import IRModule, Op
from tvm_ffi import structural_equal

from tkc.contracts import NUM_INPUT

_FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})
_EXACT_CASTS = frozenset(
    {("float16", "float32"), ("bfloat16", "float32"), ("int32", "int64")}
    | {(name, "float64") for name in _FLOATING - {"float64"}}
)
SHAPE_CHANGES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


Lookup = Callable[[relax.Expr], relax.Expr | None]
"""The value of a variable."""


@dataclass(frozen=True)
class Slice:
    """``size`` neighbouring elements of an axis of ``source``, from ``begin`` on."""

    source: relax.Expr
    begin: int
    size: int


class Graph:
    """The bindings of ``function``, a function of ``module``, with lookups in both directions.

    A *value* is the expression on the right of a binding; rules see variables (or constants) and follow them with
    :meth:`value`.
    """

    def __init__(self, module: IRModule, function: relax.Function) -> None:
        self.module = module
        self.function = function
        # TVM's own table of this kind leaves out what match_cast binds.
        self.var2val: dict[relax.Var, relax.Expr] = {
            binding.var: binding.value for block in function.body.blocks for binding in block.bindings
        }
        self.analyzer = arith.Analyzer()

    @cached_property
    def _binding_of(self) -> dict[relax.Expr, relax.Var]:
        """From each bound value (by identity) to the first variable that holds it."""
        variables: dict[relax.Expr, relax.Var] = {}
        for var, value in self.var2val.items():
            if not isinstance(value, relax.Var):
                variables.setdefault(value, var)
        return variables

    @cached_property
    def _reads(self) -> dict[relax.Expr, tuple[relax.Var, ...]]:
        return {value: tuple(relax.analysis.free_vars(value)) for value in self.var2val.values()}

    @cached_property
    def _users(self) -> dict[relax.Expr, list[relax.Var]]:
        users: dict[relax.Expr, list[relax.Var]] = {}
        for var, value in self.var2val.items():
            if not isinstance(value, relax.Var):
                for source in dict.fromkeys(map(self.value, self.reads(value))):
                    users.setdefault(source, []).append(var)
        return users

    @cached_property
    def sizes(self) -> tuple[tirx.Var, ...]:
        """The symbolic sizes in the function, in order of first appearance."""
        infos = (var.struct_info for var in (*self.function.params, *self.var2val))
        return tuple(dict.fromkeys(size for info in infos for size in relax.analysis.tir_vars_in_struct_info(info)))

    @cached_property
    def _positions(self) -> dict[relax.Var, int]:
        return {var: position for position, var in enumerate(self.var2val)}

    def last(self, variables: Iterable[relax.Var]) -> relax.Var:
        """The one of some bound variables that is bound last."""
        return max(variables, key=self._positions.__getitem__)

    def is_before(self, var: relax.Var, other: relax.Var) -> bool:
        """Whether ``var`` is bound before ``other``; both are bound variables."""
        return self._positions[var] < self._positions[other]

    def latest_first(self, variables: Iterable[relax.Var]) -> list[relax.Var]:
        """Bound variables in the opposite of the order in which they are bound."""
        return sorted(variables, key=self._positions.__getitem__, reverse=True)

    def before(self, var: relax.Var) -> Iterator[relax.Var]:
        """The variables that are bound before ``var``, the nearest first."""
        nearest_first: Iterator[relax.Var] = reversed(list(self.var2val)[: self._positions[var]])
        return nearest_first

    @cached_property
    def _returned(self) -> frozenset[relax.Expr]:
        return frozenset(map(self.value, relax.analysis.free_vars(self.function.body.body)))

    def is_returned(self, expr: relax.Expr) -> bool:
        """Whether the function returns ``expr`` itself, by this or another name."""
        return self.value(expr) in self._returned

    @cached_property
    def weights(self) -> tuple[relax.Var, ...]:
        """The parameters that hold the model's weights, which are the same at every call; frontends say how many."""
        attrs = self.function.attrs
        inputs = len(self.function.params) if attrs is None else int(attrs.get(NUM_INPUT, len(self.function.params)))
        return tuple(self.function.params[inputs:])

    def value(self, expr: relax.Expr) -> relax.Expr:
        """What ``expr`` holds: the bound value behind variables, or the function's parameter that it is."""
        while isinstance(expr, relax.Var) and expr in self.var2val:
            expr = self.var2val[expr]
        return expr

    def variable(self, expr: relax.Expr) -> relax.Expr:
        """The variable bound to the value ``expr``; ``expr`` itself where no binding holds it."""
        return self._binding_of.get(expr, expr)

    def users(self, expr: relax.Expr) -> tuple[relax.Var, ...]:
        """The variables whose values read ``expr``, under whatever name they know it."""
        return tuple(self._users.get(self.value(expr), ()))

    def reads(self, value: relax.Expr) -> tuple[relax.Var, ...]:
        """The variables that the bound value ``value`` reads directly."""
        return self._reads[value]

    def call(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """The call of one of the operators ``names`` (with the ``relax.`` prefix) that ``expr`` holds, if it does."""
        value = self.value(expr)
        return value if is_call(value, *names) else None

    def through(self, expr: relax.Expr, *names: str) -> relax.Expr:
        """``expr`` with leading calls of the one-tensor operators ``names`` taken off (their first argument kept)."""
        while (call := self.call(expr, *names)) is not None:
            expr = call.args[0]
        return expr

    def through_casts(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` before the casts between floating-point types that were applied to it."""
        while (call := self.call(expr, "relax.astype")) is not None:
            if not (is_floating(dtype(call)) and is_floating(dtype(call.args[0]))):
                break
            expr = call.args[0]
        return expr

    def through_views_and_casts(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` before the floating-point casts and the changes of shape (not of order) that were applied to it."""
        while True:
            inner = self.through(self.through_casts(expr), *SHAPE_CHANGES)
            if inner.same_as(expr):
                return expr
            expr = inner

    def before_widening(self, expr: relax.Expr, name: str | None = None) -> relax.Expr | None:
        """The earliest expression of dtype ``name`` (of any, if ``None``) that ``expr`` is only a lossless cast of."""
        found = expr if name in (None, dtype(expr)) else None
        while (call := self.call(expr, "relax.astype")) is not None:
            expr, wide = call.args[0], dtype(call)
            if (dtype(expr), wide) not in _EXACT_CASTS:
                break
            found = expr if name in (None, dtype(expr)) else found
        return found

    def last_axis_slice(self, expr: relax.Expr) -> Slice | None:
        """How ``expr`` was cut out of another tensor's last axis, if it was, and its bounds are numbers."""
        size = static(shape(expr)[-1]) if has_known_shape(expr) and shape(expr) else None
        if size is None:
            return None
        return sliced(self.value(expr), size, expr.struct_info.ndim - 1, self.value)

    def constant(self, expr: relax.Expr) -> float | int | bool | None:
        """The one number that ``expr`` is everywhere, as a literal, a uniform constant or ``full``; else ``None``.

        Casts and changes of shape around it are seen through.
        """
        value = self.value(
            self.through(expr, "relax.astype", "relax.reshape", "relax.broadcast_to", "relax.expand_dims")
        )
        if isinstance(value, relax.PrimValue):
            return value.value.value if isinstance(value.value, (tirx.IntImm, tirx.FloatImm)) else None
        if isinstance(value, relax.Constant):
            elements = value.data.numpy().reshape(-1)
            uniform = elements.size > 0 and bool((elements == elements[0]).all())
            return _number(elements[0]) if uniform else None
        if (full := self.call(value, "relax.full", "relax.full_like")) is not None:
            return self.constant(full.args[1])
        if self.call(value, "relax.zeros", "relax.zeros_like") is not None:
            return 0
        if self.call(value, "relax.ones", "relax.ones_like") is not None:
            return 1
        return None

    def same(self, left: relax.Expr, right: relax.Expr) -> bool:
        """Whether two expressions are one value."""
        return bool(self.value(left).same_as(self.value(right)))

    def alike(self, left: relax.Expr, right: relax.Expr) -> bool:
        """Whether two expressions are one value, or the same operators compute them from alike values."""
        left, right = self.value(left), self.value(right)
        if left.same_as(right):
            return True
        if isinstance(left, relax.Call) and isinstance(right, relax.Call):
            if not (left.op.same_as(right.op) and structural_equal(left.attrs, right.attrs)):
                return False
            return len(left.args) == len(right.args) and all(map(self.alike, left.args, right.args))
        if isinstance(left, relax.Tuple) and isinstance(right, relax.Tuple):
            return len(left.fields) == len(right.fields) and all(map(self.alike, left.fields, right.fields))
        return bool(structural_equal(left, right))

    def equal(self, left: tirx.PrimExpr | int, right: tirx.PrimExpr | int) -> bool:
        """Whether two sizes are provably equal."""
        return self.analyzer.can_prove_equal(left, right)

    def same_shape(self, left: Sequence[tirx.PrimExpr], right: Sequence[tirx.PrimExpr]) -> bool:
        """Whether two shapes are provably equal."""
        return len(left) == len(right) and all(map(self.equal, left, right))


def _number(element: np.generic) -> float | int | bool:
    """The Python number that an element was most likely made from: 1e-4, and not the float32 next to it."""
    return float(str(element)) if element.dtype == np.float32 else element.item()


def is_floating(name: str) -> bool:
    """Whether ``name`` is an ordinary floating-point dtype (FP8, which stands for quantized values, is none)."""
    return name in _FLOATING


def known_dims(info: relax.StructInfo) -> tuple[tirx.PrimExpr, ...] | None:
    """The dimensions of a tensor type; ``None`` where it is no tensor's or does not tell them."""
    if isinstance(info, relax.TensorStructInfo) and isinstance(info.shape, relax.ShapeExpr):
        return tuple(info.shape.values)
    return None


def shape(expr: relax.Expr) -> tuple[tirx.PrimExpr, ...]:
    """The dimensions of a tensor expression; :class:`ValueError` where they are unknown."""
    dims = known_dims(expr.struct_info)
    if dims is None:
        raise ValueError(f"{expr} has no known shape: {expr.struct_info}")
    return dims


def has_known_shape(expr: relax.Expr) -> bool:
    """Whether ``expr`` is a tensor whose every dimension has an expression."""
    return known_dims(expr.struct_info) is not None


def dtype(expr: relax.Expr) -> str:
    """The dtype of a tensor expression, as ``float32``."""
    return str(expr.struct_info.dtype)


def static(size: tirx.PrimExpr | int) -> int | None:
    """The number that a size is; ``None`` for a symbolic one."""
    if isinstance(size, int):
        return size
    return int(size.value) if isinstance(size, tirx.IntImm) else None


def permuted_axes(call: relax.Call) -> list[int]:
    """Which axis of its operand each axis of ``call``, a permutation of them, is."""
    rank = call.args[0].struct_info.ndim
    return list(range(rank))[::-1] if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]


def sliced(value: relax.Expr | None, size: int, axis: int, lookup: Lookup) -> Slice | None:
    """How ``value``, which has ``size`` elements along ``axis``, was cut out of another tensor there.

    ``lookup`` gives the values of variables. ``None`` if it was not, or where it begins is no number.
    """
    if isinstance(value, relax.TupleGetItem):
        return _piece(lookup(value.tuple_value), value.index, size, axis)
    if not is_call(value, "relax.strided_slice") or any(len(arg.fields) != 1 for arg in value.args[1:]):
        return None
    along, begin, _, *strides = (argument.fields[0].value for argument in value.args[1:])
    start, step = static(begin), static(strides[0]) if strides else 1
    if int(along) % value.args[0].struct_info.ndim != axis or start is None or start < 0 or step != 1:
        return None
    return Slice(value.args[0], start, size)


def _piece(split: relax.Expr | None, index: int, size: int, axis: int) -> Slice | None:
    if not is_call(split, "relax.split") or int(split.attrs.axis) % split.args[0].struct_info.ndim != axis:
        return None
    sections = split.attrs.indices_or_sections
    if isinstance(sections, int | tirx.IntImm):
        width = static(shape(split.args[0])[axis])
        return None if width is None else Slice(split.args[0], index * -(-width // int(sections)), size)
    return Slice(split.args[0], 0 if index == 0 else int(sections[index - 1]), size)


def is_call(value: relax.Expr | None, *names: str) -> TypeGuard[Any]:
    """Whether ``value`` is a call of one of the operators ``names``, with the ``relax.`` prefix."""
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names
