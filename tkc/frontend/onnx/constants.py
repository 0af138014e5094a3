"""Inputs of an ONNX model that the caller of the compiler gives numbers for: they become constants of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from tkc.errors import UsageError
from tkc.frontend.onnx.signature import element_type, given_name, is_fixed
from tkc.runtime.tensors import from_torch_as


def bound_constants(
    inputs: Sequence[onnx.ValueInfoProto], constants: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of the inputs that ``constants`` names, and the sizes by the names that their dimensions have.

    Raises :class:`tkc.errors.UsageError` for a name that no input has, and for another dtype or shape than the input's.
    """
    declared = {value.name: value for value in inputs}
    unknown = [name for name in constants if name not in declared]
    if unknown:
        raise UsageError(
            f"constants names {', '.join(map(repr, unknown))}, which no input of the model is called; "
            f"its inputs are {', '.join(declared)}"
        )
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    for name, given in constants.items():
        arrays[name] = _array(declared[name], given)
        _note_sizes(declared[name], arrays[name], sizes)
    return arrays, sizes


def with_sizes(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> onnx.ValueInfoProto:
    """The declaration of an input or output, with ``sizes`` in place of the dimensions that have these names."""
    result = onnx.ValueInfoProto()
    result.CopyFrom(value)
    for dim in result.type.tensor_type.shape.dim if value.type.tensor_type.HasField("shape") else ():
        if not is_fixed(dim) and given_name(dim) in sizes:
            dim.dim_value = sizes[dim.dim_param]
    return result


def _array(value: onnx.ValueInfoProto, given: Any) -> np.ndarray:
    """What was given for an input, an array, a tensor, numbers or lists of them, as an array of the input's dtype."""
    if not value.type.HasField("tensor_type"):
        raise UsageError(f"constants[{value.name!r}]: the input is no tensor; only tensors can be bound")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    element_type(value.name, value.type.tensor_type.elem_type)
    if isinstance(given, torch.Tensor):
        array: np.ndarray = from_torch_as(np.empty(0))(given.detach().cpu().contiguous())
    elif isinstance(given, np.ndarray | np.generic):
        array = np.asarray(given)
    else:
        return _of_numbers(value.name, given, dtype)
    if array.dtype != dtype:
        raise UsageError(f"constants[{value.name!r}] has dtype {array.dtype}; the input has {dtype}")
    return array


def _of_numbers(name: str, given: Any, dtype: np.dtype) -> np.ndarray:
    try:
        natural = np.asarray(given)
        array: np.ndarray = natural.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"constants[{name!r}] is no tensor of {dtype}: {error}") from None
    if natural.size and dtype.kind in "iub" and not np.array_equal(natural, array):
        raise UsageError(f"constants[{name!r}] is {given!r}, which {dtype} cannot hold")
    return array


def _note_sizes(value: onnx.ValueInfoProto, array: np.ndarray, sizes: dict[str, int]) -> None:
    if not value.type.tensor_type.HasField("shape"):
        return
    dims = value.type.tensor_type.shape.dim
    declared = [dim.dim_value if is_fixed(dim) else given_name(dim) or "?" for dim in dims]
    fits = len(declared) == array.ndim
    for size, dim in zip(array.shape, declared, strict=False):
        if isinstance(dim, int):
            fits &= size == dim
        elif dim.isidentifier():
            fits &= sizes.setdefault(dim, size) == size
    if not fits:
        raise UsageError(
            f"constants[{value.name!r}] has shape {list(array.shape)}; the input's is [{', '.join(map(str, declared))}]"
        )
