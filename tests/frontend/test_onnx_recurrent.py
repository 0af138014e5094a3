"""LSTM, GRU and RNN against a few lines of NumPy: every direction, length, activation and initial state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tkc
from tests.frontend.onnx_execution import compiled
from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.importer import import_onnx

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
ALPHA, BETA = 0.3, 0.6
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Affine": lambda x: ALPHA * x + BETA,
    "Elu": lambda x: np.where(x < 0, ALPHA * np.expm1(x), x),
    "HardSigmoid": lambda x: np.clip(ALPHA * x + BETA, 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, ALPHA * x, x),
    "Relu": lambda x: np.maximum(x, 0),
    "ScaledTanh": lambda x: ALPHA * np.tanh(BETA * x),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Tanh": np.tanh,
    "ThresholdedRelu": lambda x: np.where(x > ALPHA, x, 0),
}
FEATURES = 3


@dataclass(frozen=True)
class Layer:
    """A recurrent layer of symbolic length and batch, and which inputs it takes."""

    kind: str
    hidden: int
    direction: str = "forward"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    lengths: bool = False
    states: bool = False
    peepholes: bool = False
    bias: bool = True
    dtype: str = "float32"

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def state_names(self) -> list[str]:
        """The inputs with the first state."""
        return ["h0", *(["c0"] if self.kind == "LSTM" else [])] if self.states else []

    def weights(self) -> dict[str, np.ndarray]:
        """The initializers, always the same."""
        random = np.random.default_rng(3)
        count, gates = self.directions, GATES[self.kind] * self.hidden
        shapes = {"w": (count, gates, FEATURES), "r": (count, gates, self.hidden)}
        shapes |= {"b": (count, 2 * gates)} if self.bias else {}
        shapes |= {"p": (count, 3 * self.hidden)} if self.peepholes else {}
        return {name: (random.normal(size=shape) / 2).astype(self.dtype) for name, shape in shapes.items()}

    def model(self) -> onnx.ModelProto:
        """The layer as a model of one node."""
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        first = self.attributes.get("layout", 0)
        x = ["batch", "steps"] if first else ["steps", "batch"]
        state = ["batch", self.directions] if first else [self.directions, "batch"]
        inputs = [helper.make_tensor_value_info("x", element, [*x, FEATURES])]
        if self.lengths:
            inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
        inputs += [helper.make_tensor_value_info(name, element, [*state, self.hidden]) for name in self.state_names]
        given = ["x", "w", "r", "b" if self.bias else "", "lengths" if self.lengths else ""]
        given += self.state_names
        if self.peepholes:
            given += [*[""] * (7 - len(given)), "p"]
        names = ["y", "last", *(["cell"] if self.kind == "LSTM" else [])]
        attributes = {"hidden_size": self.hidden, "direction": self.direction, **self.attributes}
        node = helper.make_node(self.kind, given, names, **attributes)
        outputs = [
            helper.make_tensor_value_info(name, element, [f"{name}_{i}" for i in range(3 + (name == "y"))])
            for name in names
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights().items()]
        graph = helper.make_graph([node], "layer", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

    def inputs(self, steps: int, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
        """What a call takes, with time before the batch."""
        random = np.random.default_rng(seed)
        found = {"x": random.normal(size=(steps, batch, FEATURES)).astype(self.dtype)}
        if self.lengths:
            found["lengths"] = random.integers(0, steps + 1, batch).astype("int32")
        shape = (self.directions, batch, self.hidden)
        return found | {name: random.normal(size=shape).astype(self.dtype) for name in self.state_names}

    def expected(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Its outputs, step by step and sequence by sequence."""
        steps, batch = inputs["x"].shape[:2]
        states = np.zeros((steps, self.directions, batch, self.hidden))
        last = np.zeros((2, self.directions, batch, self.hidden))
        lengths = inputs.get("lengths", np.full(batch, steps))
        for d, b in itertools.product(range(self.directions), range(batch)):
            h, c = (inputs[n][d, b].astype("float64") if n in inputs else np.zeros(self.hidden) for n in ("h0", "c0"))
            order = range(lengths[b])
            for t in reversed(order) if self.direction == "reverse" or d else order:
                h, c = self._step(d, inputs["x"][t, b].astype("float64"), h, c)
                states[t, d, b] = h
            if lengths[b]:
                last[:, d, b] = h, c
        return [states, *last][: 3 if self.kind == "LSTM" else 2]

    def _step(self, d: int, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = {name: array[d].astype("float64") for name, array in self.weights().items()}
        gates = GATES[self.kind]
        wb, rb = np.split(weights.get("b", np.zeros(2 * gates * self.hidden)), 2)
        of_x, of_h = np.split(weights["w"] @ x + wb, gates), np.split(weights["r"] @ h + rb, gates)
        names = self.attributes.get("activations", DEFAULTS[self.kind] * self.directions)
        each = len(DEFAULTS[self.kind])
        functions = [FUNCTIONS[name] for name in names[d * each : d * each + each]]
        limit = self.attributes.get("clip", np.inf)
        f, g = (lambda v, use=use: use(np.clip(v, -limit, limit)) for use in (functions[0], functions[-1]))
        if self.kind == "RNN":
            return f(of_x[0] + of_h[0]), c
        if self.kind == "GRU":
            z, r = f(of_x[0] + of_h[0]), f(of_x[1] + of_h[1])
            part = slice(2 * self.hidden, None)
            reset = r * of_h[2]
            if not self.attributes.get("linear_before_reset"):
                reset = weights["r"][part] @ (r * h) + rb[part]
            return (1 - z) * g(of_x[2] + reset) + z * h, c
        i, o, forget, candidate = (a + b for a, b in zip(of_x, of_h, strict=True))
        pi, po, pf = np.split(weights.get("p", np.zeros(3 * self.hidden)), 3)
        g = lambda v: functions[1](np.clip(v, -limit, limit))  # noqa: E731
        i = f(i + pi * c)
        forget = 1 - i if self.attributes.get("input_forget") else f(forget + pf * c)
        c = forget * c + i * g(candidate)
        return f(o + po * c) * functions[2](c), c


def check(layer: Layer, *sizes: tuple[int, int]) -> None:
    """The compiled layer agrees at each number of steps and sequences."""
    call = compiled(layer.model())
    first = bool(layer.attributes.get("layout"))
    for seed, (steps, batch) in enumerate(sizes):
        inputs = layer.inputs(steps, batch, seed)
        expected = layer.expected(inputs)
        given = list(inputs.values())
        if first:
            given = [np.swapaxes(array, 0, 1) if array.ndim == 3 else array for array in given]
            expected = [expected[0].transpose(2, 0, 1, 3), *(np.swapaxes(state, 0, 1) for state in expected[1:])]
        tolerance = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-6}[layer.dtype]
        for output, reference in zip(call(*given), expected, strict=True):
            np.testing.assert_allclose(output, reference, tolerance, tolerance)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("kind", "direction"), [*((kind, "bidirectional") for kind in GATES), ("LSTM", "reverse")])
def test_each_direction_with_lengths_and_states(kind: str, direction: str) -> None:
    """Sequences of a batch have lengths of their own, 0 among them; the reverse begins at each one's end."""
    check(Layer(kind, 5, direction, lengths=True, states=True), (4, 3), (1, 1), (7, 2))


@pytest.mark.daily(1)
@pytest.mark.parametrize("hidden", [1, 48])
def test_hidden_sizes_of_one_and_of_whole_vectors(hidden: int) -> None:
    """A size that no vector divides, and one of several vectors."""
    check(Layer("LSTM", hidden, bias=False), (3, 2))
    check(Layer("GRU", hidden, bias=False), (3, 2))


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats(dtype: str) -> None:
    """Numbers of 16 bits are computed in float32, those of 64 bits as they are."""
    check(Layer("LSTM", 4, states=True, dtype=dtype), (3, 2))


@pytest.mark.daily(1)
@pytest.mark.parametrize("layer", [
    Layer("LSTM", 4, "bidirectional", {"clip": 0.4}, states=True, peepholes=True),
    Layer("LSTM", 4, attributes={"input_forget": 1}, peepholes=True),
    Layer("GRU", 4, "bidirectional", {"clip": 0.4, "linear_before_reset": 1}, lengths=True, states=True),
    Layer("LSTM", 4, "bidirectional", {"layout": 1}, states=True),
    Layer("GRU", 4, attributes={"layout": 1, "linear_before_reset": 1}),
], ids=str)  # fmt: skip
def test_variants(layer: Layer) -> None:
    """Clipping, peepholes, coupled gates, a reset gate behind the product, batch before time."""
    check(layer, (5, 3))


@pytest.mark.daily(1)
@pytest.mark.nvcc
@pytest.mark.parametrize("kind", GATES)
def test_compiles_for_cuda(kind: str) -> None:
    """Where a function has no memory of its own beyond registers; each sequence of each direction is a block."""
    model = Layer(kind, 20, "bidirectional", lengths=True, states=True).model()
    tkc.compile(model, target="cuda:sm_90a", kernels="none", database=False)


@pytest.mark.parametrize("names", [list(FUNCTIONS)[:6], list(FUNCTIONS)[5:]], ids="-".join)
def test_every_activation(names: list[str]) -> None:
    """Three in each direction, whose parameters stand in one list for those that have them."""
    with_alpha = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"}
    with_beta = {"Affine", "HardSigmoid", "ScaledTanh"}
    attributes = {
        "activations": names,
        "activation_alpha": [ALPHA] * len(with_alpha & set(names)),
        "activation_beta": [BETA] * len(with_beta & set(names)),
    }
    check(Layer("LSTM", 4, "bidirectional", attributes), (3, 2))


def test_parameters_belong_to_the_activations_that_have_them() -> None:
    """Tanh takes none of the list."""
    layer = Layer(
        "GRU",
        4,
        attributes={"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [ALPHA, ALPHA],
                    "activation_beta": [BETA]},
    )  # fmt: skip
    check(layer, (4, 2))


def test_nan_stays_in_its_sequence() -> None:
    """NaN reaches every later step of its own sequence, through Relu too, and no other."""
    call = compiled(Layer("RNN", 4, attributes={"activations": ["Relu"]}).model())
    x = np.ones((3, 2, FEATURES), "float32")
    x[1, 0, 0] = np.nan
    isnan = np.isnan(call(x)[0][:, 0])
    np.testing.assert_array_equal(isnan.all(-1), [[False, False], [True, False], [True, False]])
    np.testing.assert_array_equal(isnan.any(-1), isnan.all(-1))


def test_what_cannot_be_told_is_refused() -> None:
    """ScaledTanh without its parameters, for which ONNX Runtime has zeros; an activation that is none."""
    for name in ("ScaledTanh", "Gelu"):
        with pytest.raises(UnsupportedModelError, match=f"RNN.*{name}"):
            import_onnx(Layer("RNN", 4, attributes={"activations": [name]}).model())
