"""Cluster split-K GEMM for small M on Hopper. Partial sums are reduced through distributed shared memory.

With few rows there are too few tiles to keep the device reading weights; with 128 there are enough, but narrow ones,
for each of which all rows are read, where blocks that share a tile twice as wide read half of each row. Each block of a
cluster sums over its part of the depth, sends every peer the rows of the tile that are the peer's to finish (through
distributed shared memory), and adds what it was sent to its own, in the order of the parts.
"""

import tilelang.language as T
from tvm.tirx import PrimFunc

from tkc.kernels.flat_grid import coordinates
from tkc.kernels.matmul.columns import first_column, tiles_across
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, Epilogue, load_ahead, store
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.spec import OPTIONAL_TENSORS, Matmul
from tkc.kernels.matmul.tiling import Tiling, shifts_registers
from tkc.kernels.overlap import admit_next_kernel
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(p: MatmulParameters, c: Tiling, target: Target) -> PrimFunc:
    """The kernel over the same tensors as the one that is not split."""
    types = tensor_types(Matmul(), p, OPTIONAL_TENSORS)
    transposed = p.weight_layout == "nk"
    b_tile = (c.block_n, c.block_k) if transposed else (c.block_k, c.block_n)
    # Steps past the end of k, of the last block, add zeros: TMA reads these where there is nothing.
    steps = T.ceildiv(T.ceildiv(p.k, c.block_k), c.splits)
    rows = c.finished_rows
    column_tiles = tiles_across(p, c.block_n)

    @T.prim_func
    def matmul(
        a: types.a,
        b: types.b,
        bias: types.bias,
        residual: types.residual,
        out: types.out,
        out_1: types.out_1,
        out_2: types.out_2,
        out_3: types.out_3,
    ) -> None:
        if p.activation is not None:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = a.shape[0]
        epilogue = Epilogue(p, bias, residual, (out, out_1, out_2, out_3))
        blocks = c.splits * column_tiles * T.ceildiv(m, c.block_m)
        with T.Kernel(blocks, threads=c.threads, cluster_dims=(c.splits, 1, 1)) as block:
            part, column_tile, row_tile = coordinates(block, c.splits, column_tiles)
            if not shifts_registers(c, target):
                T.no_set_max_nreg()
            a_shared = T.alloc_shared((c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared(b_tile, p.dtype)
            partial = T.alloc_shared((c.block_m, c.block_n), "float32")
            received = T.alloc_shared((c.splits, rows, c.block_n), "float32")
            all_received = T.alloc_cluster_barrier([c.splits - 1])
            out_shared = T.alloc_shared((rows, c.block_n), p.stored_dtype)
            acc = T.alloc_fragment((c.block_m, c.block_n), "float32")
            total = T.alloc_fragment((rows, c.block_n), "float32")
            row, column = row_tile * c.block_m, first_column(p, c.block_n, column_tile)
            own_row = row + part * rows
            loaded = load_ahead(epilogue, c, own_row, column)
            T.clear(acc)
            for step in T.Pipelined(steps, num_stages=c.stages):
                depth = (part * steps + step) * c.block_k
                T.copy(a[row, depth], a_shared)
                if transposed:
                    T.copy(b[column, depth], b_shared)
                else:
                    T.copy(b[depth, column], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=transposed, policy=T.GemmWarpPolicy.FullRow)
            admit_next_kernel(target)
            T.copy(acc, partial)
            # Bulk copies are to read what threads wrote. What is received takes the place of operands, so every peer
            # must be done with its own.
            T.fence_proxy_async()
            T.cluster_sync()
            for distance in T.serial(1, c.splits):
                peer = (part + distance) % c.splits
                T.copy_cluster(
                    partial[peer * rows : (peer + 1) * rows, 0 : c.block_n],
                    received[part, 0:rows, 0 : c.block_n],
                    dst_block=peer,
                    remote_barrier=all_received[0],
                )
            T.mbarrier_wait_parity(all_received[0], 0)
            T.sync_warp()  # the barrier counts warps, and the thread that sent is behind the others of its own
            # The output takes the place of what was sent, and a block that has ended can send nothing.
            T.cluster_sync()
            T.clear(total)
            for source in T.serial(c.splits):
                if source == part:
                    for i, j in T.Parallel(rows, c.block_n):
                        total[i, j] += partial[part * rows + i, j]
                else:
                    for i, j in T.Parallel(rows, c.block_n):
                        total[i, j] += received[source, i, j]
            store(epilogue, loaded, total, out_shared, own_row, column)

    return matmul
