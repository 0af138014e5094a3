"""Converters of PyTorch operators from outside of TKC."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from tkc.errors import UsageError
from tkc.frontend.registered import check_function, note
from tkc.frontend.torch.checked_converters import checked_converter
from tkc.frontend.torch.converters import CONVERTERS, KEPT_OF_OTHERS
from tkc.frontend.torch.converters.emitter import Converter

C = TypeVar("C", bound=Converter)

_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")


def converter(name: str, *, replace: bool = False) -> Callable[[C], C]:
    """Register the decorated function as TKC's converter of a PyTorch operator, for all later compilations.

    Args:
        name: the operator as PyTorch writes it, ``"mylib::op"``, or one overload of it, ``"mylib::op.Tensor"``. Without
            one it is the overload ``default``, which operators of ``torch.library`` have.
        replace: whether the function may take the place of a converter that is there, TKC's own among them.

    The function takes an :class:`~tkc.frontend.torch.converters.emitter.Emitter`, then the operator's arguments in the
    order of its schema, with defaults filled in: tensors as Relax expressions, sizes as numbers or expressions of
    TVM's, the rest as it is. It returns a Relax expression, or a list of them for several results; they are brought to
    the shapes and dtypes that PyTorch states. ``raise emitter.unsupported("why")`` refuses a use that it cannot
    express: then PyTorch's operator is called in place, or with ``fallback=False`` the model is refused. What else the
    function raises, or returns that does not fit, is a :class:`tkc.UsageError` of the compilation.

    Raises:
        UsageError: ``name`` is no operator's name, or names an overload that the operator does not have, the operator
            writes into its arguments, it has a converter already and ``replace`` is not given, or what is decorated is
            no function of an emitter.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"{name!r} is no name of a PyTorch operator; write it as 'mylib::op' or 'mylib::op.overload'")
    namespace, base, overload = found[1], found[2], found[3] or "default"
    key = f"{namespace}.{base}.{overload}"
    operator = _operator(namespace, base, overload)
    if operator is not None and operator._schema.is_mutable:
        raise UsageError(
            f"{name} writes into its arguments; a converter computes new values. Register that of an operator without "
            "mutates_args, and write its result in the model."
        )

    def register(function: C) -> C:
        check_function("tkc.converter", name, function)
        if key in CONVERTERS and not replace:
            raise UsageError(f"{name} has a converter already; with replace=True this one takes its place")
        CONVERTERS[key] = checked_converter(name, function)
        KEPT_OF_OTHERS.add(f"{namespace}::{base}")
        note(name, function)
        return function

    return register


def _operator(namespace: str, base: str, overload: str) -> OpOverload | None:
    """The operator, if it is registered by now; :class:`UsageError` where it is, but not this overload of it."""
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    if overload not in packet.overloads():
        names = ", ".join(
            f"'{namespace}::{base}{'' if each == 'default' else f'.{each}'}'" for each in packet.overloads()
        )
        raise UsageError(f"{namespace}::{base} has no overload {overload!r}; give one of those that exist: {names}")
    found = getattr(packet, overload)
    return found if isinstance(found, OpOverload) else None
