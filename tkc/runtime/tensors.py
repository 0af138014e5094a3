"""Tensors of any kind in, tensors of the same kind out, without copies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from tkc.errors import InputError

FromTorch = Callable[[torch.Tensor], Any]

HELD = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "float16"}
"""The dtypes in which models hold the numbers of those that are narrower than a byte, one for each element."""

_BITS = {1: "uint8", 2: "uint16"}  # as what both libraries exchange the floats that NumPy itself lacks, by their bytes


def to_torch(value: Any, name: str) -> torch.Tensor:
    """``value`` as a torch tensor that shares its memory; :class:`InputError` if it is no tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name)
    if hasattr(value, "__dlpack__"):
        try:
            return from_dlpack(value)
        except Exception as error:  # whatever the other library raises where its tensor cannot be shared
            raise InputError(f"input '{name}', a {type(value).__name__}, cannot be read by DLPack: {error}") from error
    raise InputError(f"input '{name}' is a {type(value).__name__}; give a torch, numpy or DLPack tensor")


def held(value: Any, name: str, dtype: str) -> torch.Tensor:
    """A tensor of a narrow ``dtype`` in the one that models hold it in.

    That is an array of ``ml_dtypes``, or a tensor that has the wider dtype already, and no numbers but those of
    ``dtype``; :class:`InputError` for others.
    """
    if isinstance(value, np.ndarray) and value.dtype.name == dtype:
        return torch.from_numpy(value.astype(HELD[dtype]))
    tensor = to_torch(value, name)
    if str(tensor.dtype) != f"torch.{HELD[dtype]}":
        raise InputError(
            f"input '{name}' has dtype {str(tensor.dtype).removeprefix('torch.')}, expected {dtype}; give a numpy "
            f"array of ml_dtypes.{dtype}, or its numbers in {HELD[dtype]}"
        )
    numbers = torch.from_numpy(_numbers(dtype)).to(tensor.device)
    outside = ~torch.isin(tensor, numbers)
    if outside.any():
        raise InputError(f"input '{name}' holds {tensor[outside][0].item()}, which {dtype} cannot")
    return tensor


def _numbers(dtype: str) -> np.ndarray:
    """All numbers of a narrow dtype."""
    bits = ml_dtypes.finfo(dtype).bits if "float" in dtype else ml_dtypes.iinfo(dtype).bits
    codes = np.arange(1 << bits, dtype="uint8")
    numbers: np.ndarray = codes.view(dtype).astype(HELD[dtype]) if "float" in dtype else codes.astype(HELD[dtype])
    signed = not dtype.startswith(("u", "float"))
    return numbers - (1 << (bits - 1)) if signed else numbers


def narrowed(result: Any, dtype: str) -> Any:
    """A result that holds numbers of a narrow ``dtype``: an array of that dtype if it is an array, else itself."""
    return result.astype(dtype) if isinstance(result, np.ndarray) else result


def from_torch_as(value: Any) -> FromTorch:
    """How to turn results into the kind of tensor that the input ``value`` is."""
    if isinstance(value, torch.Tensor):
        return from_torch
    if isinstance(value, np.ndarray):
        return _to_numpy
    library = sys.modules.get(type(value).__module__.partition(".")[0])
    return getattr(library, "from_dlpack", from_torch)


def from_torch(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself."""
    return tensor


def _from_numpy(array: np.ndarray, name: str) -> torch.Tensor:
    if not array.dtype.isnative or not hasattr(torch, array.dtype.name):
        raise InputError(
            f"input '{name}' has numpy dtype {array.dtype}, which torch lacks; convert it with .astype(...)"
        )
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):  # torch has none such
        array = array.copy()
    if hasattr(ml_dtypes, array.dtype.name):
        return _shared(array.view(_BITS[array.itemsize])).view(getattr(torch, array.dtype.name))
    return _shared(array)


def _shared(array: np.ndarray) -> torch.Tensor:
    """The memory of ``array`` as a tensor. :mod:`tkc.runtime.input_checks` refuses to write into a read-only one."""
    if not array.flags.writeable:
        with contextlib.suppress(BufferError):  # of a NumPy that cannot say read-only
            return from_dlpack(array)  # of which torch.from_numpy warns
    return torch.from_numpy(array)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    dtype = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    return tensor.numpy() if dtype is None else tensor.view(getattr(torch, _BITS[tensor.itemsize])).numpy().view(dtype)


def identity(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that are the same memory seen in the same way."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one device have the same shape, dtype and bits, NaNs among them."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of ``tensor``, which is copied if it is not contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).contiguous().reshape(-1).view(torch.uint8)
