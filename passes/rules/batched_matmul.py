"""Batched matmul to the ``matmul.batched`` kernel.

``a @ b`` of ``a [*batch, m, k]`` and ``b [*batch, k, n]`` or its transpose, and a cast to 16 bits that alone reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import relax, tirx

from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, permuted_axes, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float, unfit_dtype
from tkc.passes.graph.layout import kernel_call, product
from tkc.passes.graph.readers import between, sole_reader
from tkc.passes.recognizers.weight_matmul import has_one_weight, unfit
from tkc.passes.rules.rule import Rule, Site, operators


@dataclass(frozen=True)
class _Matrices:
    """``expr [*batch, rows, columns]``."""

    expr: relax.Expr
    batch: tuple[tirx.PrimExpr, ...]
    rows: tirx.PrimExpr
    columns: tirx.PrimExpr


def _recognize(site: Site) -> Found | Refusal | None:
    graph, call = site.graph, site.root
    if unfit(graph, call) is not None or has_one_weight(graph, call):
        return None  # the rule of products with one weight takes those, or says why not
    operands = _before_widening(graph, *call.args)
    if isinstance(operands, Refusal):
        return operands
    a, b, name = operands
    var = _narrowed(graph, site.var)
    out = dtype(var)
    if not is_kernel_float(out):
        return unfit_dtype(out)
    left, (right, transposed) = _matrices(a), _untransposed(graph, b)
    *batch, m, n = shape(var)
    own = _own_axes(batch, right.batch)
    shared = batch[own:]
    each = [*batch[:own], *(tirx.IntImm("int64", 1) for _ in shared)]
    if not (_broadcasts(graph, left.batch, batch) and _broadcasts(graph, right.batch, each)):
        return Refusal("the batches of its operands may differ in size")
    parameters = BatchedMatmulParameters(
        n=static(n),
        k=static(left.columns),
        dtype=name,
        layout="nk" if transposed else "kn",
        out_dtype=None if out == name else out,
    )
    inputs = {
        "a": relax.op.reshape(_broadcast(graph, left, batch), (product(each), product((*shared, m)), left.columns)),
        "b": relax.op.reshape(_broadcast(graph, right, each), (product(each), right.rows, right.columns)),
    }
    return Found(parameters, inputs, {var: 0}, between(graph, site.var, var))


def _before_widening(
    graph: Graph, a: relax.Expr, b: relax.Expr
) -> tuple[relax.Expr, relax.Expr, KernelFloat] | Refusal:
    """The operands and their dtype, before both were only widened: the kernel sums in float32."""
    for left, right in ((graph.before_widening(a), graph.before_widening(b)), (a, b)):
        if left is None or right is None:
            continue
        name = dtype(left)
        if name == dtype(right) and is_kernel_float(name):
            return left, right, name
    return Refusal(f"it multiplies {dtype(a)} by {dtype(b)}")


def _narrowed(graph: Graph, var: relax.Var) -> relax.Var:
    """What holds the product in 16 bits, if that is all that is read of it, or ``var``, which holds it as it is."""
    reader = sole_reader(graph, var)
    cast = None if reader is None else graph.call(reader, "relax.astype")
    return reader if reader is not None and cast is not None and dtype(cast) in ("float16", "bfloat16") else var


def _matrices(expr: relax.Expr) -> _Matrices:
    *batch, rows, columns = shape(expr)
    return _Matrices(expr, tuple(batch), rows, columns)


def _untransposed(graph: Graph, expr: relax.Expr) -> tuple[_Matrices, bool]:
    """The matrices, or, if they are transposed ones of what lies in memory row by row, those, and whether they are.

    Of a permutation that moves further axes, the rest remains to be done. What a number multiplies or divides behind
    it, as keys by the root of their size, it does before.
    """
    if (scaled := _scaled_transposition(graph, expr)) is not None:
        return scaled, True
    matrices, call = _matrices(expr), graph.call(expr, "relax.permute_dims")
    axes = [] if call is None else permuted_axes(call)
    if call is None or axes[-2] != len(axes) - 1:
        return matrices, False
    rest = [*axes[:-2], axes[-1], axes[-2]]
    source = call.args[0] if rest == sorted(rest) else relax.op.permute_dims(call.args[0], rest)
    return _Matrices(source, matrices.batch, matrices.columns, matrices.rows), True


def _scaled_transposition(graph: Graph, expr: relax.Expr) -> _Matrices | None:
    """What ``expr``, which one value reads, transposes, multiplied or divided by the number that follows."""
    call = graph.call(expr, "relax.multiply", "relax.divide")
    if call is None or sole_reader(graph, expr) is None:
        return None
    divides = call.op.name == "relax.divide"
    for x, number in (call.args,) if divides else (call.args, reversed(call.args)):
        if any(static(size) != 1 for size in shape(number)) or graph.call(x, "relax.permute_dims") is None:
            continue
        matrices, transposed = _untransposed(graph, x)
        if transposed and number.struct_info.ndim <= x.struct_info.ndim:
            scaled = (relax.op.divide if divides else relax.op.multiply)(matrices.expr, number)
            return replace(matrices, expr=scaled)
    return None


def _own_axes(batch: Sequence[tirx.PrimExpr], right: Sequence[tirx.PrimExpr]) -> int:
    """How many axes of ``batch`` the right operand, whose batch is ``right``, has matrices of its own for.

    For all that follow, it has one matrix, and their rows are further rows of one product.
    """
    ones = 0
    while ones < len(batch) and (ones >= len(right) or static(right[-1 - ones]) == 1):
        ones += 1
    return len(batch) - ones


def _broadcasts(graph: Graph, sizes: Sequence[tirx.PrimExpr], batch: Sequence[tirx.PrimExpr]) -> bool:
    """Whether ``sizes`` are sure to broadcast to ``batch``."""
    aligned = zip(reversed(sizes), reversed(batch), strict=False)
    return all(static(size) == 1 or graph.equal(size, wanted) for size, wanted in aligned)


def _broadcast(graph: Graph, matrices: _Matrices, batch: Sequence[tirx.PrimExpr]) -> relax.Expr:
    """The matrices for each entry of ``batch``: copies, where one has to do for several."""
    if graph.equal(product(matrices.batch), product(batch)):
        return matrices.expr
    return relax.op.broadcast_to(matrices.expr, (*batch, matrices.rows, matrices.columns))


BATCHED_MATMUL = Rule(
    name="batched_matmul",
    kernel="matmul.batched",
    roots=operators("matmul"),
    recognize=_recognize,
    call=kernel_call,
)
