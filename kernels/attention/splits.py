"""Results of attention whose keys are split over thread blocks: how a block stores its own, how all become one."""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr

from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.softmax import exponent, finite, mean_value, sink_weight
from tkc.kernels.flat_grid import coordinates

_MOST_THREADS = 128


@dataclass(frozen=True)
class Results:
    """The output, and what each of several splits leaves to combine (see ``partial_results``)."""

    splits: int
    out: Buffer
    partial_out: Buffer
    partial_max: Buffer
    partial_sum: Buffer


@dataclass(frozen=True)
class HeadTile:
    """What a thread block computes: heads from ``first_head`` on of one sequence, over one ``split`` of its keys."""

    batch: PrimExpr
    first_head: PrimExpr
    split: PrimExpr


@dataclass(frozen=True)
class Sums:
    """``acc [heads, columns]``, weighted by what adds up to ``total [heads]``, relative to ``maximum [heads]``."""

    acc: Buffer
    maximum: Buffer
    total: Buffer


@T.macro
def store_heads(p: AttentionParameters, results: Results, tile: HeadTile, first_column: int, sums: Sums) -> None:
    """Store columns of a tile of heads, from the first on, of a whole ``out [batch, heads, columns]`` or of a split."""
    batch, first_head, split = tile.batch, tile.first_head, tile.split
    acc, maximum, total = sums.acc, sums.maximum, sums.total
    rows, columns = acc.shape
    if results.splits == 1:
        for i, j in T.Parallel(rows, columns):
            if first_head + i < p.num_heads:
                results.out[batch, first_head + i, first_column + j] = mean_value(acc[i, j], total[i])
    else:
        for i, j in T.Parallel(rows, columns):
            if first_head + i < p.num_heads:
                results.partial_out[batch, first_head + i, split, first_column + j] = acc[i, j]
        if first_column == 0:
            for i in T.Parallel(rows):
                if first_head + i < p.num_heads:
                    results.partial_max[batch, first_head + i, split] = maximum[i]
                    results.partial_sum[batch, first_head + i, split] = total[i]


@T.macro
def combine_splits(
    p: AttentionParameters,
    results: Results,
    row: Callable[[PrimExpr, PrimExpr], tuple[PrimExpr, ...]],
    used: PrimExpr | int,
    sinks: Buffer | None = None,
) -> None:
    """Launch what sums the results of the first ``used`` splits by their weights, into ``out`` at ``row(batch, head)``.

    ``sinks [heads]`` count here, once for all splits.
    A thread reads all of its own at once: the loop is unrolled, and loads do not wait for sums.
    """
    splits, columns = results.splits, p.value_head_size
    with T.Kernel(p.num_heads * results.partial_out.shape[0], threads=_threads(columns)) as block:
        head, batch = coordinates(block, p.num_heads)
        acc = T.alloc_fragment([columns], "float32")
        maxima = T.alloc_shared([splits], "float32")
        sums = T.alloc_shared([splits], "float32")
        factors = T.alloc_shared([splits], "float32")
        number = T.alloc_var("int32", used)
        overall = T.alloc_var("float32", -T.infinity("float32"))
        total = T.alloc_var("float32", 0.0)
        for split in T.Parallel(splits):
            maxima[split] = T.if_then_else(
                split < number, results.partial_max[batch, head, split], -T.infinity("float32")
            )
            sums[split] = T.if_then_else(split < number, results.partial_sum[batch, head, split], 0.0)
        for split in T.serial(splits):
            overall = T.max(overall, maxima[split])
        for split in T.Parallel(splits):
            factors[split] = T.exp2(exponent(p, maxima[split], finite(overall)))
        for split in T.serial(splits):
            total += factors[split] * sums[split]
        if p.sinks:
            total += sink_weight(p, T.cast(sinks[head], "float32"), overall)
        T.clear(acc)
        for split in T.unroll(splits):
            for j in T.Parallel(columns):
                acc[j] += T.if_then_else(
                    split < number, factors[split] * results.partial_out[batch, head, split, j], 0.0
                )
        for j in T.Parallel(columns):
            results.out[(*row(batch, head), j)] = mean_value(acc[j], total)


def _threads(columns: int) -> int:
    """So many that they share the columns evenly, or more than there are columns."""
    threads = _MOST_THREADS
    while columns > threads and columns % threads:
        threads //= 2
    return threads
