"""The function that scatters elements, or rows of them, on a GPU, whose places are in order: each is written once.

What is written to one place is put together in the order of the indices, as on the CPU, up to :data:`CHUNK` values.
Of more, so many are put together at a time, and then what became of these: the bits are the same in each call. No
thread reads more indices than it writes values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import te, tirx

from tkc.passes.graph.layout import product
from tkc.passes.lowering.gpu_scatter import COLUMNS, THREADS, called, copied, cpp, launched, row_threads
from tkc.passes.lowering.scatter_function import FlatTensors, Tensor, int64

CHUNK = 64
"""How many values are put together one after the other."""

_SOURCE = """
#ifndef TKC_SORTED_SCATTER
#define TKC_SORTED_SCATTER
// Where in the sorted `places` those begin that are the same as the one at `at`.
template <typename P>
static __device__ __forceinline__ long long tkc_first_of(const P* __restrict__ places, long long at) {
  long long low = 0, high = at;
  const P place = places[at];
  while (low < high) {
    const long long middle = (low + high) / 2;
    if (places[middle] < place) low = middle + 1; else high = middle;
  }
  return low;
}

// What becomes of `found`, or of nothing, with the rows from `first` on, `step` apart, as long as they are before `end`
// and of one place. Of the threads side by side each has its columns.
template <typename Op, int side, int columns, typename T, typename P, typename Row>
static __device__ __forceinline__ void tkc_put_together(
    T (&found)[columns], bool is_empty, const P* __restrict__ places, const T* __restrict__ values, Row row,
    long long first, long long end, long long step, long long begin, long long inner) {
  constexpr int ahead = 4;
  const P place = places[first];
  for (long long k = first; k < end && places[k] == place; k += ahead * step) {
    long long source[ahead];
    bool is_there[ahead];
#pragma unroll
    for (int next = 0; next < ahead; ++next) {
      const long long at = k + next * step;
      is_there[next] = at < end && places[at] == place;
      source[next] = is_there[next] ? row(at) : 0;
    }
#pragma unroll
    for (int column = 0; column < columns; ++column) {
      const long long i = begin + column * side;
      T read[ahead];
#pragma unroll
      for (int next = 0; next < ahead; ++next) {
        read[next] = is_there[next] && i < inner ? values[source[next] * inner + i] : T(0);
      }
#pragma unroll
      for (int next = 0; next < ahead; ++next) {
        if (!is_there[next]) continue;
        found[column] = is_empty && next == 0 && k == first ? read[next] : Op::of(found[column], read[next]);
      }
    }
  }
}

// The rows that one block of `threads` writes, `side` threads each, and its columns, those of one of `tiles`.
template <int threads, int side, int columns>
struct tkc_part {
  long long nth, row, begin;
  __device__ __forceinline__ tkc_part(long long tiles, long long groups, long long block)
      : nth(block / tiles / groups),
        row(block / tiles % groups * (threads / side) + threadIdx.x / side),
        begin(block % tiles * (side * columns) + threadIdx.x % side) {}
};

// Writes the first values of each place into `out`, and what becomes of each `chunk` of its others into `partial`.
template <typename Op, bool gathers, int chunk, int threads, int side, int columns, typename T, typename P, typename O,
          typename S>
static __device__ __forceinline__ int tkc_scatter_sorted(
    T* __restrict__ out, T* __restrict__ partial, const P* __restrict__ places, const O* __restrict__ order,
    const T* __restrict__ values, const S* __restrict__ sources, long long count, long long length, long long inner,
    long long table, long long tiles, long long groups, long long block) {
  const tkc_part<threads, side, columns> part(tiles, groups, block);
  const long long first = part.row;
  if (first >= count) return 0;
  const P place = places[first];
  const bool begins = first == 0 || places[first - 1] != place;
  if (Op::keeps_last ? first + 1 < count && places[first + 1] == place : !begins) {
    if (Op::keeps_last || first < chunk || places[first - chunk] != place) return 0;
    if ((first - tkc_first_of(places, first - chunk)) % chunk != 0) return 0;
  }
  T* const to = begins || Op::keeps_last ? out + (part.nth * length + place) * inner
                                         : partial + (part.nth * (count / chunk + 1) + first / chunk) * inner;
  T found[columns];
#pragma unroll
  for (int column = 0; column < columns; ++column) {
    const long long i = part.begin + column * side;
    found[column] = begins && i < inner ? to[i] : T(0);
  }
  const auto row = [=](long long k) {
    const long long at = order[k];
    return gathers ? max(0ll, min((long long)sources[at], table - 1)) : at;
  };
  tkc_put_together<Op, side, columns>(found, !begins, places, values + part.nth * count * inner, row, first,
                                      min(first + chunk, count), 1, part.begin, inner);
#pragma unroll
  for (int column = 0; column < columns; ++column) {
    const long long i = part.begin + column * side;
    if (i < inner) to[i] = found[column];
  }
  return 0;
}

// Adds what `partial` has of each place to what is in `out`.
template <typename Op, int chunk, int threads, int side, int columns, typename T, typename P>
static __device__ __forceinline__ int tkc_scatter_partial(
    T* __restrict__ out, const T* __restrict__ partial, const P* __restrict__ places, long long count,
    long long length, long long inner, long long tiles, long long groups, long long block) {
  const tkc_part<threads, side, columns> part(tiles, groups, block);
  const long long first = part.row;
  if (first + chunk >= count) return 0;
  const P place = places[first];
  if (places[first + chunk] != place || (first > 0 && places[first - 1] == place)) return 0;
  T* const to = out + (part.nth * length + place) * inner;
  T found[columns];
#pragma unroll
  for (int column = 0; column < columns; ++column) {
    const long long i = part.begin + column * side;
    found[column] = i < inner ? to[i] : T(0);
  }
  const auto row = [=](long long k) { return k / chunk; };
  tkc_put_together<Op, side, columns>(found, false, places, partial + part.nth * (count / chunk + 1) * inner, row,
                                      first + chunk, count, chunk, part.begin, inner);
#pragma unroll
  for (int column = 0; column < columns; ++column) {
    const long long i = part.begin + column * side;
    if (i < inner) to[i] = found[column];
  }
  return 0;
}
#endif
"""


def sorted_scatter_function(
    tensors: Mapping[str, Tensor], axis: int, reduction: str, *, of_rows: bool
) -> tuple[tirx.PrimFunc, Tensor]:
    """A function of ``x``, ``places [count]``, ``order [count]`` and ``values``, which gives ``x`` with values written.

    ``places`` are in order, and ``order`` says where each was before (:func:`places_of`). ``of_rows``: places are those
    along ``axis``, for all elements there; otherwise they are those of elements of the whole of ``x``, and values are
    counted likewise. With ``sources`` as a fifth tensor, and along the first axis, the rows of the values that these
    name, or the nearest ones, are written. The function is scheduled, and has a second result, the tensor that is
    returned here, whose numbers mean nothing.
    """
    sizes, (followed,) = tensors["x"].shape, tensors["order"].shape
    outer, _, inner = _around(sizes, axis, of_rows=of_rows)
    kept = outer * (tirx.floordiv(followed, int64(CHUNK)) + 1) * inner if reduction != "update" else int64(1)
    partial = Tensor([kept], tensors["x"].dtype)
    memory = FlatTensors(tensors, {"partial": partial})
    outer, length, inner = _around(memory.sizes("x"), axis, of_rows=of_rows)
    count = memory.writes(axis, memory.sizes("order")[0])
    side, columns = (row_threads(inner), COLUMNS) if of_rows else (1, 1)
    tiles = tirx.floordiv(inner + (side * columns - 1), int64(side * columns))
    groups = tirx.floordiv(count + (THREADS // side - 1), int64(THREADS // side))
    gathers = "sources" in tensors
    update = f"tkc_{reduction}"
    options = [str(each) for each in (CHUNK, THREADS, side, columns)]
    out, kept, places, order, values = (
        memory.address(name) for name in ("out", "partial", "places", "order", "values")
    )
    sources = memory.address("sources" if gathers else "order")
    table = memory.sizes("values")[axis]
    blocks = [tiles, tirx.max(groups, int64(1))]
    written = [out, kept, places, order, values, sources, count, length, inner, table, *blocks]
    joined = [out, kept, places, count, length, inner, *blocks]
    kernels = [(["tkc_scatter_sorted", update, cpp(gathers), *options], written)]
    if reduction != "update":
        kernels.append((["tkc_scatter_partial", update, *options], joined))
    blocks_of_all = outer * groups * tiles
    statements = [launched(blocks_of_all, _calling(name, arguments)) for name, arguments in kernels]
    return memory.function([copied(memory), *statements]), partial


def _calling(name: list[str], arguments: list[tirx.PrimExpr]) -> Callable[[tirx.Var, tirx.Var], tirx.Stmt]:
    return lambda block, _: called(name, [*arguments, block], _SOURCE)


def _around(
    sizes: Sequence[tirx.PrimExpr], axis: int, *, of_rows: bool
) -> tuple[tirx.PrimExpr, tirx.PrimExpr, tirx.PrimExpr]:
    """How many tensors there are outside of the places, how many places, and elements of each."""
    if not of_rows:
        return int64(1), product(sizes), int64(1)
    return product(sizes[:axis]), sizes[axis], product(sizes[axis + 1 :])


def places_of(
    indices: te.Tensor, length: tirx.PrimExpr, axis: int, dtype: str, *, of_rows: bool, clamps: bool
) -> te.Tensor:
    """Where each of ``indices`` is in a tensor of ``length`` along ``axis``, and like them along others, ``[count]``.

    An index below 0 counts from the end, or, if the function ``clamps``, one outside of the axis is the nearest in it.
    ``of_rows`` has places along the axis, as the indices; otherwise they are those of elements.
    """
    shape = indices.shape
    inner = product(shape[axis + 1 :])

    def place(i: tirx.Var) -> tirx.PrimExpr:
        at, rest = [], i
        for size in reversed(shape):
            at.append(tirx.floormod(rest, size))
            rest = tirx.floordiv(rest, size)
        given = indices(*reversed(at)).astype("int64")
        if clamps:
            along = tirx.min(tirx.max(given, int64(0)), length - 1)
        else:
            along = given + tirx.Select(given < 0, length, int64(0))
        if not of_rows:
            nth = tirx.floordiv(i, shape[axis] * inner)
            along = (nth * length + along) * inner + tirx.floormod(i, inner)
        return along.astype(dtype)

    return te.compute([product(shape)], place, name="places")
