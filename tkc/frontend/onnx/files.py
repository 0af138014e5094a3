"""An ONNX model's file, without what stands in other files."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tkc.errors import UnsupportedModelError, UsageError


def read_model(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model without what stands in other files, and its path."""
    if isinstance(model, onnx.ModelProto):
        proto, source, path = model, "The ModelProto", None
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise UsageError(f"There is no ONNX file at {str(path)!r}; check the path.")
        source = f"The file {str(path)!r}"
        try:
            proto = onnx.load(path, load_external_data=False)
        except (DecodeError, ValueError) as error:
            raise UnsupportedModelError(f"{source} is not ONNX, or is cut short ({error}); export it again.") from error
    else:
        raise UsageError(f"An ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}.")
    if not (proto.ir_version and proto.HasField("graph") and proto.graph.output):
        raise UnsupportedModelError(f"{source} holds no ONNX graph with outputs: it is not ONNX, or was cut short.")
    return proto, path
