"""How much a TensorIR function has to do at the least, as formulas over its sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvm import DataType, tirx

from tkc.schedules.blocks import nodes

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_OPERATORS: Mapping[type, str] = {
    **{tirx.Add: "({} + {})", tirx.Sub: "({} - {})", tirx.Mul: "({}*{})"},
    **{tirx.FloorDiv: "({}//{})", tirx.FloorMod: "({}%{})"},
    **{tirx.Min: "min({}, {})", tirx.Max: "max({}, {})"},
}
_SELECTIONS = ("tirx.if_then_else", "tir.if_then_else", "tirx.likely", "tir.likely", "tirx.reinterpret")


@dataclass(frozen=True)
class FormulatedWork:
    """``parameters`` as in :class:`tkc.runtime.call_table.FunctionWork`; formulas where the work is known."""

    parameters: tuple[tuple[int | str, ...] | str, ...]
    flops: str | None
    bytes: str | None


def formulated_work(func: tirx.PrimFunc) -> FormulatedWork:
    """The floating-point operations of ``func``, unscheduled, and the bytes that it reads and writes of its parameters.

    Of each parameter at most all of it, and at most what every iteration touches (a gather reads some rows of its
    table). A call of a function such as ``exp`` is one operation. Both are unknown where loops stand inside of blocks
    or around them: how often these run may depend on data.
    """
    names: dict[tirx.Var, str] = {}
    parameters: list[tuple[int | str, ...] | str] = []
    for parameter in func.params:
        if parameter in func.buffer_map:
            shape = func.buffer_map[parameter].shape
            parameters.append(tuple(_dimension(dim, names) for dim in shape))
        else:
            parameters.append(names.setdefault(parameter, f"s{len(names)}"))
    try:
        return FormulatedWork(tuple(parameters), _flops(func, names), _bytes(func, names))
    except _UnknownError:
        return FormulatedWork(tuple(parameters), None, None)


class _UnknownError(Exception):
    """The work is no formula over the sizes."""


def _dimension(dim: tirx.PrimExpr, names: dict[tirx.Var, str]) -> int | str:
    if isinstance(dim, tirx.IntImm):
        return int(dim)
    return names.setdefault(dim, f"s{len(names)}") if isinstance(dim, tirx.Var) else ""


def _leaf_blocks(func: tirx.PrimFunc) -> list[tirx.SBlock]:
    root = func.body.block if isinstance(func.body, tirx.SBlockRealize) else None
    blocks = [node for node in nodes(func.body) if isinstance(node, tirx.SBlock) and not node.same_as(root)]
    for block in blocks:
        inside = list(nodes(block.body))
        if any(isinstance(node, tirx.For | tirx.While | tirx.SBlock) for node in inside):
            raise _UnknownError
    if not blocks:
        raise _UnknownError
    return blocks


def _flops(func: tirx.PrimFunc, names: Mapping[tirx.Var, str]) -> str:
    terms = []
    for block in _leaf_blocks(func):
        operations = sum(map(_is_operation, nodes(block.body)))
        if operations:
            terms.append(f"{operations}*{_iterations(block, names)}")
    return " + ".join(terms) or "0"


def _is_operation(node: object) -> bool:
    if not str(getattr(node, "dtype", "")).startswith(("float", "bfloat")):
        return False
    if isinstance(node, tirx.Call):
        return getattr(node.op, "name", "") not in _SELECTIONS
    return isinstance(node, _ARITHMETIC)


def _bytes(func: tirx.PrimFunc, names: Mapping[tirx.Var, str]) -> str:
    parameters = set(func.buffer_map.values())
    touched: dict[tirx.Buffer, list[str]] = {}
    for block in _leaf_blocks(func):
        iterations = _iterations(block, names)
        for region in (*block.reads, *block.writes):
            if region.buffer in parameters:
                extents = _product((dimension.extent for dimension in region.region), names)
                touched.setdefault(region.buffer, []).append(f"{iterations}*{extents}")
    terms = []
    for buffer, elements in touched.items():
        whole = _product(buffer.shape, names)
        terms.append(f"{_width(buffer.dtype)}*min({whole}, {' + '.join(dict.fromkeys(elements))})")
    return " + ".join(terms) or "0"


def _width(dtype: str) -> str:
    bits = DataType(dtype).bits
    return str(bits // 8) if bits % 8 == 0 else str(bits / 8)


def _iterations(block: tirx.SBlock, names: Mapping[tirx.Var, str]) -> str:
    return _product((iterator.dom.extent for iterator in block.iter_vars), names)


def _product(factors: Iterable[tirx.PrimExpr | int], names: Mapping[tirx.Var, str]) -> str:
    known, unknown = [], []
    for factor in factors:
        if isinstance(factor, int | tirx.IntImm):
            known.append(int(factor))
        else:
            unknown.append(_text(factor, names))
    constant = math.prod(known)
    return "*".join([*([str(constant)] if constant != 1 or not unknown else []), *unknown])


def _text(expr: tirx.PrimExpr, names: Mapping[tirx.Var, str]) -> str:
    if isinstance(expr, tirx.IntImm):
        return str(int(expr))
    if isinstance(expr, tirx.Var) and expr in names:
        return names[expr]
    if isinstance(expr, tirx.Cast):
        return _text(expr.value, names)
    form = _OPERATORS.get(type(expr))
    if form is None:
        raise _UnknownError
    return form.format(_text(expr.a, names), _text(expr.b, names))
