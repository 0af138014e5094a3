"""NumPy arrays in and out: shared where torch can share them, and refused by name where it has no such dtype."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import torch

import tkc
from tkc.runtime.tensors import from_torch_as, to_torch

DTYPES = [np.float32, np.bool_, np.int64, np.uint16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
UNKNOWN = [np.array(["a"]), np.arange(3, dtype=">f4"), np.zeros(2, "datetime64[s]"), np.zeros(2, np.longdouble)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_arrays_are_shared_both_ways(dtype: type) -> None:
    """The floats that ml_dtypes adds to NumPy too."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = to_torch(array, "x")
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert tensor.double().tolist() == array.astype("float64").tolist()
    back = from_torch_as(array)(tensor)
    assert back.dtype == array.dtype and np.shares_memory(array, back)


def test_reversed_arrays_are_copied() -> None:
    """Torch has no negative strides."""
    assert to_torch(np.arange(4)[::-1], "x").tolist() == [3, 2, 1, 0]


def test_fields_of_records_are_copied() -> None:
    """Torch has no strides between elements, either."""
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("kind", "i1"), ("value", "f4")])
    assert to_torch(records["value"], "x").tolist() == [2.5, 4.5]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_read_only_arrays_are_shared_in_silence(dtype: type) -> None:
    """As those of a mapped file are, or of a message's bytes."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    array.flags.writeable = False
    tensor = to_torch(array, "x")
    assert tensor.data_ptr() == array.ctypes.data and str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert tensor.double().tolist() == array.astype("float64").tolist()


@pytest.mark.parametrize("array", UNKNOWN, ids=lambda array: array.dtype.str)
def test_what_torch_lacks_is_named(array: np.ndarray) -> None:
    """By the input's name and the dtype."""
    with pytest.raises(tkc.InputError, match=re.escape(f"'x' has numpy dtype {array.dtype}")):
        to_torch(array, "x")


def test_a_bfloat16_model_takes_and_returns_arrays() -> None:
    """As it takes torch's tensors."""
    x = torch.randn(4, 8).bfloat16()
    executable = tkc.compile(torch.nn.Linear(8, 8).bfloat16(), (x,), target="cpu", kernels="none")
    array = from_torch_as(np.zeros(0))(x)
    result = executable(array)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result.astype("float32"), executable(x).float().numpy())
