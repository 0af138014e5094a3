"""Results as long as numbers in a tensor say: repetitions, and counts of each number up to the largest."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter


def repeat_interleave(b: Emitter, repeats: relax.Expr, output_size: int | None = None) -> relax.Expr:
    """Each place in ``repeats [n]`` as often as it says: at each result's place, how many end there or before.

    The number of results is read on the host; a call in which one of ``repeats`` is negative fails.
    """
    counts = b.cast(repeats, "int64")
    ends = b.emit(op.cumsum(counts, 0))
    least = b.emit(op.min(b.emit(op.concat([counts, relax.const([0], "int64")], 0)), [0], keepdims=True))
    # One that is negative makes the sum negative, which no size may be.
    total = _either(b, op.less(least, _number(0)), least, b.emit(op.sum(counts, [0], keepdims=True)))
    size = b.data_sizes.counted(total, b.node.meta["val"].shape[0], what="the number of repetitions")
    ones = b.emit(op.ones_like(counts))
    steps = b.emit(op.scatter_elements(b.emit(op.zeros([size + 1], "int64")), ends, ones, 0, "add"))
    places = b.emit(op.cumsum(steps, 0))
    return op.strided_slice(places, [0], [0], [size], assume_inbound=True)


def bincount(b: Emitter, x: relax.Expr, weights: relax.Expr | None = None, minlength: int = 0) -> relax.Expr:
    """How often each number from 0 to the largest of ``x [n]`` is there, or the sum of its ``weights``.

    The largest is read on the host; a call in which one is negative fails.
    """
    numbers = b.cast(x, "int64")
    # None behind the last but for what ``minlength`` asks: the largest of nothing is -1.
    more = b.emit(op.concat([numbers, relax.const([-1], "int64")], 0))
    least = b.emit(op.min(b.emit(op.concat([numbers, relax.const([0], "int64")], 0)), [0], keepdims=True))
    length = b.emit(op.add(b.emit(op.max(more, [0], keepdims=True)), _number(1)))
    length = b.emit(op.maximum(length, b.tensor(minlength, "int64")))
    length = _either(b, op.less(least, _number(0)), least, length)
    size = b.data_sizes.counted(length, b.node.meta["val"].shape[0], what="the length of a histogram")
    dtype = "int64" if weights is None else _weighted(weights.struct_info.dtype)
    if b.dtype != dtype:  # PyTorch 2.11 traces it, and all behind it, with the dtype of `x`
        raise b.unsupported(
            f"this PyTorch traces a result of {dtype} as one of {b.dtype}. Update it to 2.13, or count int64 numbers, "
            "and multiply a one-hot matrix by weights."
        )
    values = b.emit(op.ones_like(numbers)) if weights is None else b.cast(weights, dtype)
    return op.scatter_elements(b.emit(op.zeros([size], dtype)), numbers, values, 0, "add")


def _weighted(dtype: str) -> str:
    """Of sums of weights: PyTorch adds all but float32 in float64."""
    return "float32" if dtype == "float32" else "float64"


def _either(b: Emitter, condition: relax.Expr, holds: relax.Expr, otherwise: relax.Expr) -> relax.Expr:
    return b.emit(op.where(b.emit(condition), holds, otherwise))


def _number(value: int) -> relax.Constant:
    return relax.const(value, "int64")


CONVERTERS: dict[str, Converter] = {
    "aten.repeat_interleave.Tensor": repeat_interleave,
    "aten.bincount.default": bincount,
}
