"""Operators whose operands have sizes that have to be equal: broadcasts, matrix products, concatenations.

TVM knows no shape of the result where it cannot prove that they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import relax

from tkc.frontend.torch.converters.symbols import Size

_BROADCASTING = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "power", "floor_divide", "mod", "floor_mod", "atan2", "where"),
        *("maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("left_shift", "right_shift"),
    )
)
_PRODUCT = "relax.matmul"
_JOINING = "relax.concat"


def has_unknown_shape(value: relax.Expr) -> bool:
    """Whether ``value`` joins, multiplies or broadcasts operands of known shapes to one that is not known."""
    if not isinstance(value, relax.Call) or getattr(value.op, "name", None) not in (*_BROADCASTING, _PRODUCT, _JOINING):
        return False
    if value.op.name == _JOINING and not isinstance(value.args[0], relax.Tuple):
        return False
    found = value.struct_info
    if not isinstance(found, relax.TensorStructInfo) or found.ndim < 0 or found.shape is not None:
        return False
    return all(isinstance(operand.struct_info.shape, relax.ShapeExpr) for operand in operands_of(value))


def operands_of(call: relax.Call) -> list[relax.Expr]:
    """The tensors of a broadcast, a matrix product or a concatenation."""
    return list(call.args[0].fields) if call.op.name == _JOINING else list(call.args)


def with_operands(call: relax.Call, operands: Sequence[relax.Expr]) -> relax.Call:
    """``call`` of other tensors."""
    arguments = [relax.Tuple(operands)] if call.op.name == _JOINING else list(operands)
    return relax.Call(call.op, arguments, call.attrs, call.sinfo_args)


def axes_of_one_size(
    call: relax.Call, shapes: Sequence[Sequence[Size]]
) -> Iterator[tuple[list[tuple[int, int]], bool]]:
    """The axes that have one size, as pairs of an operand's number and its axis, and whether some may have 1."""
    ranks = [len(shape) for shape in shapes]
    if call.op.name == _JOINING:
        for axis in range(ranks[0]):
            if axis != call.attrs.axis % ranks[0]:
                yield [(which, axis) for which in range(len(ranks))], False
        return
    if call.op.name == _PRODUCT:
        yield [(0, ranks[0] - 1), (1, max(ranks[1] - 2, 0))], False
    for axis in range(3 if call.op.name == _PRODUCT else 1, max(ranks) + 1):
        yield [(which, rank - axis) for which, rank in enumerate(ranks) if rank >= axis], True
