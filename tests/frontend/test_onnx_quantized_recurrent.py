"""ONNX Runtime's dynamically quantized LSTM against a few lines of NumPy, which quantize as it does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.onnx_execution import compiled
from tkc.errors import UnsupportedModelError

FEATURES = 5

_INPUTS = ("x", "w", "r", "b", "l", "h", "c", "p", "ws", "wz", "rs", "rz")


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """The codes of a range that holds 0, less their zero point, and the scale."""
    low, high = np.float32(min(x.min(initial=0), 0)), np.float32(max(x.max(initial=0), 0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype("int64") - int(zero), scale


@dataclass(frozen=True)
class Layer:
    """A layer of symbolic length and batch, and which inputs it takes."""

    hidden: int
    direction: str = "forward"
    codes: str = "int8"
    by_column: bool = False
    ragged: bool = False
    states: bool = False
    peepholes: bool = False
    bias: bool = True
    zeros: bool = True
    coupled: int = 0

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.direction == "bidirectional" else 1

    def weights(self) -> dict[str, np.ndarray]:
        """The initializers, always the same."""
        random, limits = np.random.default_rng(5), np.iinfo(self.codes)
        count, width = self.directions, 4 * self.hidden
        scales = (count, width) if self.by_column else (count,)
        found = {
            name: random.integers(limits.min, limits.max + 1, (count, rows, width)).astype(self.codes)
            for name, rows in (("w", FEATURES), ("r", self.hidden))
        }
        found |= {name: (random.random(scales) / 200 + 0.001).astype("float32") for name in ("ws", "rs")}
        if self.zeros:
            found |= {name: random.integers(limits.min, limits.max, scales).astype(self.codes) for name in ("wz", "rz")}
        found |= {"b": random.normal(size=(count, 2 * width)).astype("float32")} if self.bias else {}
        return found | ({"p": random.normal(size=(count, 3 * self.hidden)).astype("float32")} if self.peepholes else {})

    def model(self) -> onnx.ModelProto:
        """The layer as a model of one node."""
        weights, state = self.weights(), [self.directions, "batch", self.hidden]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", FEATURES])]
        inputs += [helper.make_tensor_value_info("l", TensorProto.INT32, ["batch"])] if self.ragged else []
        if self.states:
            inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, state) for name in ("h", "c")]
        known = {*weights, *(value.name for value in inputs)}
        names = [name if name in known else "" for name in _INPUTS]
        attributes = {"hidden_size": self.hidden, "direction": self.direction, "input_forget": self.coupled}
        node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], domain="com.microsoft", **attributes)
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
            for name, rank in (("y", 4), ("y_h", 3), ("y_c", 3))
        ]
        tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph([node], "layer", inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def inputs(self, steps: int, batch: int) -> dict[str, np.ndarray]:
        """What a call takes."""
        random = np.random.default_rng(steps)
        found = {"x": random.normal(size=(steps, batch, FEATURES)).astype("float32")}
        if self.ragged:
            found["l"] = random.integers(0, steps, batch).astype("int32")
            found["x"][found["l"].max() :] = 100.0  # of which no range may know
        shape = (self.directions, batch, self.hidden)
        return found | {name: random.normal(size=shape).astype("float32") for name in ("hc" if self.states else "")}

    def expected(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Its outputs, a direction and a step at a time."""
        weights, hidden = self.weights(), self.hidden
        steps, batch = given["x"].shape[:2]
        lengths = given.get("l", np.full(batch, steps))
        states = np.zeros((steps, self.directions, batch, hidden), "float32")
        last = np.zeros((2, self.directions, batch, hidden), "float32")

        def product(x: np.ndarray, name: str, d: int) -> np.ndarray:
            codes, scale = quantized(x)
            zero = weights[name + "z"][d].astype("int64") if self.zeros else 0
            return (codes @ (weights[name][d].astype("int64") - zero)) * (scale * weights[name + "s"][d])

        for d in range(self.directions):
            h, c = (given[name][d] if self.states else np.zeros((batch, hidden), "float32") for name in "hc")
            x = np.where(np.arange(steps)[:, None, None] < lengths.max(initial=0), given["x"], 0)
            gates = product(x, "w", d) + (weights["b"][d].reshape(2, -1).sum(0) if self.bias else 0)
            peepholes = weights["p"][d].reshape(3, hidden) if self.peepholes else np.zeros((3, hidden))
            for step in range(steps):
                alive = step < lengths
                back = self.direction == "reverse" or d == 1
                t = np.where(alive, lengths - 1 - step if back else step, 0)
                of_state = product(np.where((step <= lengths)[:, None], h, 0), "r", d)
                i, o, f, g = np.split(gates[t, np.arange(batch)] + of_state, 4, -1)
                i = 1 / (1 + np.exp(-(i + peepholes[0] * c)))
                f = 1 - i if self.coupled else 1 / (1 + np.exp(-(f + peepholes[2] * c)))
                new_c = f * c + i * np.tanh(g)
                new_h = np.tanh(new_c) / (1 + np.exp(-(o + peepholes[1] * new_c)))
                h, c = (np.where(alive[:, None], new, old).astype("float32") for new, old in ((new_h, h), (new_c, c)))
                states[t[alive], d, alive] = h[alive]
            last[:, d] = np.where((lengths > 0)[:, None], (h, c), 0)
        return [states, *last]


@pytest.mark.daily(6)
@pytest.mark.parametrize("layer", [
    Layer(8), Layer(16, "bidirectional", by_column=True, ragged=True, states=True),
    Layer(5, "reverse", "uint8", ragged=True, peepholes=True, bias=False), Layer(3, codes="uint8", coupled=1),
    Layer(7, "bidirectional", zeros=False, peepholes=True, states=True), Layer(48, "bidirectional", ragged=True),
], ids=str)  # fmt: skip
def test_quantized_layers(layer: Layer) -> None:
    """At two lengths and batches; what is behind a batch's longest sequence changes nothing."""
    call = compiled(layer.model())
    for steps, batch in ((1, 1), (7, 3)):
        given = layer.inputs(steps, batch)
        for found, expected in zip(call(*given.values()), layer.expected(given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_of_other_shapes_are_refused() -> None:
    """Those of an LSTM, which are not transposed."""
    model = Layer(8).model()
    for tensor in model.graph.initializer:
        if tensor.name == "r":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((1, 32, 8), "int8"), "r"))
    with pytest.raises(UnsupportedModelError, match=r"DynamicQuantizeLSTM.* expected \[1, 8, 32\]"):
        compiled(model)
