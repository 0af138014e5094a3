"""The frontends' grouped matrix product, and the gather of its rows, to the ``matmul.grouped`` kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from tvm import relax
from tvm.ir import GlobalVar
from tvm.relax.dpl import is_op, wildcard

from tkc.contracts import GROUPED_MATMUL_OPERATOR, OPERATOR, WEIGHT_LAYOUT
from tkc.kernels import Target
from tkc.kernels.grouped_matmul.spec import GroupedMatmul, GroupedMatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.layout import restored
from tkc.passes.graph.readers import feeds_only
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule, is_kernel_float, unfit_dtype

_Layout = Literal["gnk", "gkn"]
_TRANSPOSED: dict[_Layout, _Layout] = {"gnk": "gkn", "gkn": "gnk"}

_FUNCTION, _ARGUMENTS = wildcard(), wildcard()


@dataclass(frozen=True)
class GroupedProduct:
    """A call of the frontends' grouped matrix product as the kernel computes it."""

    parameters: GroupedMatmulParameters
    inputs: tuple[relax.Expr, ...]


def grouped_product(graph: Graph, function: GlobalVar, arguments: relax.Tuple) -> GroupedProduct | Refusal | None:
    """What ``call_tir(function, arguments)`` multiplies; ``None`` where that is no grouped product."""
    attrs = graph.module[function].attrs
    if attrs is None or attrs.get(OPERATOR) != GROUPED_MATMUL_OPERATOR:
        return None
    a, weight, offsets = arguments.fields
    weight, layout = _untransposed(graph, weight, "gnk" if attrs[WEIGHT_LAYOUT] == "gnk" else "gkn")
    groups, rows, columns = map(static, shape(weight))
    if groups is None or rows is None or columns is None:
        return Refusal(f"its weights have the shape {list(shape(weight))}, which is not constant")
    name = dtype(a)
    if not is_kernel_float(name):
        return unfit_dtype(name)
    n, k = (rows, columns) if layout == "gnk" else (columns, rows)
    return GroupedProduct(GroupedMatmulParameters(groups, n, k, name, layout), (a, weight, offsets))


def gathered(
    graph: Graph, product: GroupedProduct, var: relax.Var, between: Collection[str], target: Target
) -> GroupedProduct:
    """``product`` with its rows fetched by the kernel, if a gather makes them and the kernel can.

    Whatever else reads the fetched rows, through the operators ``between``, must end in ``var``.
    """
    a, *others = product.inputs
    take = graph.call(a, "relax.take")
    if take is None or not _takes_rows(take) or not feeds_only(graph, a, var, between):
        return product
    source, rows = take.args
    parameters = replace(product.parameters, rows=dtype(rows))
    if GroupedMatmul().unsupported(parameters, target) is not None:
        return product
    return GroupedProduct(parameters, (source, rows, *others))


def _takes_rows(take: relax.Call) -> bool:
    """Whether whole rows of a matrix are fetched by a list of numbers, those out of bounds as the kernel does."""
    source, rows = take.args
    return (
        all(map(has_known_shape, take.args))
        and (len(shape(source)), len(shape(rows))) == (2, 1)
        and take.attrs.axis is not None
        and int(take.attrs.axis) % 2 == 0
        and take.attrs.mode in ("clip", "fast")
        and dtype(rows) in ("int32", "int64")
    )


def _grouped_call(match: Match) -> KernelCall | Refusal | None:
    product = grouped_product(match.graph, match["function"], match["arguments"])
    if product is None or isinstance(product, Refusal):
        return product
    product = gathered(match.graph, product, match.var, (), match.target)
    return KernelCall(product.parameters, product.inputs, {match.var: restored(0, match.var)})


def _untransposed(graph: Graph, weight: relax.Expr, layout: _Layout) -> tuple[relax.Expr, _Layout]:
    """The weight before transpositions of each group's matrix, and the layout it has there."""
    while (call := graph.call(weight, "relax.permute_dims")) is not None and call.attrs.axes is not None:
        if [int(axis) % 3 for axis in call.attrs.axes] != [0, 2, 1]:
            break
        weight, layout = call.args[0], _TRANSPOSED[layout]
    return weight, layout


GROUPED_MATMUL = Rule(
    name="grouped_matmul",
    kernel="matmul.grouped",
    pattern=is_op("relax.call_tir")(_FUNCTION, _ARGUMENTS, varg_default_wildcard=True),
    parts={"function": _FUNCTION, "arguments": _ARGUMENTS},
    check=_grouped_call,
)
