"""Tensors that lie about their data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.frontend.hostile_onnx.files import DEEP, FILES, HUGE, made_by, model_of


def _tensor(name: str, **fields: Any) -> None:
    """A model that adds an initializer of such fields."""
    _initializer(name, lambda: TensorProto(**fields))


def _initializer(name: str, make: Callable[[], TensorProto]) -> None:
    def whole(_: Path) -> ModelProto:
        tensor = make()
        tensor.name = tensor.name or "w"
        return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])

    FILES[name] = whole


_tensor("raw data too short", data_type=1, dims=[4], raw_data=bytes(15))
_tensor("raw data too long", data_type=1, dims=[4], raw_data=bytes(17))
_tensor("raw data of many", data_type=1, dims=[4], raw_data=bytes(1 << 20))
_tensor("no data", data_type=1, dims=[4])
_tensor("no data of 2^40", data_type=1, dims=[HUGE])
_tensor("no data of 2^80", data_type=1, dims=[HUGE, HUGE])
_tensor("sizes that overflow to zero", data_type=1, dims=[1 << 32, 1 << 32])
_tensor("sizes that overflow to four", data_type=1, dims=[(1 << 62) + 1, 4], raw_data=bytes(16))
_tensor("negative size", data_type=1, dims=[-4], raw_data=bytes(16))
_tensor("negative sizes", data_type=1, dims=[-2, -2], raw_data=bytes(16))
_tensor("sizes with a zero", data_type=1, dims=[HUGE, 0, HUGE])
_tensor("many dimensions", data_type=1, dims=[1] * DEEP, raw_data=bytes(4))
_tensor("many dimensions of two", data_type=1, dims=[2] * 40, raw_data=bytes(4))
_tensor("both kinds of data", data_type=1, dims=[4], raw_data=bytes(16), float_data=[1, 2, 3, 4])
_tensor("too many numbers", data_type=1, dims=[4], float_data=[1] * 1000)
_tensor("too few numbers", data_type=1, dims=[4], float_data=[1])
_tensor("numbers of another field", data_type=1, dims=[4], int64_data=[1, 2, 3, 4])
_tensor("numbers out of range", data_type=3, dims=[4], int32_data=[1 << 30] * 4)
_tensor("no type", dims=[4], raw_data=bytes(16))
_tensor("unknown type", data_type=999, dims=[4], raw_data=bytes(16))
_tensor("negative type", data_type=-5, dims=[4], raw_data=bytes(16))
_tensor("texts", data_type=8, dims=[1], string_data=[b"text"])
_tensor("texts as raw data", data_type=8, dims=[4], raw_data=bytes(16))
_tensor("complex numbers", data_type=14, dims=[4], raw_data=bytes(32))
_tensor("four bits", data_type=22, dims=[4], raw_data=bytes(2))
_tensor("four bits, too short", data_type=22, dims=[HUGE], raw_data=bytes(2))
_tensor("segment", data_type=1, dims=[4], raw_data=bytes(16), segment=TensorProto.Segment(begin=0, end=HUGE))
_tensor("unknown place", data_type=1, dims=[4], raw_data=bytes(16), data_location=TensorProto.EXTERNAL)


@made_by("doubled initializer")
def _doubled_initializer(_: Path) -> ModelProto:
    w = numpy_helper.from_array(np.ones(4, "float32"), "w")
    large = numpy_helper.from_array(np.ones((1024, 4), "float32"), "w")
    return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [w, large])


@made_by("doubled large initializer")
def _doubled_large_initializer(_: Path) -> ModelProto:
    large = numpy_helper.from_array(np.ones((1024, 4), "float32"), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024, 4])
    return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [large, large], [y])


@made_by("initializer named as a value")
def _initializer_named_as_value(_: Path) -> ModelProto:
    return model_of([helper.make_node("Relu", ["x"], ["y"])], [numpy_helper.from_array(np.ones(4, "float32"), "y")])


@made_by("initializer of another type than its input")
def _initializer_of_another_type(_: Path) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("w", 7, [HUGE])]
    w = numpy_helper.from_array(np.ones(4, "float32"), "w")
    return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [w], inputs=inputs)


@made_by("initializer without a name")
def _initializer_without_name(_: Path) -> ModelProto:
    return model_of([helper.make_node("Relu", ["x"], ["y"])], [numpy_helper.from_array(np.ones(4, "float32"), "")])


@made_by("sparse initializer")
def _sparse_initializer(_: Path) -> ModelProto:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])])
    values = numpy_helper.from_array(np.ones(1, "float32"), "w")
    indices = numpy_helper.from_array(np.array([HUGE]), "i")
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[HUGE]))
    return model


@made_by("sparse constant")
def _sparse_constant(_: Path) -> ModelProto:
    values = numpy_helper.from_array(np.ones(1, "float32"), "w")
    indices = numpy_helper.from_array(np.array([HUGE]), "i")
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=[HUGE])
    return model_of([helper.make_node("Constant", [], ["w"], sparse_value=sparse),
                   helper.make_node("Add", ["x", "w"], ["y"])])  # fmt: skip


def _constant(name: str, tensor: TensorProto) -> None:
    FILES[name] = lambda _: model_of(
        [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    )


_constant("constant without data", TensorProto(data_type=1, dims=[HUGE]))
_constant("constant of the wrong length", TensorProto(data_type=1, dims=[4], raw_data=bytes(3)))
_constant("constant that overflows", TensorProto(data_type=1, dims=[1 << 32, 1 << 32]))
_constant("constant of unknown type", TensorProto(data_type=999, dims=[4], raw_data=bytes(16)))
_constant("constant of negative size", TensorProto(data_type=1, dims=[-4], raw_data=bytes(16)))
_constant("constant in a file", TensorProto(data_type=1, dims=[4], data_location=TensorProto.EXTERNAL, external_data=[
    onnx.StringStringEntryProto(key="location", value="/etc/passwd")]))  # fmt: skip
