"""Loops over the rows of matrices, each of which adds to a row a combination of those before it, as one function.

What a model writes as ``for i in range(1, n): a[..., i, :i] += (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)`` inverts
``1 - a``, of a strictly lower triangular ``a``, by forward substitution; so do chunked delta rules (Gated DeltaNet,
https://arxiv.org/abs/2412.06464). PyTorch's export unrolls it, into some twenty operators a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

from tkc.contracts import IS_SCHEDULED, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN
from tkc.kernels import Target
from tkc.passes.graph.bindings import Graph, known_dims, shape, static
from tkc.passes.graph.layout import product
from tkc.passes.graph.views import Index, IndexSpace, int64, view_source

_DTYPES = ("float32", "float64")
"""Of 16 bits PyTorch rounds each product and each sum, which the function does not."""
_LEAST_ROWS = 2
_THREADS = 64


@tvm.transform.module_pass(opt_level=0, name="ForwardSubstitutions")
class ForwardSubstitutions:
    """Replaces the steps of such a loop, over neighbouring rows in ascending order, by a call of one function.

    Nothing is asked of the elements: row ``i`` is read as it was, and rows before it as the loop left them. Where a
    step is anything else, or not proven to be this, the loop stays as it is.
    """

    def __init__(self, target: Target) -> None:
        self._write = _threads_for_columns if target.is_cuda else _rows_by_rows

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with such loops as functions that are scheduled."""
        builder = relax.BlockBuilder(module)
        written = False
        for name, function in module.functions_items():
            if isinstance(function, relax.Function) and (loops := list(_loops(Graph(module, function)))):
                builder.update_func(name, self._rewritten(builder, function, {loop.result: loop for loop in loops}))
                written = True
        if not written:
            return module
        return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(builder.get()))

    def _rewritten(
        self, builder: relax.BlockBuilder, function: relax.Function, loops: dict[relax.Var, _Loop]
    ) -> relax.Function:
        blocks = []
        for block in function.body.blocks:
            bindings = [
                new
                for old in block.bindings
                for new in (self._bindings(builder, loops[old.var]) if old.var in loops else [old])
            ]
            blocks.append(relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else block)
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)

    def _bindings(self, builder: relax.BlockBuilder, loop: _Loop) -> list[relax.Binding]:
        info = loop.result.struct_info
        dims = shape(loop.result)
        rows, columns = dims[-2:]
        flat = relax.TensorStructInfo((product(dims[:-2]), rows, columns), info.dtype)
        function = self._write(int(rows), int(columns), loop.first, loop.past, str(info.dtype))
        name = loop.result.name_hint
        given, solved = (relax.DataflowVar(f"{name}_{part}", flat) for part in ("given", "solved"))
        called = relax.call_tir(builder.add_func(function, "forward_substitution"), given, out_sinfo=flat)
        return [
            relax.VarBinding(given, relax.op.reshape(loop.given, flat.shape)),
            relax.VarBinding(solved, called),
            relax.VarBinding(loop.result, relax.op.reshape(solved, dims)),
        ]


@dataclass(frozen=True)
class _Loop:
    """``result`` is ``given`` after the steps for the rows from ``first`` up to ``past`` (excluded)."""

    result: relax.Var
    given: relax.Expr
    first: int
    past: int


@dataclass(frozen=True)
class _Step:
    """The step for one row of ``before``, a tensor."""

    before: relax.Expr
    row: int


def _loops(graph: Graph) -> Iterator[_Loop]:
    """The loops in ``graph``, each as long as it can be."""
    steps = _Steps(graph)
    of = {var: step for var in graph.var2val if (step := steps.step(var)) is not None}
    results = {graph.value(var): var for var in of}
    # Only the last step of a loop counts: the others are before a step for the next row.
    inner = {
        var
        for step in of.values()
        if (var := results.get(graph.value(step.before))) is not None and of[var].row == step.row - 1
    }
    for var in of.keys() - inner:
        first, given = of[var].row, of[var].before
        while (earlier := results.get(graph.value(given))) is not None and of[earlier].row == first - 1:
            first, given = of[earlier].row, of[earlier].before
        if of[var].row - first + 1 >= _LEAST_ROWS:
            yield _Loop(var, given, first, of[var].row + 1)


class _Steps:
    """Recognizes steps by the elements that they hold, however they are written as slices and concatenations."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._space = IndexSpace.of(graph)

    def step(self, var: relax.Var) -> _Step | None:
        """The step whose result ``var`` is: a tensor as it was before, but for the first elements of one row."""
        joined = self._graph.call(var, "relax.concat")
        dims = None if joined is None else known_dims(joined.struct_info)
        if joined is None or dims is None or len(dims) < 2 or joined.struct_info.dtype not in _DTYPES:
            return None
        rows, columns = map(static, dims[-2:])
        if rows is None or columns is None or joined.attrs.axis is None:
            return None
        parts = self._graph.value(joined.args[0])
        if int(joined.attrs.axis) % len(dims) != len(dims) - 2 or not isinstance(parts, relax.Tuple):
            return None
        # It begins with the rows before, which are as many as the row's own number.
        unchanged = self._graph.call(parts.fields[0], "relax.strided_slice")
        row = None if unchanged is None else static(shape(unchanged)[-2])
        if unchanged is None or row is None or not 0 < row < rows or row > columns:
            return None
        before = unchanged.args[0]
        if not self._same_shape(before, dims):
            return None
        outer = tuple(self._space.variable(f"n{axis}", dim) for axis, dim in enumerate(dims[:-2]))
        places = [(self._space.variable("r", row), self._space.variable("c", columns))]
        if row + 1 < rows:
            behind = self._space.variable("r", rows - row - 1) + row + 1
            places.append((behind, self._space.variable("c", columns)))
        if row < columns:
            places.append((int64(row), self._space.variable("c", columns - row) + row))
        if not all(self._is_element(joined, (*outer, *place), before, (*outer, *place)) for place in places):
            return None
        column = self._space.variable("c", row)
        return _Step(before, row) if self._is_sum(joined, before, outer, row, column) else None

    def _same_shape(self, expr: relax.Expr, dims: tuple[tirx.PrimExpr, ...]) -> bool:
        own = known_dims(expr.struct_info)
        return own is not None and len(own) == len(dims) and all(map(self._space.equal, own, dims))

    def _is_sum(self, result: relax.Expr, before: relax.Expr, outer: Index, row: int, column: tirx.PrimExpr) -> bool:
        """Whether ``result`` has in a row's column what ``before`` has, and the row's combination of earlier ones."""
        value, index = self._origin(result, (*outer, int64(row), column), before)
        if (added := self._graph.call(value, "relax.add")) is None:
            return False
        own = (*outer, int64(row), column)
        for kept, rest in (added.args, reversed(added.args)):
            dims = [known_dims(operand.struct_info) for operand in (kept, rest)]
            if any(each is None or len(each) != len(index) for each in dims):
                return False
            if self._is_element(kept, self._read_at(kept, index), before, own):
                return self._is_combination(rest, self._read_at(rest, index), before, outer, row, column)
        return False

    def _is_combination(
        self,
        value: relax.Expr,
        index: Index,
        before: relax.Expr,
        outer: Index,
        row: int,
        column: tirx.PrimExpr,
    ) -> bool:
        """Whether ``value`` at ``index`` is the sum over earlier rows of their element in ``column``, times the row's
        element that has their number."""
        found, index = self._origin(value, index, before)
        summed = self._graph.call(found, "relax.sum")
        terms = None if summed is None else known_dims(summed.args[0].struct_info)
        if summed is None or terms is None or summed.attrs.axis is None or len(summed.attrs.axis) != 1:
            return False
        axis = int(summed.attrs.axis[0]) % len(terms)
        if static(terms[axis]) != row:
            return False
        earlier = self._space.variable("k", row)
        others = [entry for place, entry in enumerate(index) if place != axis] if summed.attrs.keepdims else index
        index = (*others[:axis], earlier, *others[axis:])
        value, index = self._origin(summed.args[0], index, before)
        if (product := self._graph.call(value, "relax.multiply")) is None:
            return False
        ranks = [known_dims(factor.struct_info) for factor in product.args]
        if any(each is None or len(each) != len(index) for each in ranks):
            return False
        factor, element = (*outer, int64(row), earlier), (*outer, earlier, column)
        return any(
            self._is_element(one, self._read_at(one, index), before, factor)
            and self._is_element(other, self._read_at(other, index), before, element)
            for one, other in (product.args, reversed(product.args))
        )

    def _read_at(self, operand: relax.Expr, index: Index) -> Index:
        """Where an operand of an elementwise operator, of as many axes, is read for the result at ``index``."""
        return tuple(int64(0) if static(dim) == 1 else entry for dim, entry in zip(shape(operand), index, strict=True))

    def _is_element(self, expr: relax.Expr, index: Index, tensor: relax.Expr, place: Index) -> bool:
        """Whether ``expr`` has at ``index`` what ``tensor`` has at ``place``."""
        value, found = self._origin(expr, index, tensor)
        return value.same_as(self._graph.value(tensor)) and all(map(self._space.equal, found, place))

    def _origin(self, expr: relax.Expr, index: Index, until: relax.Expr) -> tuple[relax.Expr, Index]:
        """The value from which ``expr`` has its element at ``index``, and where there; ``until``, if it comes by."""
        end = self._graph.value(until)
        while not (value := self._graph.value(expr)).same_as(end):
            source = view_source(self._graph, self._space, value, index)
            if source is None or not self._is_within(*source):
                break
            expr, index = source
        return value, index

    def _is_within(self, expr: relax.Expr, index: Index) -> bool:
        dims = known_dims(expr.struct_info)
        return dims is not None and len(dims) == len(index) and all(map(self._space.within, index, dims))


def _threads_for_columns(rows: int, columns: int, first: int, past: int, dtype: str) -> tirx.PrimFunc:
    """A thread a column: what a row adds to it depends on no other column."""
    outer = tirx.Var("outer", "int64")
    threads, width, height = T.int64(_THREADS), T.int64(columns), T.int64(rows)

    @T.prim_func(private=True, s_tir=True)
    def forward_substitution(x_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        x = T.match_buffer(x_handle, (outer, rows, columns), dtype=dtype)
        out = T.match_buffer(out_handle, (outer, rows, columns), dtype=dtype)
        for block in T.thread_binding(T.ceildiv(outer * width, threads), thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock():
                    total = T.sblock_alloc_buffer((1,), dtype, scope="local")
                    line: T.let[T.int64] = block * threads + thread
                    if line < outer * width:
                        matrix: T.let[T.int64] = T.truncdiv(line, width)
                        column: T.let[T.int64] = T.truncmod(line, width)
                        for i in T.serial(height):
                            total[0] = T.Cast(dtype, 0)
                            if i >= first and i < past and column < i:
                                for k in T.serial(i):
                                    total[0] = total[0] + x[matrix, i, k] * out[matrix, k, column]
                                out[matrix, i, column] = x[matrix, i, column] + total[0]
                            else:
                                out[matrix, i, column] = x[matrix, i, column]

    return forward_substitution


def _rows_by_rows(rows: int, columns: int, first: int, past: int, dtype: str) -> tirx.PrimFunc:
    """Matrices among cores, and neighbouring columns together."""
    outer = tirx.Var("outer", "int64")

    @T.prim_func(private=True, s_tir=True)
    def forward_substitution(x_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        x = T.match_buffer(x_handle, (outer, rows, columns), dtype=dtype)
        out = T.match_buffer(out_handle, (outer, rows, columns), dtype=dtype)
        for matrix in T.parallel(outer):
            with T.sblock():
                totals = T.sblock_alloc_buffer((columns,), dtype, scope="local")
                for i in T.serial(rows):
                    for j in T.serial(columns):
                        totals[j] = T.Cast(dtype, 0)
                    if i >= first and i < past:
                        for k in T.serial(i):
                            for j in T.serial(i):
                                totals[j] = totals[j] + x[matrix, i, k] * out[matrix, k, j]
                    for j in T.serial(columns):
                        # Behind the first ones a row is left as it is, a negative zero included.
                        out[matrix, i, j] = T.if_then_else(
                            i >= first and i < past and j < i, x[matrix, i, j] + totals[j], x[matrix, i, j]
                        )

    return forward_substitution
