"""The CUDA C++ of scatters in order of their places, compiled for the host, whose loops are blocks and threads."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tkc.builder.host_code import compile_host_code
from tkc.passes.lowering.gpu_scatter import _UPDATES, THREADS
from tkc.passes.lowering.gpu_sorted_scatter import _SOURCE, CHUNK

_HOST = """
#include <algorithm>
#include <cstdint>
#define __device__
#define __forceinline__ inline
#define __restrict__
using std::max;
using std::min;
static struct { int x; } threadIdx;
"""
_LAUNCH = """
extern "C" void {name}(float* out, float* partial, const int32_t* places, const int64_t* order, const float* values,
                       const int64_t* sources, long long outer, long long count, long long length, long long inner,
                       long long table) {{
  const long long tiles = (inner + {width} - 1) / {width}, groups = (count + {rows} - 1) / {rows};
  for (long long block = 0; block < outer * groups * tiles; ++block)
    for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x)
      tkc_scatter_sorted<tkc_{update}, {gathers}, {chunk}, {threads}, {side}, {columns}>(
          out, partial, places, order, values, sources, count, length, inner, table, tiles, groups, block);
  for (long long block = 0; !tkc_{update}::keeps_last && block < outer * groups * tiles; ++block)
    for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x)
      tkc_scatter_partial<tkc_{update}, {chunk}, {threads}, {side}, {columns}>(
          out, partial, places, count, length, inner, tiles, groups, block);
}}
"""
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda there, written: written,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
WIDTHS = {1: 1, 4: 3, 64: 300}
"""Of rows, by how many threads are side by side along one."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A function for each update, number of threads side by side, and whether rows are gathered."""
    folder = tmp_path_factory.mktemp("scatter")
    functions = [
        _LAUNCH.format(
            name=f"{update}_{side}_{gathers}",
            update=update,
            gathers=gathers,
            chunk=CHUNK,
            threads=THREADS,
            side=side,
            columns=4 if side > 1 else 1,
            width=side * (4 if side > 1 else 1),
            rows=THREADS // side,
        )
        for update, side, gathers in itertools.product(UPDATES, WIDTHS, ("true", "false"))
    ]
    (folder / "scatter.cc").write_text("".join((_HOST, _UPDATES, _SOURCE, *functions)))
    compile_host_code([str(folder / "scatter.cc"), "-shared", "-O1"], folder / "scatter.so")
    return ctypes.CDLL(str(folder / "scatter.so"))


@pytest.mark.parametrize("gathers", [False, True], ids=["values", "gathered"])
@pytest.mark.parametrize("side", WIDTHS)
@pytest.mark.parametrize("update", UPDATES)
def test_each_place_has_what_the_order_of_indices_gives(
    library: ctypes.CDLL, update: str, side: int, gathers: bool
) -> None:
    """For no values and beside chunks of them, each with a place of its own, some, half or all with the same."""
    inner, random = WIDTHS[side], np.random.default_rng(0)
    function = library[f"{update}_{side}_{str(gathers).lower()}"]
    counts = (0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 777)
    for count, length, outer in itertools.product(counts, (1, 2, 300), (1, 3) if not gathers else (1,)):
        indices = random.integers(0, length, count).astype(np.int32)
        indices[random.random(count) < 0.5 if length == 300 else []] = 0
        order = np.argsort(indices, kind="stable")
        table = 20 if gathers else count
        numbers = (-1, 1) if update == "mul" else range(-9, 9)  # whose products and sums are exact
        x = random.choice(numbers, (outer, length, inner)).astype(np.float32)
        values = random.choice(numbers, (outer, table, inner)).astype(np.float32)
        sources = random.integers(-2, table + 2, count)
        rows = np.clip(sources, 0, table - 1) if gathers else np.arange(count)
        expected, found = x.copy(), x.copy()
        for k, place in enumerate(indices):
            expected[:, place] = UPDATES[update](expected[:, place], values[:, rows[k]])
        partial = np.full((outer, count // CHUNK + 1, inner), np.nan, np.float32)
        tensors = [found, partial, np.ascontiguousarray(indices[order]), order, values, sources]
        sizes = map(ctypes.c_longlong, (outer, count, length, inner, table))
        function(*(ctypes.c_void_p(each.ctypes.data) for each in tensors), *sizes)
        np.testing.assert_array_equal(found, expected, f"{count} values, {length} places, {outer} tensors")


def test_nan(library: ctypes.CDLL) -> None:
    """A NaN is the largest and the smallest."""
    for update in ("max", "min"):
        found, partial = np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32)
        values = np.array([[1, np.nan, -2], [np.nan, 5, -3]], np.float32)
        places, order, none = np.zeros(2, np.int32), np.arange(2), np.zeros(2, np.int64)
        tensors = [found, partial, places, order, values, none]
        sizes = map(ctypes.c_longlong, (1, 2, 1, 3, 2))
        library[f"{update}_4_false"](*(ctypes.c_void_p(each.ctypes.data) for each in tensors), *sizes)
        np.testing.assert_array_equal(np.isnan(found[0]), [True, True, False])
