"""The frontends' grouped matmul (each group of rows by its own matrix), and the gather of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tvm import relax

from tkc.contracts import GROUPED_MATMUL_OPERATOR, OPERATOR, WEIGHT_LAYOUT
from tkc.kernels import Target
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmul
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Refusal
from tkc.passes.graph.kernel_floats import is_index_dtype, is_kernel_float, unfit_dtype
from tkc.passes.graph.readers import serves_only

_Layout = Literal["gnk", "gkn"]
_TRANSPOSED: dict[_Layout, _Layout] = {"gnk": "gkn", "gkn": "gnk"}


@dataclass(frozen=True)
class GroupedProduct:
    """A call of the frontends' grouped matrix product as the kernel computes it."""

    parameters: GroupedMatmulParameters
    inputs: Mapping[str, relax.Expr]


def grouped_product(graph: Graph, expr: relax.Expr) -> GroupedProduct | Refusal | None:
    """The grouped product that ``expr`` holds; ``None`` where it holds none."""
    call = graph.call(expr, "relax.call_tir")
    if call is None:
        return None
    function, arguments = call.args[:2]
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
    inputs = {"a": a, "weight": weight, "offsets": offsets}
    n, k = (rows, columns) if layout == "gnk" else (columns, rows)
    return GroupedProduct(GroupedMatmulParameters(groups, n, k, name, layout), inputs)


def gathered(graph: Graph, product: GroupedProduct, var: relax.Var, target: Target) -> GroupedProduct:
    """``product`` with its rows fetched by the kernel, if a gather makes them for ``var`` alone and the kernel can."""
    take = graph.call(product.inputs["a"], "relax.take")
    if take is None or not _takes_rows(take) or not serves_only(graph, take, var):
        return product
    source, rows = take.args
    rows_dtype = dtype(rows)
    if not is_index_dtype(rows_dtype):
        return product
    parameters = replace(product.parameters, rows=rows_dtype)
    if GroupedMatmul().unsupported(parameters, target) is not None:
        return product
    weight, offsets = product.inputs["weight"], product.inputs["offsets"]
    return GroupedProduct(parameters, {"a": source, "rows": rows, "weight": weight, "offsets": offsets})


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


def _untransposed(graph: Graph, weight: relax.Expr, layout: _Layout) -> tuple[relax.Expr, _Layout]:
    """The weight before transpositions of each group's matrix, and the layout it has there."""
    while (call := graph.call(weight, "relax.permute_dims")) is not None and call.attrs.axes is not None:
        if [int(axis) % 3 for axis in call.attrs.axes] != [0, 2, 1]:
            break
        weight, layout = call.args[0], _TRANSPOSED[layout]
    return weight, layout
