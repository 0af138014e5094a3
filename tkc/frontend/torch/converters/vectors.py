"""Tensors without dimensions, where an operator works along one: PyTorch takes each for a vector of one element."""

from __future__ import annotations

from functools import wraps
from typing import Any

from tvm import relax

from tkc.frontend.torch.converters.emitter import Converter, Emitter


def as_vectors(converter: Converter) -> Converter:
    """``converter``, which sees vectors in the place of such tensors; its results lose the dimension again."""

    @wraps(converter)
    def convert(b: Emitter, *args: Any) -> Any:
        if not any(map(_is_scalar, args)):
            return converter(b, *args)
        found = converter(b, *(b.emit(b.reshape(arg, [1])) if _is_scalar(arg) else arg for arg in args))
        expected = b.node.meta["val"]
        if isinstance(found, list):
            return [_shaped(b, value, like) for value, like in zip(found, expected, strict=True)]
        return _shaped(b, found, expected)

    return convert


def _is_scalar(argument: Any) -> bool:
    return (
        isinstance(argument, relax.Expr)
        and isinstance(argument.struct_info, relax.TensorStructInfo)
        and argument.struct_info.ndim == 0
    )


def _shaped(b: Emitter, value: relax.Expr, like: Any) -> relax.Expr:
    value = b.emit(value)
    shape = b.sizes(like.shape)
    return value if value.struct_info.ndim == len(shape) else b.reshape(value, shape)
