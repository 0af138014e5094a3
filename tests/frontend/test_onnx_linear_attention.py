"""Linear attention and causal convolutions with a state, against ONNX's reference, in pieces and as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

import tkc
from tests.frontend.onnx_execution import compiled
from tkc.errors import InputError, UnsupportedModelError

OPSET = 27
TOLERANCES = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def model(
    operator: str, inputs: Mapping[str, tuple[str, list[Any]]], outputs: list[tuple[str, int]], **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; an input whose name starts with a minus is left out."""

    def declared(name: str, dtype: str, shape: list[Any]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    names = ["" if name.startswith("-") else name for name in inputs]
    results = [f"y{i}" for i in range(len(outputs))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, results, **attributes)],
        "g",
        [declared(name, *inputs[name]) for name in names if name],
        [declared(name, dtype, [None] * rank) for name, (dtype, rank) in zip(results, outputs, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13)


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Equal types and shapes, and numbers as close as the type's rounding allows."""
    for left, right in zip(found, expected, strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        scale = float(np.abs(right.astype("float64")).max(initial=1))
        tolerance = TOLERANCES[str(right.dtype)] * scale
        np.testing.assert_allclose(left.astype("float64"), right.astype("float64"), rtol=0, atol=tolerance)


def attention(
    rule: str, heads: tuple[int, int], keys: int, values: int, wide: bool, rates: int, dtypes: tuple[str, str]
) -> onnx.ModelProto:
    """Linear attention of symbolic batch and length, with a past state."""
    queries, own = heads
    dtype, kept = dtypes
    decays, corrects = "gated" in rule, "delta" in rule
    inputs = {
        "q": (dtype, ["B", "T", queries * keys]),
        "k": (dtype, ["B", "T", own * keys]),
        "v": (dtype, ["B", "T", own * values]),
        "s": (kept, ["B", own, keys, values]),
        "d" if decays else "-d": (dtype, ["B", "T", own * (keys if wide else 1)]),
        "b" if corrects else "-b": (dtype, ["B", "T", rates]),
    }
    sizes = {"q_num_heads": queries, "kv_num_heads": own}
    return model("LinearAttention", inputs, [(dtype, 3), (kept, 4)], update_rule=rule, **sizes)


def arrays(proto: onnx.ModelProto, **sizes: int) -> list[np.ndarray]:
    """Random inputs; decays are below 0, and rates from 0 to 1."""
    random, found = np.random.default_rng(7), []
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in tensor.shape.dim]
        array = random.normal(size=shape) / 2
        array = -abs(array) if value.name == "d" else 1 / (1 + np.exp(-array)) if value.name == "b" else array
        found.append(array.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return found


def reference(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What ONNX makes of it."""
    names = [value.name for value in proto.graph.input]
    found: list[np.ndarray] = onnx.reference.ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))
    return found


BF16 = np.dtype(ml_dtypes.bfloat16).name


@pytest.mark.daily(6)
@pytest.mark.parametrize(("rule", "heads", "keys", "values", "wide", "rates", "dtypes"), [
    ("gated_delta", (4, 2), 8, 16, False, 2, ("float32", "float32")),
    ("linear", (2, 2), 5, 3, False, 1, ("float16", "float32")),
    ("gated", (3, 1), 4, 6, True, 1, ("float32", "float32")),
    ("delta", (2, 2), 4, 24, False, 1, (BF16, BF16)),
    ("gated_delta", (1, 1), 1, 1, True, 1, ("float32", "float32")),
    ("gated_delta", (6, 3), 7, 5, True, 3, (BF16, "float32")),
])  # fmt: skip
def test_rules(
    rule: str, heads: tuple[int, int], keys: int, values: int, wide: bool, rates: int, dtypes: tuple[str, str]
) -> None:
    """Of one step and of several; the state has a type of its own."""
    proto = attention(rule, heads, keys, values, wide, rates, dtypes)
    call = compiled(proto)
    for batch, steps in ((1, 1), (2, 5)):
        inputs = arrays(proto, B=batch, T=steps)
        assert_equal(call(*inputs), reference(proto, inputs))


def test_a_sequence_in_two_parts() -> None:
    """The state of the first part, given to the second, is as good as the whole."""
    proto = attention("gated_delta", (4, 2), 4, 8, False, 2, ("float32", "float32"))
    call = compiled(proto)
    whole = arrays(proto, B=2, T=6)
    first = call(*(x if x.ndim == 4 else x[:, :2] for x in whole))
    second = call(*(first[1] if x.ndim == 4 else x[:, 2:] for x in whole))
    expected = reference(proto, whole)
    assert_equal([np.concatenate([first[0], second[0]], 1), second[1]], expected)


def test_attention_compiles_for_cuda() -> None:
    """Without a GPU."""
    tkc.compile(attention("gated_delta", (4, 2), 8, 16, True, 2, ("float16", "float32")), target="cuda:sm_90a")


@pytest.mark.parametrize(("change", "told"), [
    ({"update_rule": "gated"}, "takes no beta"), ({"update_rule": "other"}, "expected one of linear"),
    ({"q_num_heads": 3}, "expected a multiple"), ({"kv_num_heads": 4}, "expected"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(change: dict[str, Any], told: str) -> None:
    """Rules that are none, heads and inputs that do not fit them."""
    proto = attention("gated_delta", (4, 2), 8, 16, False, 2, ("float32", "float32"))
    (node,) = proto.graph.node
    kept = [attribute for attribute in node.attribute if attribute.name not in change]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in change.items())])
    with pytest.raises(UnsupportedModelError, match=told):
        compiled(proto)


@pytest.mark.daily(4)
@pytest.mark.parametrize(("taps", "activation", "dtype", "bias", "past"), [
    (4, "silu", "float32", True, True), (3, "none", BF16, False, True), (1, "swish", "float32", True, False),
    (5, "silu", "float16", False, False),
])  # fmt: skip
def test_causal_convolutions(taps: int, activation: str, dtype: str, bias: bool, past: bool) -> None:
    """Of inputs that are shorter than the state, and longer; of one tap there is no state."""
    inputs = {
        "x": (dtype, ["B", "C", "L"]),
        "w": (dtype, ["C", 1, taps]),
        "b" if bias else "-b": (dtype, ["C"]),
        "p" if past else "-p": (dtype, ["B", "C", taps - 1]),
    }
    proto = model("CausalConvWithState", inputs, [(dtype, 3), (dtype, 3)], activation=activation)
    call = compiled(proto)
    for batch, channels, length in ((1, 3, 1), (2, 4, 7)):
        given = arrays(proto, B=batch, C=channels, L=length)
        assert_equal(call(*given), reference(proto, given))
    if past:
        with pytest.raises(InputError):
            call(given[0][:, :2], *given[1:])
