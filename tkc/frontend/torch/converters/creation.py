"""Operators that make tensors out of shapes and numbers."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.symbols import Size


def full(b: Emitter, value: Any) -> relax.Expr:
    """``value`` everywhere."""
    return op.full(b.shape, b.tensor(value, b.dtype), b.dtype) if b.shape else b.tensor(value, b.dtype)


def full_value(b: Emitter, _: Any, value: Any, *__: Any) -> relax.Expr:
    """The second argument everywhere."""
    return full(b, value)


def zeros(b: Emitter, *_: Any) -> relax.Expr:
    """Zeros; also what memory holds that the model reads before writing it."""
    return full(b, 0)


def ones(b: Emitter, *_: Any) -> relax.Expr:
    """Ones."""
    return full(b, 1)


def new_full(b: Emitter, _: Any, __: Any, value: Any, *___: Any) -> relax.Expr:
    """The third argument everywhere."""
    return full(b, value)


def _arange(b: Emitter, start: Any, step: Any) -> relax.Expr:
    if "int" in b.dtype:  # PyTorch counts with the numbers as they are, and computes with what is left of them there
        start, step = (int(number) if isinstance(number, float) else number for number in (start, step))
        # What is below zero wraps around in a dtype without signs.
        dtype = "int64" if b.dtype.startswith("uint") else b.dtype
        # The length is PyTorch's, which for symbolic bounds is simpler than what follows from them.
        if isinstance(step, int) and step > 0:
            past_last = b.simplified((b.shape[0] - 1) * step + 1)
            if isinstance(start, int):
                numbers = op.arange(start, b.simplified(start + past_last), step, dtype=dtype)
            else:
                numbers = op.add(b.emit(op.arange(0, past_last, step, dtype=dtype)), b.tensor(start, dtype))
        else:  # which TVM counts wrongly
            steps = op.multiply(b.emit(op.arange(0, b.shape[0], 1, dtype=dtype)), b.tensor(step, dtype))
            numbers = op.add(b.emit(steps), b.tensor(start, dtype))
        return b.cast(b.emit(numbers), b.dtype)
    index = b.emit(op.arange(b.shape[0], dtype="int64"))
    scaled = b.emit(op.multiply(b.cast(index, "float64"), b.tensor(step, "float64")))
    return op.astype(op.add(scaled, b.tensor(start, "float64")), b.dtype)


def arange(b: Emitter, end: Size | float, *_: Any) -> relax.Expr:
    """``0, 1, ...`` before ``end``."""
    return _arange(b, 0, 1)


def arange_start(b: Emitter, start: Size | float, end: Size | float, *_: Any) -> relax.Expr:
    """``start, start + 1, ...`` before ``end``."""
    return _arange(b, start, 1)


def arange_step(b: Emitter, start: Any, end: Any, step: Any = 1, *_: Any) -> relax.Expr:
    """``start, start + step, ...`` before ``end``."""
    return _arange(b, start, step)


def linspace(b: Emitter, start: Any, end: Any, steps: Size, *_: Any) -> relax.Expr:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, which are numbers or tensors without dimensions."""
    first, last = _bound(b, start), _bound(b, end)
    index = b.emit(op.arange(b.shape[0], dtype="int64"))
    gaps = steps - 1
    if isinstance(gaps, int) and not isinstance(first, relax.Expr) and not isinstance(last, relax.Expr):
        width: relax.Expr = b.tensor((last - first) / max(gaps, 1), "float64")
    else:
        whole = b.emit(op.subtract(b.tensor(last, "float64"), b.tensor(first, "float64")))
        width = b.emit(op.divide(whole, b.tensor(max(gaps, 1) if isinstance(gaps, int) else gaps, "float64")))
    # From both ends to the middle, so that the last number is the end itself.
    left = b.emit(op.add(op.multiply(b.cast(index, "float64"), width), b.tensor(first, "float64")))
    behind = b.cast(b.emit(op.subtract(b.tensor(gaps, "int64"), index)), "float64")
    right = b.emit(op.subtract(b.tensor(last, "float64"), op.multiply(behind, width)))
    half = max(steps // 2, 1) if isinstance(steps, int) else tirx.max(steps // 2, 1)
    return op.astype(op.where(op.less(index, b.tensor(half, "int64")), left, right), b.dtype)


def _bound(b: Emitter, bound: Any) -> Any:
    """An end of a range in the result's dtype, to which PyTorch brings it first: a number, or a tensor."""
    if isinstance(bound, relax.Expr) and not isinstance(bound, relax.PrimValue):
        return b.cast(bound, b.dtype)
    return int(bound) if "int" in b.dtype and isinstance(bound, float) else bound


def eye(b: Emitter, *_: Any) -> relax.Expr:
    """Ones on the diagonal, zeros elsewhere."""
    rows, columns = b.shape
    return op.eye(rows, columns, dtype=b.dtype)


def tril(b: Emitter, x: relax.Expr, diagonal: Size = 0) -> relax.Expr:
    """The lower triangle of the last two dimensions, zeros above."""
    return _triangle(b, x, diagonal, lower=True)


def triu(b: Emitter, x: relax.Expr, diagonal: Size = 0) -> relax.Expr:
    """The upper triangle of the last two dimensions, zeros below."""
    return _triangle(b, x, diagonal, lower=False)


def _triangle(b: Emitter, x: relax.Expr, diagonal: Size, lower: bool) -> relax.Expr:
    rows, columns = b.shape[-2:]
    row = b.emit(b.reshape(b.emit(op.arange(rows, dtype="int64")), [rows, 1]))
    column = b.emit(b.reshape(b.emit(op.arange(columns, dtype="int64")), [1, columns]))
    edge = row if diagonal == 0 else b.emit(op.add(row, b.tensor(diagonal, "int64")))
    kept = b.emit((op.less_equal if lower else op.greater_equal)(column, edge))
    return op.where(kept, x, relax.const(0, b.dtype))


def one_hot(b: Emitter, indices: relax.Expr, classes: int) -> relax.Expr:
    """1 at each index along a new last dimension of ``classes``."""
    position = b.emit(op.arange(b.shape[-1], dtype=indices.struct_info.dtype))
    return op.astype(op.equal(op.expand_dims(indices, -1), position), b.dtype)


CONVERTERS: dict[str, Converter] = {
    "aten.full.default": full_value,
    "aten.full_like.default": full_value,
    "aten.fill.Scalar": full_value,
    "aten.fill.Tensor": full_value,
    "aten.new_full.default": new_full,
    **{f"aten.{name}.default": zeros for name in ("zeros", "zeros_like", "new_zeros", "empty_like", "new_empty")},
    "aten.empty.memory_format": zeros,
    "aten.empty_permuted.default": zeros,
    "aten.empty_strided.default": zeros,
    "aten.new_empty_strided.default": zeros,
    "aten.ones.default": ones,
    "aten.ones_like.default": ones,
    "aten.new_ones.default": ones,
    "aten.arange.default": arange,
    "aten.arange.start": arange_start,
    "aten.arange.start_step": arange_step,
    **{
        f"aten.linspace.{overload}": linspace
        for overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    "aten.eye.default": eye,
    "aten.eye.m": eye,
    "aten.tril.default": tril,
    "aten.triu.default": triu,
    "aten.one_hot.default": one_hot,
}
