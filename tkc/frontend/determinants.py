"""Determinants of matrices of any size, by Gaussian elimination with row pivoting, in TensorIR."""

from __future__ import annotations

from tvm import relax, tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN


def emit_determinants(builder: relax.BlockBuilder, matrices: relax.Expr) -> relax.Var:
    """The determinants ``[B]`` of ``matrices [B, N, N]``, float32 or float64; 1 of those without elements."""
    info = matrices.struct_info
    function = builder.add_func(_determinants(str(info.dtype)), "determinants")
    infos = [relax.TensorStructInfo(sizes, info.dtype) for sizes in (info.shape.values[:1], info.shape.values)]
    results = builder.emit(relax.call_tir(function, [matrices], infos))
    return builder.emit(relax.TupleGetItem(results, 0))


def _determinants(dtype: str) -> tirx.PrimFunc:
    """Takes the matrices; writes the determinants, and what elimination leaves of the matrices."""
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    @T.prim_func(private=True, s_tir=True)
    def determinants(matrices_handle: T.handle, results_handle: T.handle, left_handle: T.handle) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        batch, size = T.int64(), T.int64()
        matrices = T.match_buffer(matrices_handle, (batch, size, size), dtype)
        results = T.match_buffer(results_handle, (batch,), dtype)
        left = T.match_buffer(left_handle, (batch, size, size), dtype)
        for b in T.parallel(batch):
            with T.sblock():
                number = T.sblock_alloc_buffer((1,), dtype, scope="local")
                pivot = T.sblock_alloc_buffer((1,), "int64", scope="local")
                for i in T.serial(size):
                    for j in T.serial(size):
                        left[b, i, j] = matrices[b, i, j]
                results[b] = one
                for k in T.serial(size):
                    pivot[0] = k
                    for i in T.serial(size - k):
                        if T.abs(left[b, k + i, k]) > T.abs(left[b, pivot[0], k]):
                            pivot[0] = k + i
                    if pivot[0] != k:
                        for j in T.serial(size):
                            number[0] = left[b, k, j]
                            left[b, k, j] = left[b, pivot[0], j]
                            left[b, pivot[0], j] = number[0]
                        results[b] = zero - results[b]
                    results[b] = results[b] * left[b, k, k]
                    if left[b, k, k] != zero:
                        for i in T.serial(size - k - 1):
                            number[0] = left[b, k + 1 + i, k] / left[b, k, k]
                            for j in T.serial(size - k - 1):
                                left[b, k + 1 + i, k + 1 + j] = (
                                    left[b, k + 1 + i, k + 1 + j] - number[0] * left[b, k, k + 1 + j]
                                )

    return determinants
