"""Converters of ONNX operators from outside of TKC."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tkc.errors import UsageError
from tkc.frontend.onnx.checked_converters import checked_converter
from tkc.frontend.onnx.converters import CONVERTERS
from tkc.frontend.onnx.converters.shared import Converter
from tkc.frontend.onnx.domains import STANDARD_DOMAINS, stock_converters
from tkc.frontend.registered import check_function, note

C = TypeVar("C", bound=Converter)

_NAME = re.compile(r"([A-Za-z_][\w.-]*)::([A-Za-z_]\w*)")


def onnx_converter(name: str, *, replace: bool = False) -> Callable[[C], C]:
    """Register the decorated function as TKC's converter of an ONNX operator, for all later compilations.

    Args:
        name: the operator's domain and type, ``"com.acme::Op"``; those of the standard are ``"ai.onnx::Op"``.
        replace: whether the function may take the place of a converter that is there, TKC's own among them.

    The function takes a :class:`~tkc.frontend.onnx.node.Node`, which has the node's inputs, attributes and opset, and
    the Relax builder. It returns a Relax expression, or a sequence of them for several outputs. A
    :class:`~tkc.frontend.onnx.values.ConversionError` of it says, after the node's name, what it cannot express.

    Raises:
        UsageError: ``name`` is no operator's name, the operator has a converter already and ``replace`` is not given,
            or what is decorated is no function of a node.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"{name!r} is no name of an ONNX operator; write it as 'com.acme::Op', with its domain")
    domain, operator = ("" if found[1] in STANDARD_DOMAINS else found[1]), found[2]

    def register(function: C) -> C:
        check_function("tkc.onnx_converter", name, function)
        if not replace and ((domain, operator) in CONVERTERS or operator in stock_converters(domain)):
            raise UsageError(f"{name} has a converter already; with replace=True this one takes its place")
        CONVERTERS[domain, operator] = checked_converter(name, function)
        note(name, function)
        return function

    return register
