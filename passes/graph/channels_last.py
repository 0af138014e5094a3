"""Convolutions whose channels stand last, and the operators that compute the same of their results as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import arith, relax
from tvm.ir import Op
from tvm.relax import op

from tkc.passes.graph.bindings import has_known_shape, is_call, permuted_axes, shape, static

_ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "astype", "clip", "cos", "erf", "exp", "log", "negative", "rsqrt", "sigmoid", "sin", "sqrt", "square"),
        *("tanh", "nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus", "round"),
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    )
)
_POOLING = frozenset({"relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d"})

_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}

_TRANSPOSED_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW"),
}

Twin = Callable[[relax.Expr], relax.Expr | None]
"""The same tensor with its channels last, if it is there."""
Emit = Callable[[relax.Expr], relax.Expr]


def channels_last(rank: int) -> list[int]:
    """The permutation of ``[batch, channels, ...]`` to ``[batch, ..., channels]``."""
    return [0, *range(2, rank), 1]


def channels_second(rank: int) -> list[int]:
    """The permutation of ``[batch, ..., channels]`` to ``[batch, channels, ...]``."""
    return [0, rank - 1, *range(1, rank - 1)]


def is_convolution(call: relax.Call) -> bool:
    """Whether ``call`` convolves images of known ranks whose channels stand second."""
    return _has_layouts(call, _LAYOUTS)


def is_transposed_convolution(call: relax.Call) -> bool:
    """Whether ``call`` is the transpose of such a convolution."""
    return _has_layouts(call, _TRANSPOSED_LAYOUTS)


def _has_layouts(call: relax.Call, expected: Mapping[str, tuple[str, str]]) -> bool:
    if not isinstance(call.op, Op) or call.op.name not in expected:
        return False
    data, kernel = expected[call.op.name]
    layouts = (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout)
    return layouts == (data, kernel, data) and all(map(has_known_shape, (*call.args, call)))


class LastChannels:
    """The tensors that a mutator has made with channels last, and what is computed of them."""

    def __init__(self, lookup: Callable[[relax.Var], relax.Expr | None], emit: Emit) -> None:
        """``lookup`` gives the value of a variable that the mutator emitted, ``emit`` emits one."""
        self._lookup, self._emit = lookup, emit
        self._made: set[relax.Expr] = set()

    def made(self, image: relax.Expr) -> relax.Expr:
        """``image [batch, ..., channels]``, emitted, with its channels second; who reads it finds them last."""
        last = self._emit(image)
        self._made.add(last)
        return op.permute_dims(last, channels_second(last.struct_info.ndim))

    def of(self, call: relax.Call) -> relax.Expr | None:
        """``call`` with channels last, where it reads what was made so; ``None`` where it does not, or cannot."""
        return with_channels_last(call, self._twin, self._emit)

    def last(self, image: relax.Expr) -> relax.Expr:
        """``image [batch, channels, ...]`` with channels last: what it was made of, or a permutation of it."""
        rank = image.struct_info.ndim
        made = self.call(image, "relax.permute_dims")
        if made is not None and permuted_axes(made) == channels_second(rank):
            return made.args[0]
        split = self.call(image, "relax.reshape")  # a sequence of pixels as rows and columns
        if split is not None and rank > 3 and split.args[0].struct_info.ndim == 3:
            batch, channels, *sizes = shape(image)
            made = self.call(split.args[0], "relax.permute_dims")
            analyzer = arith.Analyzer()
            kept = all(map(analyzer.can_prove_equal, (batch, channels), shape(split.args[0])[:2]))
            if made is not None and permuted_axes(made) == channels_second(3) and kept:
                return self._emit(op.reshape(made.args[0], (batch, *sizes, channels)))
        return self._emit(op.permute_dims(image, channels_last(rank)))

    def call(self, expr: relax.Expr, name: str) -> relax.Call | None:
        """The call of the operator ``name`` that made ``expr``, if one did."""
        value = self._lookup(expr) if isinstance(expr, relax.Var) else None
        return value if is_call(value, name) else None

    def _twin(self, expr: relax.Expr) -> relax.Expr | None:
        made = self.call(expr, "relax.permute_dims")
        if made is None or made.args[0] not in self._made:
            return None
        return made.args[0] if permuted_axes(made) == channels_second(made.args[0].struct_info.ndim) else None


def with_channels_last(call: relax.Call, twin: Twin, emit: Emit) -> relax.Expr | None:
    """``call``, whose channels are second, with them last; ``None`` where it has no operand that is, or another form.

    Operands of one channel axis alone (biases) are brought to ``[channels]``, which broadcasts along the last axis.
    """
    if not isinstance(call.op, Op) or not any(twin(arg) is not None for arg in call.args):
        return None
    if call.op.name in _ELEMENTWISE:
        return _elementwise(call, twin, emit)
    if call.op.name in _POOLING:
        return _pooled(call, twin)
    if call.op.name in ("relax.mean", "relax.sum"):
        return _of_pixels(call, twin(call.args[0]))
    if call.op.name == "relax.reshape":
        return _merged(call, twin)
    return None


def _elementwise(call: relax.Call, twin: Twin, emit: Emit) -> relax.Expr | None:
    args = [_operand(arg, call.struct_info.ndim, twin, emit) for arg in call.args]
    return None if None in args else relax.Call(call.op, args, call.attrs)


def _operand(arg: relax.Expr, rank: int, twin: Twin, emit: Emit) -> relax.Expr | None:
    """``arg``, which broadcasts to a tensor of ``rank`` axes, with channels last."""
    if not isinstance(arg.struct_info, relax.TensorStructInfo) or arg.struct_info.ndim == 0:
        return arg
    if (found := twin(arg)) is not None:
        return found if found.struct_info.ndim == rank else None
    if not has_known_shape(arg):
        return None
    dims = shape(arg)
    aligned = [1] * (rank - len(dims)) + list(dims)
    if all(static(dim) == 1 for axis, dim in enumerate(aligned) if axis != 1):
        return emit(op.reshape(arg, (aligned[1],)))
    if len(dims) < rank:
        return None
    return emit(op.permute_dims(arg, channels_last(rank)))


def _pooled(call: relax.Call, twin: Twin) -> relax.Expr | None:
    """Pooling of 2-d images."""
    attrs, image = call.attrs, twin(call.args[0])
    if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
        return None
    if call.op.name == "relax.nn.adaptive_avg_pool2d":
        return op.nn.adaptive_avg_pool2d(image, attrs.output_size, "NHWC")
    pool = op.nn.max_pool2d if call.op.name == "relax.nn.max_pool2d" else op.nn.avg_pool2d
    window = (list(attrs.pool_size), list(attrs.strides), list(attrs.padding), list(attrs.dilation))
    return pool(image, *window, attrs.ceil_mode, attrs.count_include_pad, "NHWC")


def _of_pixels(call: relax.Call, image: relax.Expr) -> relax.Expr | None:
    """The mean or sum of each channel."""
    rank = image.struct_info.ndim
    if call.attrs.axis is None or sorted(int(axis) % rank for axis in call.attrs.axis) != list(range(2, rank)):
        return None
    reduced = op.mean if call.op.name == "relax.mean" else op.sum
    return reduced(image, list(range(1, rank - 1)), keepdims=bool(call.attrs.keepdims))


def _merged(call: relax.Call, twin: Twin) -> relax.Expr | None:
    """``[batch, channels, rows, columns]`` as ``[batch, channels, pixels]``."""
    image = twin(call.args[0])
    before, after = shape(call.args[0]), shape(call)
    kept = len(after) == 3 and all(map(arith.Analyzer().can_prove_equal, before[:2], after[:2]))
    return op.reshape(image, (after[0], after[2], after[1])) if kept else None
