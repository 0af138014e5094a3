"""Functions of a model that are written for other opsets than the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.frontend.onnx_execution import evaluated, parsed
from tkc.errors import UnsupportedModelError
from tkc.frontend import import_model

RANDOM = np.random.default_rng(0)


def _model(
    body: str, of_functions: int, of_model: int, more: str = "", graph: str = "y = local.f(x)"
) -> onnx.ModelProto:
    """A model that calls a function of this body."""
    functions = f'<domain: "local", opset_import: ["": {of_functions}]> f (X) => (Y) {{ {body} }} {more}'
    return parsed(f"g (float[n, 3, 4] x) => (float[n, 3, 4] y) {{ {graph} }}", of_model, functions, ', "local": 1')


def _softmax(x: np.ndarray, *axes: int) -> np.ndarray:
    exponentials = np.exp(x - x.max(axes, keepdims=True))
    return exponentials / exponentials.sum(axes, keepdims=True)


X = RANDOM.standard_normal((2, 3, 4), np.float32)

CASES: dict[str, tuple[onnx.ModelProto, np.ndarray]] = {
    "an operator that is the same": (_model("Y = Relu(X)", 14, 18), np.maximum(X, 0)),
    "one of a newer opset that is the same": (_model("Y = Relu(X)", 21, 18), np.maximum(X, 0)),
    "one that has changed": (_model("Y = Softmax<axis = 1>(X)", 11, 18), _softmax(X, 1, 2)),
    "its default has changed": (_model("Y = Softmax(X)", 11, 18), _softmax(X, 1, 2)),
    "one of a newer opset that has changed": (_model("Y = Softmax<axis = 1>(X)", 13, 11), _softmax(X, 1)),
    "one that only the newer opset has": (
        _model("Y = Swish(X)", 24, 18, graph="z = local.f(x) y = Relu(z)"),
        np.maximum(X / (1 + np.exp(-X)), 0),
    ),
    "an attribute that is an input now": (
        _model("S = ReduceSum<axes = [1], keepdims = 1>(X) Y = Sub(X, S)", 11, 18),
        X - X.sum(1, keepdims=True),
    ),
    "in a branch": (
        _model(
            "S = ReduceMax<keepdims = 0>(X) Z = Constant<value_float = 0.0>() C = Greater(S, Z) "
            "Y = If(C) <then_branch = a () => (float[p, q, r] t) { t = Softmax(X) }, "
            "else_branch = b () => (float[p, q, r] e) { e = Neg(X) }>",
            12,
            18,
        ),
        _softmax(X, 1, 2),
    ),
    "in a function that a function calls, twice": (
        parsed(
            "g (float[n, 3, 4] x) => (float[n, 3, 4] y) { z = local.f<k = 2>(x) y = local.f<k = 1>(z) }",
            18,
            '<domain: "local", opset_import: ["": 13, "local": 1]> f <k> (X) => (Y) '
            "{ T = Softmax<axis = 0>(X) Y = local.h<k: int = @k>(T) }"
            '<domain: "local", opset_import: ["": 11]> h <k> (X) => (Y) { T = Softmax<axis: int = @k>(X) Y = Neg(T) }',
            ', "local": 1',
        ),
        -_softmax(_softmax(-_softmax(_softmax(X, 0), 2), 0), 1, 2),
    ),
    "a function that nothing calls": (
        _model("Y = Relu(X)", 18, 18, '<domain: "local", opset_import: ["": 99]> h (X) => (Y) { Y = Gone(X) }'),
        np.maximum(X, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_another_opset(name: str) -> None:
    """Compute what their own opset says."""
    model, expected = CASES[name]
    np.testing.assert_allclose(evaluated(model, X)[0], expected, 1e-5, 1e-6)


def test_opsets_that_only_functions_import() -> None:
    """The model itself has no operator of the standard."""
    model = _model("Y = Softmax<axis = 1>(X)", 11, 18)
    del model.opset_import[0]
    np.testing.assert_allclose(evaluated(model, X)[0], _softmax(X, 1, 2), 1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        # Which the model's own operator keeps from being one of opset 20.
        (
            _model("Y = Gelu(X)", 20, 12, graph="z = Softmax(x) y = local.f(z)"),
            r"opset 12(.|\n)*'local\.f'(.|\n)*version 20(.|\n)*'Y' \(Gelu\)(.|\n)*one opset",
        ),
        (_model("Y = Softmax(X)", 6, 18), r"'local\.f'.* version 6 .*'Y' \(Softmax\).*at least 7"),
        (_model("Y = Relu(X)", 99, 18), r"'local\.f'.*opset 99.*newer onnx"),
    ],
)
def test_functions_that_cannot_be_converted(model: onnx.ModelProto, message: str) -> None:
    """Are refused by name, with what changed between the opsets."""
    with pytest.raises(UnsupportedModelError, match=message):
        import_model(model)


def test_functions_of_another_version_of_a_domain() -> None:
    """Of operators that onnx converts in its standard domain alone."""
    functions = """<domain: "local", opset_import: ["ai.onnx.ml": 1, "": 18]> f (X) => (Y) {
        Y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1>(X)
    }"""
    model = parsed(
        "g (float[n, 3] x) => (float[n, 1] y) { y = local.f(x) }", 18, functions, ', "local": 1, "ai.onnx.ml": 3'
    )
    with pytest.raises(UnsupportedModelError, match=r"'local\.f'.* version 1 .*'ai\.onnx\.ml'.* for 3.*TreeEnsemble"):
        import_model(model)
