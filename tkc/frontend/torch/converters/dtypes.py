"""Dtypes as Relax names them, and Python's numbers in them."""

from __future__ import annotations

import math
from typing import Any

import torch
from tvm import DataType, tirx

from tkc.errors import UnsupportedModelError

LOW_PRECISION = frozenset({"float16", "bfloat16"})


def dtype_name(dtype: torch.dtype) -> str:
    """The name that Relax has for a PyTorch dtype."""
    if dtype.is_complex:
        raise UnsupportedModelError(
            f"The model computes with {dtype}, which TKC cannot represent. "
            "Write the computation on real and imaginary parts."
        )
    return str(dtype).removeprefix("torch.")


def rounded(value: float, dtype: str) -> float:
    """``value`` as the floating ``dtype`` has it."""
    return torch.tensor(value, dtype=getattr(torch, dtype)).item()


def is_inexact(value: Any, dtype: str) -> bool:
    """Whether ``value`` is a number that the floating ``dtype`` may not have."""
    value = getattr(value, "value", value)
    if isinstance(value, int | float):
        return not math.isnan(value) and rounded(value, dtype) != value
    return isinstance(value, tirx.PrimExpr)


def as_element(value: Any, dtype: str) -> Any:
    """A Python number as PyTorch brings it to ``dtype``: a truth value, the lowest bits of a whole number, or the 8-bit
    float that PyTorch rounds it to, which other libraries round large numbers otherwise to."""
    if dtype == "bool":
        return bool(value)
    if dtype.startswith("float8"):
        return torch.tensor(float(value), dtype=torch.float64).to(getattr(torch, dtype)).item()
    if "int" not in dtype or not isinstance(value, int) or isinstance(value, bool):
        return value
    bits = DataType(dtype).bits
    low = value % (1 << bits)
    return low - (1 << bits) if not dtype.startswith("uint") and low >> (bits - 1) else low


def numeric(dtype: str) -> str:
    """The dtype to calculate in: truth values, which TVM does not calculate with, as small numbers."""
    return "int8" if dtype == "bool" else dtype


def is_floating(dtype: str) -> bool:
    """Whether ``dtype``'s numbers have a point."""
    return "float" in dtype
