"""NaN, infinities, zeros of both signs and large numbers through every ONNX operator that may lose them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tkc
from tests.frontend.onnx_execution import evaluated, parsed
from tests.frontend.onnx_special_cases import BINARY, GRID, INTEGERS, POOLING, REDUCTIONS, UNARY
from tests.frontend.onnx_special_numbers import TYPES, Array, failures, model_of, pairs, rows, special

WHOLE = {"int64": np.int64, "int32": np.int32, "int8": np.int8, "uint8": np.uint8}


def inputs_of(family: str, dtype: Any) -> dict[str, Array]:
    """What a family is tried on."""
    if family == "UNARY":
        return {"x": special(dtype)}
    if family == "BINARY":
        return dict(zip("xy", pairs(dtype), strict=True))
    if family == "GRID":
        nan, inf = np.nan, np.inf
        image = np.array([1, -2, nan, 4, inf, 6, 7, 0.5, 9, -3, 11, 12, 13, 4, 5, 6, 7, 8, 9, 10], dtype)
        axis = np.array([nan, inf, -inf, 1e4, -1, 0.25, 3], dtype)
        points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
        return {"x": image.reshape(1, 1, 4, 5), "y": points[None]}
    if family == "INTEGERS":
        info = np.iinfo(dtype)
        x = np.array([info.min, info.max, 0, 1, 2, 5, 7, info.max, info.min, 3], dtype)
        return {"x": x, "y": x[::-1].copy()}
    return {"x": rows(dtype) if family == "REDUCTIONS" else rows(dtype).reshape(2, 2, 4, 5)}


FLOATS = {"UNARY": UNARY, "BINARY": BINARY, "REDUCTIONS": REDUCTIONS, "POOLING": POOLING, "GRID": GRID}


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "family, kind", [(family, kind) for family in FLOATS for kind in TYPES if family != "GRID" or kind != "bfloat16"]
)
def test_floats(family: str, kind: str) -> None:
    """Every operator gives what NumPy, or ONNX's reference, gives in float64."""
    assert failures(FLOATS[family], kind, **inputs_of(family, TYPES[kind])) == {}


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", WHOLE)
def test_integers(kind: str) -> None:
    """Extrema, bounds and comparisons of both ends of a type."""
    assert failures(INTEGERS, kind, **inputs_of("INTEGERS", WHOLE[kind])) == {}


ON_GPU = {
    "UNARY": ("LeakyRelu flat", "Elu", "Celu", "Sinh", "Relu", "Clip", "Round"),
    "BINARY": ("Max", "Min of three", "Pow", "Where not"),
    "REDUCTIONS": ("ReduceMax 1", "ArgMax 1 1", "ReduceLogSumExp", "Hardmax 1", "LpNormalization 2", "TopK 1 values"),
    "POOLING": ("MaxPool padded", "MaxPool indices", "LpPool", "LRN", "AveragePool"),
    "GRID": ("linear zeros False",),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("family", FLOATS)
@pytest.mark.daily(2)
def test_compiles_for_a_gpu(family: str) -> None:
    """A few of each family, which no GPU runs here: no operator is refused, and nvcc takes the code."""
    chosen = {name: FLOATS[family][name] for name in ON_GPU[family]}
    model = model_of(chosen, "float", inputs_of(family, np.float32))
    executable = tkc.compile(model, target="cuda:sm_90a", kernels="none")
    assert len(executable.signature.outputs) == len(chosen)


def test_quantization_saturates() -> None:
    """Infinity and numbers beyond the type become its ends."""
    x = np.array([np.inf, -np.inf, 1e30, -1e30, 0.5, -0.5, 1.25], np.float32)
    for kind in ("uint8", "int8", "int16"):
        graph = f"g (float[7] x, float s, {kind} z) => ({kind}[7] y) {{ y = QuantizeLinear(x, s, z) }}"
        (found,) = evaluated(graph, x, np.array(0.5, np.float32), np.array(3, kind))
        ends = np.iinfo(kind)
        assert found.tolist() == [ends.max, ends.min, ends.max, ends.min, 4, 2, 5]


def test_quantization_of_zeros_divides_by_nothing() -> None:
    """Their range is empty; ONNX Runtime's scale is then 1."""
    graph = "g (float[n] x) => (uint8[n] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }"
    assert [output.tolist() for output in evaluated(graph, np.zeros(3, np.float32))] == [[0, 0, 0], 1.0, 0]


def test_slopes_of_old_opsets_belong_to_channels() -> None:
    """Before opset 7 they did not broadcast, so that as many columns as channels make no difference."""
    model = parsed("g (float[1, 2, 1, 2] x, float[2] s) => (float[1, 2, 1, 2] y) { y = PRelu(x, s) }", opset=6)
    x = -np.ones((1, 2, 1, 2), np.float32)
    (found,) = evaluated(model, x, np.array([2, 3], np.float32))
    assert found.ravel().tolist() == [-2, -2, -3, -3]
