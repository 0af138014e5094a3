"""What an ONNX graph computes as Relax has it: values, their expressions and sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Op

from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Known, Size, SizeAlgebra, checkable, compared
from tkc.frontend.onnx.untrusted import MOST_ELEMENTS
from tkc.frontend.origins import held_size
from tkc.passes.lowering.simple_sizes import with_simple_sizes


class ConversionError(Exception):
    """What a node needs that its converter does not offer, as a clause that follows the node's name; then the cure."""


class Weight:
    """A weight, the array of an initializer. Who asks for its numbers converts the model for these alone."""

    def __init__(self, name: str, array: np.ndarray, read: set[str], *, exchangeable: bool = False) -> None:
        """``read`` is told the name when its numbers are asked for."""
        self.array = array
        """Its numbers, for who decides by them what is right for any others, too."""
        self.exchangeable = exchangeable
        """Whether what is right for any numbers is to be preferred to what is faster for these."""
        self._name = name
        self._read = read

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.array.size

    def numbers(self) -> np.ndarray:
        """Its numbers, which are noted to have been read."""
        self._read.add(self._name)
        return self.array


@dataclass
class Value:
    """A value of the graph: a Relax expression, or one known at import that becomes an expression on demand.

    A sequence is the list of its elements. ``absent`` is an optional value that is not there; one that is there is the
    value itself.
    """

    known: Known | None = None
    expression: relax.Expr | None = None
    weight: Weight | None = None
    sequence: list[Value] | None = None
    absent: bool = False


_OPERANDS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "less_equal", "greater",
             "greater_equal", "logical_and", "logical_or", "matmul")  # fmt: skip
_OF_TWO = frozenset(Op.get(f"relax.{name}") for name in _OPERANDS)
_MATMUL = Op.get("relax.matmul")
_BROADCAST_TO = Op.get("relax.broadcast_to")


def emit_simply(builder: relax.BlockBuilder, algebra: SizeAlgebra, expression: relax.Expr) -> relax.Var:
    """Bind an expression to a variable, whose sizes are written in their simplest form.

    A TensorIR function that ``emit_te`` makes has the sizes of its arguments as these are written, and is fused only
    with functions that write them alike. Sizes of two operands that have to be equal are learned to be, or checked at
    the call.
    """
    if not isinstance(expression, relax.Call):
        return builder.emit(expression)
    if isinstance(expression.op, Op):
        inner = [emit_simply(builder, algebra, arg) if isinstance(arg, relax.Call) else arg for arg in expression.args]
        expression = relax.Call(expression.op, inner, expression.attrs, expression.sinfo_args)
    expression = builder.normalize(expression)
    if expression.op in _OF_TWO and (
        not isinstance(expression.struct_info.shape, relax.ShapeExpr) or _sums_undecided(algebra, expression)
    ):
        operands = _with_equal_sizes(builder, algebra, *expression.args, product=expression.op == _MATMUL)
        expression = builder.normalize(relax.Call(expression.op, operands, expression.attrs, expression.sinfo_args))
    if expression.op == _BROADCAST_TO:
        operand, target = expression.args
        expression = builder.normalize(relax.op.broadcast_to(_as_broadcast(builder, algebra, operand, target), target))
    return builder.emit(with_simple_sizes(expression))


def _sums_undecided(algebra: SizeAlgebra, product: relax.Call) -> bool:
    """Whether a product of matrices sums over axes of which it is not known that they are of one size."""
    if product.op != _MATMUL or not all(isinstance(each.struct_info.shape, relax.ShapeExpr) for each in product.args):
        return False
    left, right = (shape_of(each, algebra) for each in product.args)
    return algebra.undecided(left[-1], right[max(len(right) - 2, 0)])


def _with_equal_sizes(
    builder: relax.BlockBuilder, algebra: SizeAlgebra, *operands: relax.Expr, product: bool
) -> list[relax.Expr]:
    """The operands of an operator that broadcasts, or of a product of matrices, with sizes that fit."""
    if not all(isinstance(each.struct_info.shape, relax.ShapeExpr) for each in operands):
        return list(operands)
    shapes = [shape_of(each, algebra) for each in operands]
    kept: list[list[Size]] = [[], []]
    if product:  # their last axes are not broadcast, and one of each is summed over
        places = [len(shapes[0]) - 1, max(len(shapes[1]) - 2, 0)]
        sums = [shape[place] for shape, place in zip(shapes, places, strict=True)]
        if algebra.undecided(*sums):
            algebra.unify(*sums)
        summed = checkable(sums)
        for shape, place in zip(shapes, places, strict=True):
            shape[place] = summed
        kept = [shape[-2:] for shape in shapes]
        shapes = [shape[:-2] for shape in shapes]
    turned = [shape[::-1] for shape in shapes]
    common = [algebra.broadcast(sizes) for sizes in itertools.zip_longest(*turned, fillvalue=1)]
    values = [Value(expression=each) for each in operands]
    for value, shape, last in zip(values, turned, kept, strict=True):
        wide = [1 if isinstance(size, int) and size == 1 else common[i] for i, size in enumerate(shape)]
        match_sizes(value, [*wide[::-1], *last], builder, algebra)
    return [expression_of(value, builder) for value in values]


def _as_broadcast(
    builder: relax.BlockBuilder, algebra: SizeAlgebra, operand: relax.Expr, target: relax.Expr
) -> relax.Expr:
    """``operand`` with sizes that broadcast to ``target``."""
    if not (isinstance(operand.struct_info.shape, relax.ShapeExpr) and isinstance(target, relax.ShapeExpr)):
        return operand
    own = shape_of(operand, algebra)
    wanted = [algebra.simplify(size) for size in target.values][len(target.values) - len(own) :]
    common = [algebra.broadcast(pair) for pair in zip(wanted, own, strict=True)]
    value = Value(expression=operand)
    kept = (1 if isinstance(old, int) and old == 1 else new for old, new in zip(own, common, strict=True))
    match_sizes(value, list(kept), builder, algebra)
    return expression_of(value, builder)


def check_size(info: relax.StructInfo) -> None:
    """Raise :class:`ConversionError` for a tensor whose fixed sizes make it too large for any machine, or negative."""
    if not (isinstance(info, relax.TensorStructInfo) and isinstance(info.shape, relax.ShapeExpr)):
        return
    fixed = [int(size) for size in info.shape.values if isinstance(size, tirx.IntImm)]
    if any(size < 0 for size in fixed) or (0 not in fixed and math.prod(fixed) > MOST_ELEMENTS):
        shape = ", ".join(str(size) for size in info.shape.values)
        raise ConversionError(f"makes a tensor of shape [{shape}], which no machine can hold; correct the model")


def shape_of(tensor: relax.Expr, algebra: SizeAlgebra) -> list[Size]:
    """The sizes of a tensor, Python integers where they are fixed."""
    shape = tensor.struct_info.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ConversionError("works on a tensor whose shape depends on the data; compute it with other operators")
    return [algebra.simplify(size) for size in shape.values]


def match_sizes(value: Value, sizes: Sequence[Size], builder: relax.BlockBuilder, algebra: SizeAlgebra) -> None:
    """Take a tensor for one of ``sizes``; a call fails where one that may differ from the tensor's own does.

    TVM takes a cast to a variable for the variable's definition, and drops it. So such sizes are compared apart, and
    the tensor is copied.
    """
    tensor = expression_of(value, builder)
    old = shape_of(tensor, algebra)
    checked = [new if algebra.undecided(new, size) else size for new, size in zip(sizes, old, strict=True)]
    if all(new is size for new, size in zip(checked, old, strict=True)):
        return
    changed = [(new, size) for new, size in zip(checked, old, strict=True) if new is not size]
    if any(_is_variable(new) for new, _ in changed):
        for new, size in changed:
            require_of_sizes(builder, compared(tirx.EQ, new, size))
        value.expression = builder.emit_te(_copied, tensor, checked, primfunc_name_hint="copy")
        return
    value.expression = builder.match_cast(tensor, relax.TensorStructInfo(checked, tensor.struct_info.dtype))


def _is_variable(size: Size) -> bool:
    return isinstance(size, tirx.Var)


def _copied(source: te.Tensor, sizes: Sequence[Size]) -> te.Tensor:
    """``source`` as a tensor of ``sizes``, which are its own in every call that does not fail."""

    def element(*index: tirx.Var) -> tirx.PrimExpr:
        zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
        return source(*(tirx.max(tirx.min(i, n - one), zero) for i, n in zip(index, source.shape, strict=True)))

    return te.compute([tirx.convert(size) if isinstance(size, int) else size for size in sizes], element, name="copy")


def require(builder: relax.BlockBuilder, fits: relax.Expr) -> None:
    """See to it that a call fails where a truth value of one element does not hold."""
    flag = builder.emit(relax.op.reshape(relax.op.astype(builder.emit(fits), "int64"), (1,)))
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(flag)), relax.ShapeStructInfo([1]))


def require_of_sizes(builder: relax.BlockBuilder, condition: tirx.PrimExpr) -> None:
    """See to it that a call fails where a condition on sizes does not hold."""
    builder.match_cast(held_size(builder, tirx.Cast("int64", condition)), relax.ShapeStructInfo([1]))


def expression_of(value: Value, builder: relax.BlockBuilder) -> relax.Expr:
    """The Relax expression of a value."""
    known = value.known
    if value.absent:
        raise ConversionError("is or reads an optional value that is not there; correct the model, or its example")
    if value.sequence is not None:
        return builder.emit(relax.Tuple([expression_of(element, builder) for element in value.sequence]))
    if value.expression is None and known is not None:
        if known.dtype in WIDENED:
            wide = WIDENED[known.dtype]
            value.expression = relax.const(known.values.astype(wide), wide)
            return value.expression
        if known.dtype not in DTYPES:
            raise ConversionError(
                f"needs a tensor of {known.dtype}, which compiled models cannot hold; cast it to another type"
            )
        value.expression = _size_tensor(known, builder) if known.symbolic else relax.const(known.values, known.dtype)
    return value.expression


def _size_tensor(known: Known, builder: relax.BlockBuilder) -> relax.Expr:
    """A tensor of symbolic sizes, each computed on the device as a range of one number."""
    parts = [relax.op.arange(size, size + 1, 1, known.dtype) for size in known.sizes]
    vector = builder.emit(relax.op.concat([builder.emit(part) for part in parts]) if len(parts) > 1 else parts[0])
    return vector if known.values.ndim == 1 else builder.emit(relax.op.reshape(vector, known.values.shape))
