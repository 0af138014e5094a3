"""8-bit floats between two loops of one function keep their bits on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tkc.kernels.target import Target
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_bits_survive(dtype: str) -> None:
    """Every code that one loop stores as a float, another reads again."""
    codes = te.placeholder((256,), "uint8", "codes")
    stored = te.compute(codes.shape, lambda i: tirx.reinterpret(dtype, codes[i]), "stored")
    read = te.compute(codes.shape, lambda i: tirx.reinterpret("uint8", stored[i]), "read")
    func = for_code_generation(te.create_prim_func([codes, read]), Target.parse("cpu"))
    built = tvm.compile(tvm.IRModule({"main": func}), target="llvm", tir_pipeline=LOWERING)
    every = np.arange(256, dtype="uint8")
    found = tvm.runtime.tensor(np.zeros_like(every))
    built["main"](tvm.runtime.tensor(every), found)
    np.testing.assert_array_equal(found.numpy(), every)
