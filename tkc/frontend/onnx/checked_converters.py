"""Converters from outside of TKC, which say what is wrong with what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from tkc.errors import Error, UsageError
from tkc.frontend.onnx.converters.shared import Converter
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Known, SizesLearned
from tkc.frontend.onnx.values import ConversionError
from tkc.frontend.outside_converters import converter_named, raised_in, told_value


def checked_converter(name: str, function: Callable[..., Any]) -> Converter:
    """``function``, the converter of ``name``, whose mistakes are a :class:`tkc.UsageError` that names it."""

    @functools.wraps(function)
    def convert(node: Node) -> Any:
        try:
            returned = function(node)
            if isinstance(returned, relax.Expr) and not isinstance(returned, relax.ShapeExpr | relax.PrimValue):
                returned = node.builder.normalize(returned)
        except (Error, MemoryError, ConversionError, SizesLearned):
            raise
        except Exception as error:
            raise raised_in(name, function, error, describe(node.proto)) from error
        if (wrong := _wrong(node, returned)) is not None:
            raise UsageError(
                f"{converter_named(name, function)} returned {wrong} for {describe(node.proto)}, which has "
                f"{_told_outputs(node)}. Return a Relax expression, or a list of one for each output."
            )
        return returned

    return convert


def _wrong(node: Node, returned: Any) -> str | None:
    """What is wrong with what a converter returned for ``node``, if anything."""
    outputs = node.proto.output
    if isinstance(returned, Known | relax.ShapeExpr | relax.PrimValue):
        return told_value(returned) if len(outputs) > 1 else None
    parts: Sequence[Any]
    if isinstance(returned, relax.Expr):
        info = returned.struct_info
        parts = info.fields if isinstance(info, relax.TupleStructInfo) else [returned]
    elif isinstance(returned, list | tuple):
        parts = returned
    else:
        return told_value(returned)
    if len(parts) < len(outputs):
        return told_value(returned)
    for i, (output, part) in enumerate(zip(outputs, parts, strict=False)):
        if output and not isinstance(part, relax.Expr | relax.StructInfo):
            return f"{told_value(part)} as output {i}"
    return None


def _told_outputs(node: Node) -> str:
    names = ", ".join(repr(name) for name in node.proto.output)
    return f"the output {names}" if len(node.proto.output) == 1 else f"{len(node.proto.output)} outputs ({names})"
