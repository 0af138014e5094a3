"""Persistent, warp-specialized GEMM for large M on Hopper. One tile's epilogue overlaps the next tile's loads.

TileLang's own warp specialization splits the warps of one tile's loop, so that producers wait for the end of the tile.
Here the producer loops over all slices of all tiles, and waits for nothing but free stages. Each consumer warpgroup
stores its own rows, part by part, each under way while the next is computed: none waits for another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, BufferRegion, PrimExpr, PrimFunc

from tkc.kernels.hopper.registers import LOADING_REGISTERS, SPLITTING_REGISTERS, WARPGROUP
from tkc.kernels.hopper.ring import Ring, ring
from tkc.kernels.hopper.store import Staging, stage, staging
from tkc.kernels.hopper.tiles import Cyclic, OutputTiles
from tkc.kernels.hopper.warpgroups import Roles, consume, release_registers
from tkc.kernels.hopper.windows import Windows, load_windows
from tkc.kernels.matmul import shared_depth, tf32
from tkc.kernels.matmul.columns import first_column, holds, tiles_across
from tkc.kernels.matmul.epilogue import FAST_ACTIVATION, activated, column_scale, normalized
from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters
from tkc.kernels.matmul.tiling import ITEM_BYTES, STORES_IN_FLIGHT, Tiling


@dataclass(frozen=True)
class Ending:
    """What a convolution may end in beside a matrix product's epilogue: ``batch_norm`` of the product and its bias, and
    an activation of the sum with the residual, if the ``activation_is_last``."""

    batch_norm: BatchNorm | None = None
    activation_is_last: bool = False


@dataclass(frozen=True)
class _Shape:
    """What the parameters ``p`` and the configuration ``c`` make of a kernel, whose tensors may be ``batched``.

    With ``windows``, the left operand is an image, and its rows are what a convolution slides over it.
    """

    p: MatmulParameters
    c: Tiling
    batched: bool
    windows: Windows | None
    ending: Ending

    @property
    def float32(self) -> bool:
        """Whether operands are split into TF32 parts, by a warpgroup of its own."""
        return self.p.dtype == "float32"

    @property
    def transposed(self) -> bool:
        """Whether the right operand is ``[n, k]``."""
        return self.p.weight_layout == "nk"

    @property
    def b_tile(self) -> tuple[int, int]:
        """The shape of a slice of the right operand."""
        return (self.c.block_n, self.c.block_k) if self.transposed else (self.c.block_k, self.c.block_n)

    @property
    def steps(self) -> int:
        """Slices of K."""
        return -(-self.p.k // self.c.block_k)

    @property
    def residual_columns(self) -> tuple[int, ...]:
        """Where in a tile each slice of the residual begins. They follow the tile's slices of K in the ring."""
        return tuple(range(0, self.c.block_n, self.c.block_k)) if self.p.residual else ()

    @property
    def width(self) -> int:
        """Columns that are stored at a time."""
        return self.c.stored_columns(ITEM_BYTES[self.p.stored_dtype])

    @property
    def rows(self) -> int:
        """Rows of a tile that one consumer warpgroup multiplies."""
        return self.c.warpgroup_rows

    @property
    def row_parts(self) -> int:
        """How many warpgroups' rows a tile has."""
        return self.c.block_m // self.rows

    @property
    def loaded_columns(self) -> int:
        """Columns of the bias, and of other vectors, that a warpgroup loads: as many by each thread."""
        return -(-self.c.block_n // WARPGROUP) * WARPGROUP

    @property
    def roles(self) -> Roles:
        """A producer, for float32 a warpgroup that splits the right operand, and the consumers."""
        kept = (LOADING_REGISTERS, SPLITTING_REGISTERS) if self.float32 else (LOADING_REGISTERS,)
        consumers = self.c.threads // WARPGROUP
        return Roles(consumers, kept, shifts=consumers > 1)

    def slice_number(self, turn: PrimExpr, step: PrimExpr) -> PrimExpr:
        """The number, in the ring, of a slice of the block's ``turn``-th tile."""
        return turn * (self.steps + len(self.residual_columns)) + step

    def residual_slices(self, part: int) -> list[tuple[int, int]]:
        """The slices of the residual that begin in a ``part`` of the tile: their numbers and first columns."""
        return [(nth, left) for nth, left in enumerate(self.residual_columns) if left // self.width == part]

    def region(
        self, matrices: Buffer, entry: PrimExpr, corner: tuple[PrimExpr, PrimExpr], shape: tuple[int, int]
    ) -> BufferRegion:
        """A region of that ``shape`` of one entry's matrix, from its ``corner`` on."""
        batch = (entry,) if self.batched else ()
        return matrices[(*batch, *(slice(first, first + size) for first, size in zip(corner, shape, strict=True)))]


@dataclass(frozen=True)
class _Kernel:
    """One block: its tensors in global memory, the tiles that it computes, and its shared memory.

    The ring's stages are ``a_shared [stages, block_m, block_k]``, for slices of a residual, too, and ``b_shared``.
    ``tile_bias [row parts, loaded columns]`` holds the bias of each warpgroup's tile, ``tile_norm [3, row parts, loaded
    columns]`` the mean, the scale and the shift of a batch normalization. Operands of float32 are ``split``, and
    accumulators of intra-CTA split-K go through an ``exchange``.
    """

    shape: _Shape
    tensors: SimpleNamespace
    tiles: OutputTiles
    schedule: Cyclic
    turns: PrimExpr
    ring: Ring
    a_shared: Buffer
    b_shared: Buffer
    staging: Staging
    tile_bias: Buffer
    tile_norm: Buffer
    split: tf32.Slices | None
    exchange: shared_depth.Exchange | None

    def begin(self, turn: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The entry of the batch of the block's ``turn``-th tile, and the tile's first row and column."""
        p, c = self.shape.p, self.shape.c
        entry, row_tile, column_tile = self.tiles.place(self.schedule.tile(turn))
        return entry, row_tile * c.block_m, first_column(p, c.block_n, column_tile)


@dataclass(frozen=True)
class _Rows:
    """A consumer warpgroup's ``rows`` of each tile, the ``part``-th of them, and its registers for them."""

    part: int
    rows: slice
    acc: Buffer
    bias: Buffer
    norm: tuple[Buffer, ...]


def define(
    p: MatmulParameters,
    c: Tiling,
    types: SimpleNamespace,
    windows: Windows | None = None,
    ending: Ending = Ending(),  # it cannot change
) -> PrimFunc:
    """The kernel over the same tensors as the one with a block for each tile: those of ``types``, ``None`` for others.

    Where these have a batch axis in front, tiles of one entry follow those of another. Where ``a`` is an image, its
    ``windows`` are the rows that are multiplied. ``ending`` says what else is computed of the sums.
    """
    shape = _Shape(p, c, len(types.out.shape) == 3, windows, ending)
    # Warpgroups that share the depth wait for their own slices only. Loads may land in any order, and a barrier whose
    # last phase has not ended yet looks as if the next one had. Of float32, the warpgroup that splits waits for all.
    assert shape.float32 or c.shares == 1

    @T.prim_func
    def matmul(
        a: types.a,
        b: types.b,
        bias: types.bias,
        mean: types.mean,
        variance: types.variance,
        scale: types.scale,
        shift: types.shift,
        residual: types.residual,
        out: types.out,
        out_1: types.out_1,
        out_2: types.out_2,
        out_3: types.out_3,
    ) -> None:
        if p.activation is not None and not shape.float32:
            T.annotate_compile_flags(FAST_ACTIVATION)
        m = out.shape[-2]
        tiles = OutputTiles(
            T.ceildiv(m, c.block_m), tiles_across(p, c.block_n), out.shape[0] if shape.batched else None
        )
        with T.Kernel(c.blocks, threads=shape.roles.threads) as block:
            a_shared = T.alloc_shared((c.stages, c.block_m, c.block_k), p.dtype)
            b_shared = T.alloc_shared((c.stages, *shape.b_tile), p.dtype)
            staged = staging(STORES_IN_FLIGHT, c.block_m, shape.width, p.stored_dtype)
            tile_bias = T.alloc_shared((shape.row_parts, shape.loaded_columns), p.dtype)
            tile_norm = T.alloc_shared((3, shape.row_parts, shape.loaded_columns), "float32")
            schedule = Cyclic(c.blocks, block)
            turns = schedule.turns(tiles.number)
            kernel = _Kernel(
                shape,
                SimpleNamespace(
                    a=a,
                    b=b,
                    bias=bias,
                    norm=(mean, variance, scale, shift),
                    residual=residual,
                    outputs=(out, out_1, out_2, out_3),
                ),
                tiles,
                schedule,
                turns,
                ring(c.stages, shape.row_parts),
                a_shared,
                b_shared,
                Staging(staged),
                tile_bias,
                tile_norm,
                tf32.slices(a_shared, b_shared, c, p.weight_layout) if shape.float32 else None,
                shared_depth.exchange(c),
            )
            thread = T.get_thread_binding()
            if thread < WARPGROUP:
                _load(kernel)
            elif shape.float32 and thread < 2 * WARPGROUP:
                _split(kernel, thread - WARPGROUP)
            else:
                consume(shape.roles, thread, _compute, kernel)

    return matmul


@T.macro
def _load(k: _Kernel) -> None:
    """Producer: every tile's slices of both operands, then those of its residual."""
    s, c, tensors = k.shape, k.shape.c, k.tensors
    entry = T.alloc_var("int32")
    row = T.alloc_var("int32")
    column = T.alloc_var("int32")
    release_registers(s.roles, 0)
    image = T.alloc_var("int32")
    top = T.alloc_var("int32")
    left = T.alloc_var("int32")
    for turn in T.serial(k.turns):
        entry, row, column = k.begin(turn)
        if s.windows is not None:
            image, top, left = s.windows.first_pixel(tensors.a, row)
        for step in T.serial(s.steps):
            at, parity = k.ring.slot(s.slice_number(turn, step))
            depth = step * c.block_k
            k.ring.wait_empty(at, parity)
            if s.windows is None:
                T.tma_copy(
                    s.region(tensors.a, entry, (row, depth), (c.block_m, c.block_k)),
                    k.a_shared[at, :, :],
                    barrier=k.ring.full[at],
                )
            else:
                load_windows(s.windows, tensors.a, k.a_shared, at, k.ring.full, (image, top, left), step)
            T.tma_copy(
                s.region(tensors.b, entry, (column, depth) if s.transposed else (depth, column), s.b_tile),
                k.b_shared[at, :, :],
                barrier=k.ring.full[at],
            )
            k.ring.arrive_full(at)
        for nth, left in enumerate(s.residual_columns):
            at, parity = k.ring.slot(s.slice_number(turn, s.steps + nth))
            k.ring.wait_empty(at, parity)
            T.tma_copy(
                s.region(tensors.residual, entry, (row, column + left), (c.block_m, c.block_k)),
                k.a_shared[at, :, :],
                barrier=k.ring.full[at],
            )
            k.ring.arrive_full(at)


@T.macro
def _split(k: _Kernel, thread: PrimExpr) -> None:
    """The warpgroup that splits float32 slices of the right operand into TF32 parts."""
    s = k.shape
    release_registers(s.roles, 1)
    for turn in T.serial(k.turns):
        for step in T.serial(s.steps):
            at, parity = k.ring.slot(s.slice_number(turn, step))
            k.ring.wait_full(at, parity)
            tf32.take_apart(k.split, at, thread)
            T.mbarrier_arrive(k.split.split[at])
        for nth in range(len(s.residual_columns)):  # the residual is not split
            at, parity = k.ring.slot(s.slice_number(turn, s.steps + nth))
            k.ring.wait_full(at, parity)
            T.mbarrier_arrive(k.split.split[at])


@T.macro
def _compute(k: _Kernel, warpgroup: int) -> None:
    """Consumer: multiply one warpgroup's rows of all tiles, its share of K, and store what it has accumulated."""
    s, c, p = k.shape, k.shape.c, k.shape.p
    share, row_part = divmod(warpgroup, s.row_parts)
    top = row_part * s.rows
    acc = T.alloc_fragment((s.rows, c.block_n), "float32")
    parts = tf32.registers(s.rows, c) if s.float32 else None
    own_bias = T.alloc_fragment((s.loaded_columns,), p.dtype)
    norm = s.ending.batch_norm
    own_norm = _vectors(s) if norm is not None else ()
    own = _Rows(row_part, slice(top, top + s.rows), acc, own_bias, own_norm)
    entry = T.alloc_var("int32")
    row = T.alloc_var("int32")
    column = T.alloc_var("int32")
    for turn in T.serial(k.turns):
        begin = k.begin(turn)
        entry = begin[0]
        row = begin[1] + top
        column = begin[2]
        if p.bias and share == 0:  # it arrives while the tensor cores work
            T.copy(k.tensors.bias[column : column + s.loaded_columns], own_bias)
        for vector, own_vector in zip(k.tensors.norm, own_norm, strict=False):
            T.copy(vector[column : column + s.loaded_columns], own_vector)
        T.clear(acc)
        for nth in T.serial(-(-max(s.steps - share, 0) // c.shares)):
            at, parity = k.ring.slot(s.slice_number(turn, nth * c.shares + share))
            k.ring.wait_full(at, parity)
            _multiply(k, own, parts, at, parity)
        if c.shares > 1:
            shared_depth.add_up(share, row_part, own.rows, turn, acc, k.exchange)
        if s.float32 and share == 0:
            tf32.add_again(acc, _product(k, entry, row, column), p.k)
        if share == 0:
            _finish(k, own, turn, entry, row, column)
    T.tma_store_wait(0)


def _product(
    k: _Kernel, entry: PrimExpr, row: PrimExpr, column: PrimExpr
) -> Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]:
    """The product, from global memory, of a row, a column and a depth of the tile that begins there."""
    s, tensors = k.shape, k.tensors
    batch = (entry,) if s.batched else ()

    def product(i: PrimExpr, j: PrimExpr, depth: PrimExpr) -> PrimExpr:
        place = (column + j, depth) if s.transposed else (depth, column + j)
        return tensors.a[(*batch, row + i, depth)] * tensors.b[(*batch, *place)]

    return product


@T.macro
def _multiply(k: _Kernel, own: _Rows, parts: tf32.Registers | None, at: PrimExpr, parity: PrimExpr) -> None:
    """Accumulate the product of the slice in the stage ``at``, and give the stage back."""
    s = k.shape
    if s.float32:
        tf32.multiply(k.split, at, parity, own.rows, parts)
        k.ring.arrive_empty(at)
        # The tensor cores round their sums toward zero; these are rounded to nearest.
        for i, j in T.Parallel(s.rows, s.c.block_n):
            own.acc[i, j] += parts.products[i, j]
    else:
        T.gemm(
            k.a_shared[at, own.rows, :],
            k.b_shared[at, :, :],
            own.acc,
            transpose_B=s.transposed,
            policy=T.GemmWarpPolicy.FullRow,
        )
        k.ring.arrive_empty(at)


@T.macro
def _finish(k: _Kernel, own: _Rows, turn: PrimExpr, entry: PrimExpr, row: PrimExpr, column: PrimExpr) -> None:
    """Epilogue of a warpgroup's rows, which begin at ``row`` and ``column``, and their store."""
    s, p, c = k.shape, k.shape.p, k.shape.c
    if p.bias:
        # Only the thread that stores waits; what the others do next is ordered after it by the barrier that follows
        # this copy. TileLang puts none between the wait for the first part and its threads' writes.
        k.staging.wait()
        T.copy(own.bias, k.tile_bias[own.part, :])
    if s.ending.batch_norm is not None:
        k.staging.wait()
        _share_norm(k, own)
    for part, first in enumerate(range(0, c.block_n, s.width)):
        # What this part is the first to need: parts are stored while later slices are still to come.
        for nth, left in s.residual_slices(part):
            _add_residual(k, own, turn, nth, left)
        number = turn * (c.block_n // s.width) + part
        k.staging.wait()
        if not p.residual:
            _activate(k, own, first, s.width)
        stage(k.staging, number, own.rows, lambda i, j, first=first: own.acc[i, first + j])  # type: ignore[misc]  # has a default
        for i, (begin, end) in enumerate(p.ranges):
            if holds(p, column, begin, end):
                T.tma_copy(
                    k.staging.rows(number, own.rows),
                    s.region(k.tensors.outputs[i], entry, (row, column + first - begin), (s.rows, s.width)),
                )


def _vectors(s: _Shape) -> tuple[Buffer, ...]:
    """A thread's registers for what it loads of a batch normalization's vectors."""
    norm = s.ending.batch_norm
    return () if norm is None else tuple(T.alloc_fragment((s.loaded_columns,), norm.dtype) for _ in norm.VECTORS)


@T.macro
def _share_norm(k: _Kernel, own: _Rows) -> None:
    """Write what a batch normalization does to each column where all threads of the warpgroup read it."""
    mean, variance, scale, shift = own.norm
    for j in T.Parallel(k.shape.loaded_columns):
        k.tile_norm[0, own.part, j] = T.cast(mean[j], "float32")
        k.tile_norm[1, own.part, j] = column_scale(
            k.shape.ending.batch_norm, T.cast(variance[j], "float32"), T.cast(scale[j], "float32")
        )
        k.tile_norm[2, own.part, j] = T.cast(shift[j], "float32")


@T.macro
def _add_residual(k: _Kernel, own: _Rows, turn: PrimExpr, nth: int, left: int) -> None:
    """Finish a tile's columns from ``left`` on, to which the ``nth`` slice of the residual is added, and add it."""
    s, c = k.shape, k.shape.c
    columns = min(c.block_k, c.block_n - left)
    _activate(k, own, left, columns)
    at, parity = k.ring.slot(s.slice_number(turn, s.steps + nth))
    k.ring.wait_full(at, parity)
    for i, j in T.Parallel(s.rows, columns):
        own.acc[i, left + j] += T.cast(k.a_shared[at, own.rows.start + i, j], "float32")
        if s.ending.activation_is_last:
            own.acc[i, left + j] = activated(own.acc[i, left + j], s.p.activation)
    k.ring.arrive_empty(at)


@T.macro
def _activate(k: _Kernel, own: _Rows, first: int, columns: int) -> None:
    """Bias, normalization and activation of some columns of a tile, from its ``first`` on."""
    p, norm = k.shape.p, k.shape.ending.batch_norm
    activation = None if k.shape.ending.activation_is_last else p.activation
    if p.bias or norm is not None or activation:
        for i, j in T.Parallel(k.shape.rows, columns):
            x = own.acc[i, first + j]
            if p.bias:
                x = x + T.cast(k.tile_bias[own.part, first + j], "float32")
            if norm is not None:
                x = normalized(x, *(k.tile_norm[nth, own.part, first + j] for nth in range(3)))
            own.acc[i, first + j] = activated(x, activation, exact=k.shape.float32)
