"""Persistent, warp-specialized GEMM of block-scaled FP8 operands for large M on Hopper.

As :mod:`tkc.kernels.matmul.persistent`. A warpgroup has the products of two slices under way, and scales and
accumulates one while the tensor cores work on the other.
"""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.hopper.registers import WARPGROUP
from tkc.kernels.hopper.ring import Ring, ring
from tkc.kernels.hopper.store import Staging, stage, staging
from tkc.kernels.hopper.tiles import Cyclic, OutputTiles
from tkc.kernels.hopper.warpgroups import Roles, consume, release_registers
from tkc.kernels.instruction_order import stay_before_wait
from tkc.kernels.matmul.tiling import STORES_IN_FLIGHT
from tkc.kernels.scaled_matmul.parameters import OPERAND_DTYPE, ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledMatmul, ScaledTiling
from tkc.kernels.tensor_types import tensor_types

_UNDER_WAY = 2  # slices that a warpgroup multiplies at a time


@dataclass(frozen=True)
class _Tensors:
    """The kernel's tensors, in global memory."""

    a: Buffer
    b: Buffer
    a_scale: Buffer
    b_scale: Buffer
    out: Buffer


@dataclass(frozen=True)
class _Kernel:
    """One block: its tensors, the tiles that it computes, and its shared memory.

    The ring's stages are ``a_shared [stages, block_m, block_k]`` and ``b_shared [stages, block_n, block_k]``. K has
    ``groups`` slices, each of which has its own scales.
    """

    p: ScaledMatmulParameters
    c: ScaledTiling
    tensors: _Tensors
    tiles: OutputTiles
    schedule: Cyclic
    turns: PrimExpr
    roles: Roles
    ring: Ring
    a_shared: Buffer
    b_shared: Buffer
    staging: Staging

    @property
    def groups(self) -> int:
        """Slices of K."""
        return -(-self.p.k // self.c.block_k)

    @property
    def rows(self) -> int:
        """Rows of a tile that one consumer warpgroup multiplies."""
        return self.c.block_m // self.roles.consumers

    @property
    def part_columns(self) -> int:
        """Columns of a tile that lie in one block of the weight, for each of which there is one scale."""
        return math.gcd(self.c.block_n, QUANTIZATION_BLOCK)

    def begin(self, turn: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The first row and column of the block's ``turn``-th tile."""
        _, row_tile, column_tile = self.tiles.place(self.schedule.tile(turn))
        return row_tile * self.c.block_m, column_tile * self.c.block_n


@dataclass(frozen=True)
class _Rows:
    """A consumer warpgroup's ``rows`` of the tiles, and its registers: products of slices, their sum, and scales."""

    rows: slice
    products: tuple[Buffer, ...]
    total: Buffer
    scale: Buffer


def define(p: ScaledMatmulParameters, c: ScaledTiling) -> PrimFunc:
    """The kernel over ``a``, ``b``, ``a_scale``, ``b_scale`` and ``out``."""
    tensors = tensor_types(ScaledMatmul(), p)
    roles = Roles(c.threads // WARPGROUP)

    @T.prim_func
    def scaled_matmul(
        a: tensors.a, b: tensors.b, a_scale: tensors.a_scale, b_scale: tensors.b_scale, out: tensors.out
    ) -> None:
        m = a.shape[0]
        with T.Kernel(c.blocks, threads=roles.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), OPERAND_DTYPE)
            b_shared = T.alloc_shared((c.stages, c.block_n, c.block_k), OPERAND_DTYPE)
            staged = staging(STORES_IN_FLIGHT, c.block_m, c.stored_columns(), p.out_dtype)
            tiles = OutputTiles(T.ceildiv(m, c.block_m), -(-p.n // c.block_n))
            schedule = Cyclic(c.blocks, block)
            turns = schedule.turns(tiles.number)
            kernel = _Kernel(
                p,
                c,
                _Tensors(a, b, a_scale, b_scale, out),
                tiles,
                schedule,
                turns,
                roles,
                ring(c.stages, roles.consumers),
                a_shared,
                b_shared,
                Staging(staged),
            )
            thread = T.get_thread_binding()
            if thread < WARPGROUP:
                _load(kernel)
            else:
                consume(roles, thread, _compute, kernel)

    return scaled_matmul


@T.macro
def _load(k: _Kernel) -> None:
    """Producer: every tile's slices of both operands."""
    c = k.c
    row = T.alloc_var("int32")
    column = T.alloc_var("int32")
    release_registers(k.roles, 0)
    for turn in T.serial(k.turns):
        row, column = k.begin(turn)
        for group in T.serial(k.groups):
            at, parity = k.ring.slot(turn * k.groups + group)
            depth = group * c.block_k
            k.ring.wait_empty(at, parity)
            T.tma_copy(
                k.tensors.a[row : row + c.block_m, depth : depth + c.block_k],
                k.a_shared[at, :, :],
                barrier=k.ring.full[at],
            )
            T.tma_copy(
                k.tensors.b[column : column + c.block_n, depth : depth + c.block_k],
                k.b_shared[at, :, :],
                barrier=k.ring.full[at],
            )
            k.ring.arrive_full(at)


@T.macro
def _compute(k: _Kernel, warpgroup: int) -> None:
    """Consumer: multiply and store one warpgroup's rows of all tiles."""
    c = k.c
    top, parts = warpgroup * k.rows, c.block_n // k.staging.width
    products = tuple(T.alloc_fragment((k.rows, c.block_n), "float32") for _ in range(_UNDER_WAY))
    total = T.alloc_fragment((k.rows, c.block_n), "float32")
    scale = T.alloc_fragment((k.rows, c.block_n // k.part_columns), "float32")
    own, left = _Rows(slice(top, top + k.rows), products, total, scale), k.groups % _UNDER_WAY
    row = T.alloc_var("int32")
    column = T.alloc_var("int32")
    for turn in T.serial(k.turns):
        begin = k.begin(turn)
        row = begin[0] + top
        column = begin[1]
        T.clear(total)
        for several in T.serial(k.groups // _UNDER_WAY):
            _accumulate(k, own, _UNDER_WAY, turn, several * _UNDER_WAY, row, column)
        if left:
            _accumulate(k, own, left, turn, k.groups - left, row, column)
        for part in T.unroll(parts):
            first, number = part * k.staging.width, turn * parts + part
            k.staging.wait()
            stage(k.staging, number, own.rows, lambda i, j, first=first: total[i, first + j])  # type: ignore[misc]  # has a default
            T.tma_copy(
                k.staging.rows(number, own.rows),
                k.tensors.out[row : row + k.rows, column + first : column + first + k.staging.width],
            )
    T.tma_store_wait(0)


@T.macro
def _accumulate(
    k: _Kernel, own: _Rows, slices: int, turn: PrimExpr, first: PrimExpr, row: PrimExpr, column: PrimExpr
) -> None:
    """Add the products of neighbouring slices, from the ``first`` on, to the total, each times its scales.

    The tensor cores' accumulators keep fewer bits than float32, so that each slice's goes into another one, scaled.
    """
    begin = turn * k.groups + first
    for nth, product in enumerate(own.products[:slices]):
        at, parity = k.ring.slot(begin + nth)
        k.ring.wait_full(at, parity)
        T.wgmma_gemm(
            k.a_shared[at, own.rows, :],
            k.b_shared[at, :, :],
            product,
            transpose_B=True,
            clear_accum=True,
            policy=T.GemmWarpPolicy.FullRow,
        )
    for nth, product in enumerate(own.products[:slices]):
        for i, part in T.Parallel(*own.scale.shape):
            block = (column + part * k.part_columns) // QUANTIZATION_BLOCK
            own.scale[i, part] = k.tensors.a_scale[row + i, first + nth] * k.tensors.b_scale[block, first + nth]
        stay_before_wait(row)
        T.wait_wgmma(slices - 1 - nth)
        k.ring.arrive_empty(k.ring.stage(begin + nth))
        for i, j in T.Parallel(*own.total.shape):
            own.total[i, j] += product[i, j] * own.scale[i, j // k.part_columns]
