"""The grouped matrix product in TileLang, for tensor cores and for the CPU."""

import math

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.grouped_matmul.spec import GroupedMatmulConfiguration, GroupedMatmulParameters
from tkc.kernels.matmul.definition import WARP_GROUP
from tkc.kernels.target import Target


def define(parameters: GroupedMatmulParameters, configuration: GroupedMatmulConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``offsets`` and ``out``."""
    return _cuda(parameters, configuration)


def _cuda(p: GroupedMatmulParameters, c: GroupedMatmulConfiguration) -> PrimFunc:
    m = T.dynamic("m", "int32")
    transposed = p.weight_layout == "gnk"
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)

    def start(offsets, group):
        return T.if_then_else(group == 0, 0, offsets[T.max(group - 1, 0)])

    def first_slot(offsets, group):
        return start(offsets, group) // c.block_m + group

    @T.prim_func
    def grouped_matmul(
        a: T.Tensor((m, p.k), p.dtype),
        b: T.Tensor((p.groups, p.n, p.k) if transposed else (p.groups, p.k, p.n), p.dtype),
        offsets: T.Tensor((p.groups,), "int32"),
        out: T.Tensor((m, p.n), p.dtype),
    ):
        with T.Kernel(T.ceildiv(p.n, c.block_n), m // c.block_m + p.groups + 1, threads=c.threads) as (column_tile, slot):
            if c.threads == WARP_GROUP:
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared(b_tile, p.dtype)
            out_shared = T.alloc_shared((c.block_m, c.block_n), p.dtype)
            acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
            group = T.alloc_var("int32", 0)
            last = T.alloc_var("int32", p.groups)
            for _ in T.serial(p.groups.bit_length()):
                middle = (group + last + 1) // 2
                if first_slot(offsets, middle) <= slot:
                    group = middle
                else:
                    last = middle - 1
            row = start(offsets, group) + (slot - first_slot(offsets, group)) * c.block_m
            end = T.if_then_else(group < p.groups, offsets[T.min(group, p.groups - 1)], m)
            column = column_tile * c.block_n
            steps = T.if_then_else(T.And(group < p.groups, row < end), T.ceildiv(p.k, c.block_k), 0)
            T.clear(acc)
            for step in T.Pipelined(steps, num_stages=c.stages):
                T.copy(a[row, step * c.block_k], a_shared)
                if transposed:
                    T.copy(b[group, column : column + c.block_n, step * c.block_k : (step + 1) * c.block_k], b_shared)
                else:
                    T.copy(b[group, step * c.block_k : (step + 1) * c.block_k, column : column + c.block_n], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
            T.copy(acc, out_shared)
            if row + c.block_m <= end:
                T.copy(out_shared, out[row, column])
            else:
                for i, j in T.Parallel(c.block_m, c.block_n):
                    if row + i < end:
                        out[row + i, column + j] = out_shared[i, j]

    return grouped_matmul
