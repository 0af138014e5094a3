"""Products of CPU kernels, summed in vector registers, by the vectors of several processors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import tkc.builder
from tkc.builder.host_code import compile_host_code

_HEADER = Path(tkc.builder.__file__).with_name("product_tile.h")
_SOURCE = f"""
#include "{_HEADER}"
extern "C" void set(float* a, int64_t a_row, int64_t a_step, float* b, int64_t b_step, float* c, int64_t c_row,
                    int32_t rows, int32_t columns, int32_t steps) {{
  tkc_product_tile(a, a_row, a_step, b, b_step, c, c_row, rows, columns, steps);
}}
extern "C" void add(float* a, int64_t a_row, int64_t a_step, float* b, int64_t b_step, float* c, int64_t c_row,
                    float* scale, int32_t rows, int32_t columns, int32_t steps) {{
  tkc_add_product_tile(a, a_row, a_step, b, b_step, c, c_row, scale, rows, columns, steps);
}}
"""
_FLAGS = {
    "AVX-512": ("avx512f", ["-mavx512f", "-mfma"]),
    "AVX2": ("avx2", ["-mavx2", "-mfma"]),
    "as little as there is": ("", []),
}
# Whole tiles, columns of each smaller width, rows of each smaller number; none of each.
_SHAPES = [
    (64, 32, 64), (32, 64, 64), (7, 127, 5), (15, 72, 3), (1, 1, 1), (3, 40, 0), (0, 16, 4), (5, 0, 4), (33, 95, 2),
]  # fmt: skip


@pytest.fixture(scope="module", params=_FLAGS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Both functions, for a processor's vectors."""
    feature, flags = _FLAGS[request.param]
    if feature and feature not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no {feature}")
    folder = tmp_path_factory.mktemp("product_tile")
    (folder / "code.cc").write_text(_SOURCE)
    compile_host_code(["-O3", "-shared", *flags, str(folder / "code.cc")], folder / "code.so")
    return ctypes.CDLL(str(folder / "code.so"))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_products(library: ctypes.CDLL, shape: tuple[int, int, int], transposed: bool) -> None:
    """Of any numbers of rows, columns and steps, from matrices with gaps; nothing beside the result is written."""
    rows, columns, steps = shape
    generator = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype("float32")

    left = random(steps, rows + 2)[:, :rows].T if transposed else random(rows, steps + 2)[:, :steps]
    right, scale = random(steps, columns + 3)[:, :columns], random(rows)
    before = random(rows + 1, columns + 5)
    operands = [*_addressed(left, 2), *_addressed(right, 1)]
    sizes = [ctypes.c_int32(size) for size in shape]
    expected = left.astype("float64") @ right

    written = before.copy()
    library.set(*operands, *_addressed(written, 1), *sizes)
    np.testing.assert_allclose(written[:rows, :columns], expected, rtol=1e-5, atol=1e-5)
    _same_beside(written, before, rows, columns)

    written = before.copy()
    library.add(*operands, *_addressed(written, 1), ctypes.c_void_p(scale.ctypes.data), *sizes)
    expected += scale[:, None] * before[:rows, :columns]
    np.testing.assert_allclose(written[:rows, :columns], expected, rtol=1e-5, atol=1e-5)
    _same_beside(written, before, rows, columns)


def _addressed(matrix: np.ndarray, strides: int) -> list[ctypes.c_void_p | ctypes.c_int64]:
    """Where ``matrix`` begins, and so many of its strides, in elements."""
    return [ctypes.c_void_p(matrix.ctypes.data), *(ctypes.c_int64(each // 4) for each in matrix.strides[:strides])]


def _same_beside(written: np.ndarray, before: np.ndarray, rows: int, columns: int) -> None:
    np.testing.assert_array_equal(written[rows:], before[rows:])
    np.testing.assert_array_equal(written[:, columns:], before[:, columns:])
