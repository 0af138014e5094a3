"""ONNX operators over NaN, infinities, zeros of both signs and large numbers, compared with NumPy's in float64.

A case is nodes in ONNX's text form that make ``o`` of the inputs, in which constants of float are of the type under
test. All cases of a family are one model. What they should give is what ``onnx.reference`` makes of the same numbers
in float64, or, where that errs, a function given with the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx_execution import compiled, parsed

Array = np.ndarray[Any, Any]
Expected = Callable[..., Array]

TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "bfloat16": ml_dtypes.bfloat16}
TOLERANCES = {"float": 3e-6, "float16": 2e-3, "double": 1e-12, "bfloat16": 1.6e-2}
OPSET = 24


@dataclass(frozen=True)
class Case:
    """Nodes that make ``o``, and what they should give, if it is not what ``onnx.reference`` says.

    ``types`` are those that it is defined for, if not all; ``size`` is how large the numbers are that cancel each other
    in the result.
    """

    nodes: str
    expected: Expected | None = None
    types: tuple[str, ...] = ()
    size: float = 0.0


def special(dtype: Any) -> Array:
    """Numbers that get lost: those that are none, the largest and the smallest, and some between."""
    info = ml_dtypes.finfo(dtype)
    ends = [float(info.max), -float(info.max), float(info.tiny), -float(info.tiny)]
    numbers = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        0.5,
        -0.5,
        1,
        -1,
        1.5,
        2.5,
        -2.5,
        3,
        -3,
        7.25,
        11.5,
        88.8,
        -104,
        1e4,
        -1e4,
    ]
    return np.array([*numbers, *ends], dtype)


def pairs(dtype: Any) -> list[Array]:
    """Every pair of special numbers, as two vectors."""
    numbers = special(dtype)
    return [np.ascontiguousarray(side.ravel()) for side in np.meshgrid(numbers, numbers, indexing="ij")]


def rows(dtype: Any) -> Array:
    """Rows with NaN and infinities in every place, alone and together, and rows of nothing else."""
    nan, inf = np.nan, np.inf
    return np.array(
        [
            [1, -2, 3, 0.5, -1.5],
            [nan, -2, 3, 0.5, -1],
            [1, -2, nan, 0.5, -1],
            [1, -2, 3, 0.5, nan],
            [nan, -2, nan, 0.5, nan],
            [nan, nan, nan, nan, nan],
            [inf, -2, 3, 0.5, -1],
            [1, -2, 3, -inf, -1],
            [inf, -2, 3, -inf, -1],
            [1, inf, nan, 2, -inf],
            [-inf, -inf, -inf, -inf, -inf],
            [inf, inf, inf, inf, inf],
            [-inf, -inf, -3, -inf, -inf],
            [0.0, -0.0, -0.0, 0.0, -0.0],
            [2, 2, -1, -1, 2],
            [200, -200, 199, 0, -0.0],
        ],
        dtype,
    )


def failures(family: Mapping[str, Case], kind: str, **inputs: Array) -> dict[str, str]:
    """What is wrong with each case of a family for inputs of one type, compiled for the CPU."""
    chosen = {name: case for name, case in family.items() if kind in (case.types or (kind,))}
    outputs = compiled(model_of(chosen, kind, inputs))(*inputs.values())
    wrong = {}
    for (name, case), found in zip(chosen.items(), outputs, strict=True):
        if reason := difference(found, expected_of(case, inputs, found.dtype), TOLERANCES.get(kind, 0.0), case.size):
            wrong[name] = reason
    return wrong


def model_of(family: Mapping[str, Case], kind: str, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """One model of all cases, with an output for each."""
    given = ", ".join(f"{_type(array)}[{','.join(map(str, array.shape))}] {name}" for name, array in inputs.items())
    model = parsed(f"agraph ({given}) => () {{}}", opset=OPSET)
    for number, case in enumerate(family.values()):
        nodes = parsed(f"agraph ({given}) => () {{ {case.nodes} }}", opset=OPSET).graph.node
        model.graph.node.extend(_in_type(_renamed(node, number, inputs), kind) for node in nodes)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    types = {value.name: value for value in inferred.graph.value_info}
    unknown = onnx.TensorProto.DataType.Value(kind.upper())
    for name in (f"o_{number}" for number in range(len(family))):
        inferred_type = types.get(name, onnx.helper.make_tensor_value_info(name, unknown, None))
        model.graph.output.append(inferred_type)
    return model


def expected_of(case: Case, inputs: Mapping[str, Array], dtype: Any) -> Array:
    """What a case should give of the inputs, computed in float64 and rounded to ``dtype``."""
    wide = {name: array.astype("float64") if _is_float(array) else array for name, array in inputs.items()}
    with np.errstate(all="ignore"):
        if case.expected is not None:
            result = np.asarray(case.expected(*wide.values()))
        else:
            model = model_of({"": case}, "double", wide)
            (result,) = map(np.asarray, ReferenceEvaluator(model).run(None, wide))
        return np.asarray(result).astype(dtype)


def difference(found: Array, expected: Array, tolerance: float, size: float = 0.0) -> str:
    """The first element that differs, in words; empty if none does."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    left, right = (x.astype("float64") if _is_float(x) else x for x in (found, expected))
    with np.errstate(all="ignore"):
        equal = left == right
        if _is_float(found):
            tiny = float(ml_dtypes.finfo(found.dtype).tiny)
            equal |= np.isnan(left) & np.isnan(right)
            equal |= np.isfinite(right) & (np.abs(left - right) <= tolerance * (np.abs(right) + size) + tiny)
    if equal.all():
        return ""
    where = np.argwhere(~equal)
    listed = "; ".join(f"{at.tolist()}: {left[tuple(at)]} instead of {right[tuple(at)]}" for at in where[:3])
    return f"{len(where)} of {equal.size} differ: {listed}"


def _renamed(node: onnx.NodeProto, number: int, inputs: Mapping[str, Array]) -> onnx.NodeProto:
    """The node with the names of values as its case's own."""
    for names in (node.input, node.output):
        names[:] = [name if name in inputs or not name else f"{name}_{number}" for name in names]
    return node


def _in_type(node: onnx.NodeProto, kind: str) -> onnx.NodeProto:
    """The node with constants of float, and casts to it, in the type under test."""
    target = onnx.TensorProto.DataType.Value(kind.upper())
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.t.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(attribute.t)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(target)
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype)))
        elif node.op_type == "Cast" and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = target
    return node


def _type(array: Array) -> str:
    names = {"float32": "float", "float64": "double"}
    return names.get(str(array.dtype), str(array.dtype))


def _is_float(array: Array) -> bool:
    return "float" in str(array.dtype)


def windows(
    function: Callable[..., Array],
    x: Array,
    kernel: list[int],
    stride: int = 1,
    pads: int | list[int] = 0,
    step: int = 1,
) -> Array:
    """``function`` of the elements of each window of the last axes of ``x``, without those in the padding.

    ``function`` takes a vector of them and one of their indices in the flat ``x``.
    """
    rank = len(kernel)
    pads = [pads] * 2 * rank if isinstance(pads, int) else pads
    widths = [(0, 0)] * (x.ndim - rank) + list(zip(pads[:rank], pads[rank:], strict=True))
    data, index = np.pad(x, widths), np.pad(np.arange(x.size).reshape(x.shape), widths, constant_values=-1)
    seen = tuple((size - 1) * step + 1 for size in kernel)
    axes = tuple(range(x.ndim - rank, x.ndim))
    chosen: Any = (..., *[slice(None, None, stride)] * rank, *[slice(None, None, step)] * rank)
    views = [np.lib.stride_tricks.sliding_window_view(a, seen, axes)[chosen] for a in (data, index)]
    outer = views[0].shape[: x.ndim]
    pairs = zip(*(view.reshape(-1, np.prod(kernel)) for view in views), strict=True)
    return np.array([function(values[at >= 0], at[at >= 0]) for values, at in pairs]).reshape(outer)
