"""Converters from outside of TKC, which say what is wrong with what they return."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx

from tkc.errors import Error, UsageError
from tkc.frontend.outside_converters import converter_named, raised_in, told_shape, told_value
from tkc.frontend.torch.converters.dtypes import dtype_name
from tkc.frontend.torch.converters.emitter import Converter, Emitter, source_of


def checked_converter(name: str, function: Callable[..., Any]) -> Converter:
    """``function``, the converter of ``name``, whose mistakes are a :class:`tkc.UsageError` that names it.

    Without this TVM's text, or a fault of TKC itself, would be told; and TVM takes a missing value for a pointer.
    """

    @functools.wraps(function)
    def convert(emitter: Emitter, *arguments: Any) -> Any:
        node = emitter.node
        try:
            returned = function(emitter, *arguments)
            return _Check(name, function, emitter).results(returned, node.meta.get("val"))
        except (Error, MemoryError):
            raise
        except Exception as error:
            raise raised_in(name, function, error, f"{node.target} ({source_of(node)})") from error

    return convert


class _Check:
    """What one call of a converter returned, beside what PyTorch states of the node."""

    def __init__(self, name: str, function: Callable[..., Any], emitter: Emitter) -> None:
        self._converter = converter_named(name, function)
        self._emitter = emitter

    def results(self, returned: Any, expected: Any) -> Any:
        """``returned``, which is what ``expected`` asks for, bound to variables; a list of several results."""
        if not isinstance(expected, list | tuple):
            return self._result(returned, expected, "")
        numbers = [i for i, each in enumerate(expected) if each is not None and not isinstance(each, torch.Tensor)]
        if numbers:
            raise self._emitter.unsupported(
                f"its result {numbers[0]} is a number, and converters return tensors alone."
            )
        values = returned
        if isinstance(returned, relax.Expr):
            values = returned = self._emitter.emit(returned)
            if isinstance(returned.struct_info, relax.TupleStructInfo):
                values = [relax.TupleGetItem(returned, i) for i in range(len(returned.struct_info.fields))]
        if not isinstance(values, list | tuple) or len(values) != len(expected):
            wanted = ", ".join(map(self._told, expected))
            raise self._wrong("", returned, f"{len(expected)} results ({wanted})", "Return a list of that many")
        used = _used_results(self._emitter.node)
        return [
            None if value is None and (part is None or i not in used) else self._result(value, part, f" as result {i}")
            for i, (value, part) in enumerate(zip(values, expected, strict=True))
        ]

    def _result(self, value: Any, expected: Any, which: str) -> Any:
        if not isinstance(expected, torch.Tensor):
            return value
        wanted, cure = self._told(expected), "Return one Relax expression of that dtype and shape"
        if not isinstance(value, relax.Expr) or isinstance(value, relax.ShapeExpr | relax.PrimValue | relax.Tuple):
            raise self._wrong(which, value, wanted, cure)
        value = self._emitter.emit(value)
        info = value.struct_info
        if not isinstance(info, relax.TensorStructInfo):
            raise self._wrong(which, value, wanted, cure)
        shape = self._emitter.sizes(expected.shape)
        sizes = info.shape.values if isinstance(info.shape, relax.ShapeExpr) else []
        if info.ndim not in (-1, len(shape)) or any(map(_differ, sizes, shape)):
            raise self._wrong(which, value, wanted, cure)
        dtype = dtype_name(expected.dtype)
        if _kind(info.dtype) > _kind(dtype):
            cast = f"If the operator rounds or tests it so, return b.cast(value, {dtype!r})"
            raise self._wrong(which, value, wanted, cast)
        return value

    def _told(self, expected: Any) -> str:
        if expected is None:
            return "None"
        return f"{dtype_name(expected.dtype)} {told_shape(self._emitter.sizes(expected.shape))}"

    def _wrong(self, which: str, returned: Any, wanted: str, cure: str) -> UsageError:
        node = self._emitter.node
        return UsageError(
            f"{self._converter} returned {told_value(returned)}{which} where PyTorch has {wanted}, "
            f"for {node.target} ({source_of(node)}). {cure}."
        )


def _used_results(node: fx.Node) -> set[int]:
    """Which results of a node that has several something reads."""
    return {int(user.args[1]) for user in node.users if user.target is operator.getitem and user.users}  # type: ignore[arg-type]  # positions are ints


def _differ(found: Any, wanted: Any) -> bool:
    """Whether two sizes are known, and not the same."""
    return isinstance(found, int | tirx.IntImm) and isinstance(wanted, int | tirx.IntImm) and int(found) != int(wanted)


def _kind(dtype: str) -> int:
    """Truth values, integers and floats: what is cast to a kind before its own loses what it is."""
    return 0 if dtype in ("", "bool") else 1 if dtype.startswith(("int", "uint")) else 2
