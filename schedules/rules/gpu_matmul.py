"""DLight's matrix products on the GPU, without tensor cores, in tiles that suit their size."""

from __future__ import annotations

from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from tkc.kernels.devices import device
from tkc.schedules.blocks import is_reduction, static

# Each thread's 8 x 8 sums are four blocks of 4 x 4, as far apart as the other threads' reach: neighbours read
# neighbours in shared memory. On an H200, in float32, a product of 4,096 x 4,096 x 4,096 takes 0.68 of the time of
# DLight's own tiles (32 x 64), 512 of 512 x 512 x 64 take 0.75; with the smaller tiles 0.87 and 0.84.
_TILES = tuple(
    dlight.gpu.Matmul.Config(
        block_size_x=threads,
        block_size_y=threads,
        vthread_x=2,
        vthread_y=2,
        micro_size_x=4,
        micro_size_y=4,
        micro_size_k=depth,
        vector_size=4,
        unroll=1024,
        storage_align=True,
    )
    for threads, depth in ((16, 32), (8, 16))
)


class SizedMatmul(dlight.gpu.Matmul):
    """DLight's rule for matrix products and batches of them, in the largest of its tiles and ours of which there are
    enough."""

    def apply(self, func: tirx.PrimFunc, target: Target, has_dynamic: bool) -> s_tir.Schedule | None:
        """``func`` scheduled; ``None`` for any other function."""
        sizes = _output_sizes(func)
        fitting = [] if sizes is None else [tile for tile in _TILES if _fits(tile, sizes, target)]
        rule = _Configured(fitting[0]) if fitting else dlight.gpu.Matmul()
        return rule.apply(func, target, has_dynamic)


class _Configured(dlight.gpu.Matmul):
    """DLight's rule with one configuration."""

    def __init__(self, config: dlight.gpu.Matmul.Config) -> None:
        super().__init__()
        self._config = config

    def get_configs(self, target: Target) -> dlight.gpu.Matmul.Config:
        """The configuration."""
        return self._config


def _output_sizes(func: tirx.PrimFunc) -> list[int] | None:
    """The sizes of what the function's reduction writes; ``None`` where there is no such, or calls alone know them."""
    sch = s_tir.Schedule(func)
    infos = normalize_prim_func(sch) or []
    written = [sch.get(info.block_rv).writes[0].buffer for info in infos if is_reduction(sch.get(info.block_rv))]
    shape = written[0].shape if written else []
    sizes = [known for size in shape if (known := static(size)) is not None]
    return sizes if len(sizes) == len(shape) >= 2 else None


def _fits(tile: dlight.gpu.Matmul.Config, sizes: list[int], target: Target) -> bool:
    """Whether no tile is larger than a matrix, and there is one for each multiprocessor."""
    *batch, rows, columns = sizes
    height, width = (
        tile.vthread_x * tile.block_size_x * tile.micro_size_x,
        tile.vthread_y * tile.block_size_y * tile.micro_size_y,
    )
    tiles = prod(batch) * -(-rows // height) * -(-columns // width)
    return rows >= height and columns >= width and tiles >= device(str(target.attrs["arch"])).multiprocessors
