"""The strings that a model holds, and their codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.untrusted import check_dimensions, short
from tkc.runtime.signature import CODES

_CODES = onnx.TensorProto.INT64


class ModelStrings:
    """The strings of a model by their codes, as they are met."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"": 0}
        """The strings with their codes. What operators fill tensors with by themselves is 0: the empty string."""

    def code(self, string: str) -> int:
        """The code of a string."""
        return self.codes.setdefault(string, len(self.codes))

    def coded(self, strings: Iterable[str]) -> np.ndarray:
        """The codes of strings, a vector."""
        return np.array([self.code(string) for string in strings], CODES)

    def tensor(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """The tensor of the codes of another one's strings."""
        check_dimensions(tensor)
        codes = self.coded(decoded(each, tensor) for each in tensor.string_data)
        if codes.size != np.prod(tensor.dims, dtype="int64"):
            raise UnsupportedModelError(
                f"Tensor {short(tensor.name)} of shape {list(tensor.dims)} has {codes.size} strings; export it again."
            )
        return onnx.numpy_helper.from_array(codes.reshape(tuple(tensor.dims)), tensor.name)


def decoded(data: bytes, holder: onnx.NodeProto | onnx.TensorProto) -> str:
    """A string of a model. Raises :class:`tkc.errors.UnsupportedModelError` for what is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = describe(holder) if isinstance(holder, onnx.NodeProto) else f"Tensor {short(holder.name)}"
        raise UnsupportedModelError(
            f"{where} has a string that is no UTF-8 ({error.reason}); export it again."
        ) from None


def strings_in(node: onnx.NodeProto, name: str, tensor: str = "") -> list[str] | None:
    """The strings of a node's attribute ``name``, or of the ``tensor``; ``None`` where there are none."""
    for attribute in node.attribute:
        if attribute.name == name and attribute.strings:
            return [decoded(each, node) for each in attribute.strings]
        if attribute.name == tensor and attribute.t.data_type == onnx.TensorProto.STRING:
            return [decoded(each, node) for each in attribute.t.string_data]
    return None


def replace_attributes(node: onnx.NodeProto, changes: Mapping[str, Any]) -> None:
    """Give a node these attributes, or take those away whose value is ``None``."""
    kept = [attribute for attribute in node.attribute if attribute.name not in changes]
    made = [onnx.helper.make_attribute(name, value) for name, value in changes.items() if value is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *made])


def holds_strings(kind: onnx.TypeProto) -> bool:
    """Whether a type is that of strings, or of sequences or optional values of them."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return bool(kind.tensor_type.elem_type == onnx.TensorProto.STRING)
        case "sequence_type":
            return holds_strings(kind.sequence_type.elem_type)
        case "optional_type":
            return holds_strings(kind.optional_type.elem_type)
    return False


def set_codes(kind: onnx.TypeProto) -> None:
    """Have a type of strings be one of codes."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            if kind.tensor_type.elem_type == onnx.TensorProto.STRING:
                kind.tensor_type.elem_type = _CODES
        case "sequence_type":
            set_codes(kind.sequence_type.elem_type)
        case "optional_type":
            set_codes(kind.optional_type.elem_type)
