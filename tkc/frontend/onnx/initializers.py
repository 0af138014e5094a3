"""Initializers and constants of an ONNX model as arrays, from the model itself or mapped from external files."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.external_data_helper
import torch

from tkc.errors import OutOfMemoryError, UnsupportedModelError, UsageError
from tkc.frontend.onnx.signature import WIDENED, element_type
from tkc.frontend.onnx.untrusted import check_dimensions, short, told

# Compiled code loads vectors from tensors, which therefore start at multiples of this many bytes.
ALIGNMENT = 64

_TORCH_ONLY_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}


def widened(array: np.ndarray) -> np.ndarray:
    """The array, of the next wider dtype that tensors have where its elements are narrower than a byte."""
    return array.astype(WIDENED[str(array.dtype)]) if str(array.dtype) in WIDENED else array


def read_tensor(tensor: onnx.TensorProto, path: Path | None) -> np.ndarray:
    """The array of a tensor, mapped from its file where it is external."""
    element_type(tensor.name, tensor.data_type)
    check_dimensions(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if onnx.external_data_helper.uses_external_data(tensor):
        return _map_external(tensor, dtype, path)
    try:
        if tensor.HasField("raw_data") and dtype.itemsize * math.prod(tensor.dims) == len(tensor.raw_data):
            return aligned(np.frombuffer(tensor.raw_data, dtype).reshape(tensor.dims))
        return aligned(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} is damaged ({told(error)}); export it again."
        ) from error


def _map_external(tensor: onnx.TensorProto, dtype: np.dtype, place: Path | None) -> np.ndarray:
    name = short(tensor.name)
    try:
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
    except ValueError as error:
        raise UnsupportedModelError(
            f"Initializer {name} says wrongly where it stands ({told(error)}); export it again."
        ) from error
    if place is None:
        raise UsageError(
            f"Initializer {name} stands in the file {short(info.location)}, and a ModelProto does not say "
            "where that is; pass the path of the model instead."
        )
    path = _external_file(tensor, info.location, place)
    bits = 8 * dtype.itemsize
    if str(dtype) in WIDENED:
        bits = (ml_dtypes.finfo if "float" in str(dtype) else ml_dtypes.iinfo)(dtype).bits
    offset, size = info.offset or 0, -(-math.prod(tensor.dims) * bits // 8)
    if info.length is not None and info.length != size:
        raise UnsupportedModelError(
            f"Initializer {name} needs {size} bytes, and is said to have {info.length} in {short(info.location)}; "
            "export it again."
        )
    available = path.stat().st_size - offset
    if available < size:
        raise UnsupportedModelError(
            f"Initializer {name} needs {size} bytes at offset {offset} of {short(info.location)}, which has "
            f"{max(available, 0)} there: the file was cut short; copy or export it again."
        )
    if not size:
        return np.empty(tuple(tensor.dims), dtype)
    if str(dtype) in WIDENED:
        with path.open("rb") as file:
            file.seek(offset)
            packed = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=file.read(size))
        return aligned(onnx.numpy_helper.to_array(packed))
    try:
        # Copy on write: PyTorch wants writable memory, and the file must stay as it is.
        mapped = np.memmap(path, dtype, mode="c", offset=offset, shape=tuple(tensor.dims)).view(np.ndarray)
    except OSError as error:
        raise OutOfMemoryError(
            f"Initializer {name} takes {size} bytes of {short(info.location)}, which cannot be mapped "
            f"({error.strerror}); give the machine more memory."
        ) from error
    return aligned(mapped) if mapped.ctypes.data % ALIGNMENT else mapped


def _external_file(tensor: onnx.TensorProto, location: str, model: Path) -> Path:
    """The file of an initializer, which is in the folder of the model's file.

    Where links lead is what counts: of a model that is a link itself, as in the cache of the Hugging Face Hub, its data
    may be one into the same folder.
    """
    relative = Path(location)
    outside = relative.is_absolute() or ".." in relative.parts
    try:
        path = (model.parent / relative).resolve()
        outside |= not any(path.is_relative_to(folder) for folder in (model.parent.resolve(), model.resolve().parent))
        found = not outside and path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long a name, a null character; links in a circle
        found = False
    if outside:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} is outside the model's folder: {short(location)}; copy the file itself "
            "into it, and export the model with that name."
        )
    if not found:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} stands in the file {short(location)}, which is not beside the model; "
            f"copy it to {str(model.parent)!r}."
        )
    return path


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that is writable and aligned as PyTorch and TVM align their tensors."""
    try:
        memory = torch.empty(array.nbytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise OutOfMemoryError(f"there is not enough memory for a tensor of {array.nbytes} bytes") from error
    copy = memory.numpy().view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor on the array's own memory."""
    dtype = _TORCH_ONLY_DTYPES.get(str(array.dtype))
    if dtype is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"uint{array.dtype.itemsize * 8}")).view(dtype)
