"""The function that scatters elements, or rows of them, on a GPU: in the order of the indices, so that bits repeat.

Threads share the places of the result, and each reads all indices for those that are its own. No two write to one
place, and nothing is atomic: a sum has the order that it has on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tkc.kernels.devices import MULTIPROCESSORS, WARP
from tkc.passes.graph.bindings import static
from tkc.passes.graph.layout import product
from tkc.passes.lowering.gpu_scatter import COLUMNS, THREADS, called, copied, cpp, launched, row_threads
from tkc.passes.lowering.scatter_function import FlatTensors, Tensor, int64

_BLOCKS = 4 * MULTIPROCESSORS
"""How many blocks look for their rows, if there are so many."""
_SEARCHES = 1 << 18
_MOST_RANGES = 64
"""How many threads look for their elements, and how many of them in one column."""

_SOURCE = """
#ifndef TKC_SCATTER
#define TKC_SCATTER
template <bool clamps>
static __device__ __forceinline__ long long tkc_place(long long index, long long length) {
  if (clamps) return max(0ll, min(index, length - 1));
  return index < 0 ? index + length : index;
}

// In a block of `threads`, for the rows of one of `ranges` and the columns of one of `tiles`. Each thread looks at four
// indices at a time; the rows found are written in their order, each by as many threads as are side by side.
template <typename Op, bool clamps, bool gathers, int threads, int side, int columns, typename T, typename I,
          typename S>
static __device__ __forceinline__ int tkc_scatter_rows(
    T* __restrict__ out, const I* __restrict__ indices, const T* __restrict__ values, const S* __restrict__ sources,
    long long count, long long length, long long inner, long long table, long long ranges, long long tiles,
    long long block) {
  constexpr int searches = 4, warps = threads / 32, lanes = threads / side;
  __shared__ unsigned found[searches * warps];
  __shared__ int places[searches * threads];
  const int thread = threadIdx.x, lane = thread / side;
  const long long tile = block % tiles, range = block / tiles % ranges, nth = block / tiles / ranges;
  const long long first = length * range / ranges, last = length * (range + 1) / ranges;
  const long long begin = tile * (side * columns) + thread % side, end = min(inner, (tile + 1) * (side * columns));
  out += (nth * length + first) * inner;
  values += nth * count * inner;
  for (long long base = 0; base < count; base += searches * threads) {
#pragma unroll
    for (int search = 0; search < searches; ++search) {
      const long long k = base + search * threads + thread;
      const long long place = k < count ? tkc_place<clamps>(indices[k], length) : -1;
      const unsigned mine = __ballot_sync(~0u, place >= first && place < last);
      places[search * threads + thread] = int(place - first);
      if (thread % 32 == 0) found[search * warps + thread / 32] = mine;
    }
    __syncthreads();
    for (int warp = 0; warp < searches * warps; ++warp) {
      for (unsigned mine = found[warp]; mine != 0; mine &= mine - 1) {
        const int at = warp * 32 + __ffs(mine) - 1, place = places[at];
        if (place % lanes != lane) continue;
        const long long source = gathers ? tkc_place<true>(sources[base + at], table) : base + at;
        T* const to = out + place * inner;
        const T* const from = values + source * inner;
#pragma unroll
        for (int column = 0; column < columns; ++column) {
          const long long i = begin + column * side;
          if (i < end) to[i] = Op::of(to[i], from[i]);
        }
      }
    }
    __syncthreads();
  }
  return 0;
}

// In a thread, for one column, and of its places for one of `ranges`.
template <typename Op, bool clamps, bool columns_first, typename T, typename I>
static __device__ __forceinline__ int tkc_scatter_elements(
    T* __restrict__ out, const I* __restrict__ indices, const T* __restrict__ values, long long outer, long long count,
    long long length, long long inner, long long ranges, long long thread) {
  constexpr int searches = 16;
  if (thread >= outer * ranges * inner) return 0;
  const long long column = columns_first ? thread % inner : thread / ranges % inner;
  const long long range = columns_first ? thread / inner % ranges : thread % ranges;
  const long long nth = thread / inner / ranges;
  const long long first = length * range / ranges, last = length * (range + 1) / ranges;
  out += nth * length * inner + column;
  indices += nth * count * inner + column;
  values += nth * count * inner + column;
  for (long long base = 0; base < count; base += searches) {
    long long places[searches];
#pragma unroll
    for (int search = 0; search < searches; ++search) {
      const long long k = base + search;
      places[search] = k < count ? tkc_place<clamps>(indices[k * inner], length) : -1;
    }
#pragma unroll
    for (int search = 0; search < searches; ++search) {
      const long long place = places[search];
      if (place < first || place >= last) continue;
      T* const to = out + place * inner;
      *to = Op::of(*to, values[(base + search) * inner]);
    }
  }
  return 0;
}
#endif
"""


def gpu_scatter_function(
    tensors: Mapping[str, Tensor], axis: int, reduction: str, *, of_rows: bool, clamps: bool
) -> tirx.PrimFunc:
    """What :func:`~tkc.passes.lowering.scatter_function.scatter_function` makes, for a GPU."""
    memory = FlatTensors(tensors)
    sizes = memory.sizes("x")
    outer, length, inner = product(sizes[:axis]), sizes[axis], product(sizes[axis + 1 :])
    count = memory.writes(axis, memory.sizes("indices")[axis])
    options = [f"tkc_{reduction}", cpp(clamps)]
    out, indices, values = (memory.address(name) for name in ("out", "indices", "values"))
    if of_rows:
        side = row_threads(inner)
        tiles = tirx.floordiv(inner + (side * COLUMNS - 1), int64(side * COLUMNS))
        ranges = _ranges(length, _BLOCKS, outer * tiles)
        gathers = "sources" in tensors
        name = ["tkc_scatter_rows", *options, cpp(gathers), str(THREADS), str(side), str(COLUMNS)]
        sources = memory.address("sources" if gathers else "indices")
        table = memory.sizes("values")[axis]
        arguments = [out, indices, values, sources, count, length, inner, table, ranges, tiles]
        search = launched(outer * ranges * tiles, lambda block, _: called(name, [*arguments, block], _SOURCE))
    else:
        width = static(inner)
        ranges = tirx.min(_ranges(length, _SEARCHES, outer * inner), int64(_MOST_RANGES))
        name = ["tkc_scatter_elements", *options, cpp(width is None or width >= WARP)]
        arguments = [out, indices, values, outer, count, length, inner, ranges]
        blocks = tirx.floordiv(outer * ranges * inner + (THREADS - 1), int64(THREADS))
        search = launched(blocks, lambda block, thread: called(name, [*arguments, block * THREADS + thread], _SOURCE))
    return memory.function([copied(memory), search])


def _ranges(length: tirx.PrimExpr, wanted: int, others: tirx.PrimExpr) -> tirx.PrimExpr:
    """Into how many ranges the places along the axis are divided, at least one and at most ``length``, so that these
    and ``others``, which each of them is multiplied by, make about ``wanted``."""
    return tirx.max(tirx.min(length, tirx.floordiv(int64(wanted), tirx.max(others, int64(1)))), int64(1))
