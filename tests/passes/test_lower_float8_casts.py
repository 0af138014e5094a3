"""Casts to and from 8-bit floats: every code one way, every kind of number the other.

Codes are read as ml_dtypes reads them, and numbers cast as the installed PyTorch casts them.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tkc.passes.lowering import lower_float8_casts
from tkc.passes.lowering.lower_float8_casts import FORMATS, LowerFloat8Casts


def module_of(shape: tuple[int, ...], source: str, target: str) -> tvm.IRModule:
    """A function that casts its argument."""
    builder = relax.BlockBuilder()
    values = relax.Var("values", relax.TensorStructInfo(shape, source))
    with builder.function("main", [values]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.astype(values, target))
        builder.emit_func_output(result)
    return builder.finalize()


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` cast by a compiled function."""
    module = LowerFloat8Casts()(module_of(values.shape, str(values.dtype), dtype))
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(values)).numpy()


@pytest.mark.parametrize("target", ["float32", "float16"])
@pytest.mark.parametrize("source", [*FORMATS, "float8_e8m0fnu"])
def test_every_code_is_read(source: str, target: str) -> None:
    """All 256 codes, among them both zeros, infinities and NaNs."""
    codes = np.arange(256, dtype="uint8").view(getattr(ml_dtypes, source))
    with np.errstate(over="ignore"):
        expected = codes.astype("float32").astype(target)
    found = cast(codes, target)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)  # the sign of a NaN means nothing
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("target", [*FORMATS, "float8_e8m0fnu"])
def test_numbers_are_rounded_to_the_nearest(source: str, target: str) -> None:
    """Each number of the format, what lies between two, ties, and what the format cannot hold."""
    dtype = getattr(ml_dtypes, target)
    numbers = np.arange(256, dtype="uint8").view(dtype).astype("float32")
    numbers = np.sort(numbers[np.isfinite(numbers)])
    gaps = np.diff(numbers)
    between = [numbers[:-1] + gaps * fraction for fraction in (0.25, 0.5, 0.5001, 0.75)]
    extreme = np.float32([0, -0.0, 1e-30, -1e-30, 1e4, -1e6, 3e38, np.inf, -np.inf, np.nan])
    random = np.random.default_rng(0).normal(size=4096).astype("float32") * np.float32(1000)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = np.concatenate([numbers, *between, extreme, random]).astype(source)
    expected = torch.from_numpy(values).to(getattr(torch, target)).view(torch.uint8).numpy().view(dtype)
    found = cast(values, target)
    numbered = ~np.isnan(expected.astype("float32"))
    np.testing.assert_array_equal(np.isnan(found.astype("float32")), ~numbered)
    np.testing.assert_array_equal(found.view("uint8")[numbered], expected.view("uint8")[numbered])


@pytest.mark.parametrize("codes", [(0x7F, 0x7F), (0x7E, 0x7E), (0x7E, 0x7F)])
def test_overflow_is_what_pytorch_makes_of_it(codes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases differ: NaN of both, the largest number of both, or of a number alone."""
    monkeypatch.setattr(lower_float8_casts, "overflow_codes", lambda dtype: codes)
    values = np.float32([448, 464, 464.1, -1e9, np.inf, -np.inf])
    finite, infinite = codes
    expected = [0x7E, 0x7E, finite, finite | 0x80, infinite, infinite | 0x80]
    assert cast(values, "float8_e4m3fn").view("uint8").tolist() == expected


def test_other_devices_convert_in_hardware() -> None:
    """For a GPU the cast stays."""
    module = module_of((4,), "float32", "float8_e4m3fn")
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
        tvm.ir.assert_structural_equal(LowerFloat8Casts()(module), module)
