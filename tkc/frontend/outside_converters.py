"""What the converters of both frontends that were registered from outside do wrong, as errors that name them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from tvm import relax, te

from tkc.errors import UsageError

_LONGEST_CAUSE = 400  # characters; TVM's errors may print whole functions


def converter_named(name: str, function: Callable[..., Any]) -> str:
    """The converter of the operator ``name``, and where it stands, as errors name it."""
    code = getattr(function, "__code__", None)
    own = getattr(function, "__name__", type(function).__name__)
    return f"The converter of {name} ({own}{f' in {code.co_filename}, line {code.co_firstlineno}' if code else ''})"


def raised_in(name: str, function: Callable[..., Any], error: Exception, where: str) -> UsageError:
    """The error for an exception that a converter did not mean to raise."""
    code = getattr(function, "__code__", None)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    line = f" at its line {frames[-1].lineno}" if frames else ""
    lines = str(error).strip().splitlines() or [""]
    cause = lines[-1][:_LONGEST_CAUSE]
    return UsageError(f"{converter_named(name, function)} raised {type(error).__name__}{line} for {where}: {cause}")


def told_value(value: Any) -> str:
    """What a converter returned, in words."""
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | complex | str):
        return f"the {type(value).__name__} {value!r}"
    if isinstance(value, te.Tensor):
        return "a te.Tensor (emit_te makes an expression of a function that returns one)"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, relax.Expr):
        info = getattr(value, "struct_info_", None)
        if isinstance(info, relax.TupleStructInfo):
            return f"a tuple of {len(info.fields)}"
        if isinstance(info, relax.TensorStructInfo):
            return told_tensor(info)
        return f"a relax.{type(value).__name__}, which is no tensor"
    kind = type(value)
    return f"a {kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def told_shape(shape: Iterable[Any]) -> str:
    """Sizes, as a user writes them: TVM calls one of them ``T.int64(3)``."""
    return "[" + ", ".join(re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size)) for size in shape) + "]"


def told_tensor(info: relax.TensorStructInfo) -> str:
    """A tensor's dtype and shape, in words."""
    known = isinstance(info.shape, relax.ShapeExpr)
    shape = told_shape(info.shape.values) if known else f"of {info.ndim} dimensions"
    return f"{info.dtype or 'a tensor'} {shape}"
