"""Attention of groups of heads, whose products ``einsum`` folds groups and queries together for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax import op

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, has_known_shape, permuted_axes, shape, static

_TO_SOFTMAX = (*SHAPE_CHANGES, "relax.permute_dims", "relax.astype")
_ON_ELEMENTS = tuple(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "where", "tanh"))


@tvm.transform.module_pass(opt_level=0, name="GroupedAttention")
class GroupedAttention:
    """Gives the rows of attention's products the axes that were folded into one.

    ``einsum("bqngd,bknd->bngqk", q, k)`` is a product of ``[b * n, g * q, d]`` and ``[b * n, d, k]``. In that of
    ``[b, n, g, q, d]`` and ``[b, n, 1, d, k]``, a head's queries are rows again. Both products around a softmax are
    unfolded, and no others: elsewhere, more rows to a product are what is wanted.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with products that have an axis for the groups."""
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                graph = Graph(module, function)
                changed = {
                    var: value
                    for var, of_weights in _products(graph).items()
                    if (value := _unfolded(graph, graph.value(var), of_weights)) is not None
                }
                if changed:
                    functions = {**module.functions, name: _with_values(function, changed)}
                    module = IRModule(functions, module.attrs, module.global_infos)
        return relax.transform.Normalize()(module)


def _with_values(function: relax.Function, values: dict[relax.Var, relax.Expr]) -> relax.Function:
    blocks = []
    for block in function.body.blocks:
        bindings = [
            relax.VarBinding(binding.var, values[binding.var]) if binding.var in values else binding
            for binding in block.bindings
        ]
        blocks.append(type(block)(bindings, block.span))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


def _products(graph: Graph) -> dict[relax.Var, bool]:
    """The products of softmax with something (true), and those that this softmax is taken of (false)."""
    found: dict[relax.Var, bool] = {}
    for var, value in graph.var2val.items():
        if graph.call(value, "relax.matmul") is None or value is not graph.value(var):
            continue
        softmax = graph.call(graph.through(value.args[0], *_TO_SOFTMAX), "relax.nn.softmax")
        if softmax is not None:
            found[var] = True
            for scores in _before(graph, softmax.args[0]):
                found.setdefault(scores, False)
    return found


def _before(graph: Graph, expr: relax.Expr) -> Iterator[relax.Var]:
    """The products that ``expr`` comes from by operators on each element, or by views."""
    pending, seen = [expr], set()
    while pending:
        expr = graph.variable(graph.value(pending.pop()))
        if expr in seen:
            continue
        seen.add(expr)
        if graph.call(expr, "relax.matmul") is not None and isinstance(expr, relax.Var):
            yield expr
        elif (call := graph.call(expr, *_TO_SOFTMAX, *_ON_ELEMENTS)) is not None:
            pending.extend(arg for arg in call.args if isinstance(arg, relax.Var))


@dataclass(frozen=True)
class _Rows:
    """A tensor ``[*batch, *rows, k]`` with the axes for rows that, in ``order``, are those of a product."""

    value: relax.Expr
    batch: Sequence[tirx.PrimExpr]
    rows: Sequence[tirx.PrimExpr]
    order: Sequence[int]


def _unfolded(graph: Graph, product: relax.Call, of_weights: bool) -> relax.Expr | None:
    left, right = product.args
    if (
        not all(map(has_known_shape, (product, left, right)))
        or not left.struct_info.ndim == right.struct_info.ndim == 3
    ):
        return None
    found = _rows(graph, left, of_weights)
    if found is None:
        return None
    source = graph.through(right, *SHAPE_CHANGES)
    columns = list(shape(right)[-2:])
    if not has_known_shape(source) or not graph.same_shape(_sizes(source), [*found.batch, *columns]):
        return None
    ones = [tirx.IntImm("int64", 1)] * (len(found.rows) - 1)
    batch = list(found.batch)
    if len(batch) == 1 and static(batch[0]) is not None:
        batch.insert(0, tirx.IntImm("int64", 1))  # heads, of a batch of one
    rows = op.reshape(found.value, [*batch, *found.rows, shape(left)[-1]])
    unfolded = op.matmul(rows, op.reshape(source, [*batch, *ones, *columns]), product.attrs.out_dtype)
    last = len(batch) + len(found.rows)
    in_order = op.permute_dims(unfolded, [*range(len(batch)), *(len(batch) + row for row in found.order), last])
    return op.reshape(in_order, shape(product))


def _rows(graph: Graph, left: relax.Expr, of_weights: bool) -> _Rows | None:
    """The axes behind those of ``left``, if its rows are several; those of weights in their own order, queries last."""
    source = graph.through(left, *SHAPE_CHANGES)
    if not has_known_shape(source):
        return None
    sizes = _sizes(source)
    one = tirx.IntImm("int64", 1)
    cuts = (cut for cut in range(1, len(sizes) - 2) if graph.equal(prod(sizes[:cut], start=one), shape(left)[0]))
    cut = next(cuts, None)
    if cut is None or not graph.same_shape([prod(sizes[cut:-1], start=one), sizes[-1]], shape(left)[1:]):
        return None
    permuted = graph.call(source, "relax.permute_dims") if of_weights else None
    if permuted is None or not has_known_shape(permuted.args[0]):
        return _Rows(source, sizes[:cut], sizes[cut:-1], range(len(sizes) - 1 - cut))
    before = shape(permuted.args[0])
    kept = [axis for axis, size in enumerate(before) if static(size) != 1]
    order = [kept.index(axis) for axis in permuted_axes(permuted) if axis in kept]
    rows = sorted(order[cut:-1])
    dense = op.reshape(permuted.args[0], [before[axis] for axis in kept])
    value = op.permute_dims(dense, [*order[:cut], *rows, order[-1]])
    return _Rows(value, sizes[:cut], [before[kept[row]] for row in rows], [rows.index(row) for row in order[cut:-1]])


def _sizes(expr: relax.Expr) -> list[tirx.PrimExpr]:
    """The sizes of ``expr`` other than one."""
    return [size for size in shape(expr) if static(size) != 1]
