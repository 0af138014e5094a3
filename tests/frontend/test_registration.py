"""Converters that are registered from outside of TKC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.export import Dim
from tvm import relax

import tkc
from tests.frontend.whole_models import called, compiled
from tkc.frontend import registered
from tkc.frontend.onnx import converters as onnx_converters
from tkc.frontend.torch import converters

LIBRARY = torch.library.Library("tkctest", "FRAGMENT")
LIBRARY.define("halves(Tensor x, int dim=0, *, bool swapped=False) -> (Tensor, Tensor)")
LIBRARY.impl("halves", lambda x, dim=0, *, swapped=False: _halves(x, dim, swapped), "CompositeImplicitAutograd")
LIBRARY.define("twice.Tensor(Tensor x) -> Tensor")
LIBRARY.impl("twice.Tensor", lambda x: x + x, "CompositeImplicitAutograd")
LIBRARY.define("write(Tensor(a!) x) -> ()")


def _halves(x: torch.Tensor, dim: int, swapped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.sin(), x.cos()) if not swapped else (x.cos(), x.sin())


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    tables: list[tuple[Any, Any]] = [
        (registered._FUNCTIONS, dict(registered._FUNCTIONS)),
        (converters.CONVERTERS, dict(converters.CONVERTERS)),
        (converters.KEPT_OF_OTHERS, set(converters.KEPT_OF_OTHERS)),
        (onnx_converters.CONVERTERS, dict(onnx_converters.CONVERTERS)),
    ]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


def _register_halves() -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []

    @tkc.converter("tkctest::halves")
    def halves(b: Any, x: relax.Expr, dim: int, swapped: bool) -> list[relax.Expr]:
        seen.append((dim, swapped, x.struct_info.dtype))
        if dim:
            raise b.unsupported(f"dim={dim} is not supported.")
        return [relax.op.sin(x), relax.op.cos(x)][:: -1 if swapped else 1]

    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_converter_takes_the_arguments_of_the_schema_and_returns_several_results(dtype: torch.dtype) -> None:
    """Of an operator that PyTorch would decompose, for symbolic sizes, with defaults."""
    seen = _register_halves()

    def function(x: torch.Tensor) -> Any:
        return torch.ops.tkctest.halves(x), torch.ops.tkctest.halves(x.t(), swapped=True), torch.unfold_copy(x, 0, 1, 1)

    x = torch.randn(3, 4).to(dtype)
    exe = compiled(function, x, dynamic_shapes={"inputs": ({0: Dim("n", min=1, max=9)},)})
    for rows in (x, x[:1]):
        for found, expected in zip(exe(rows)[0] + exe(rows)[1], function(rows)[0] + function(rows)[1], strict=True):
            torch.testing.assert_close(found, expected)
    assert [(dim, swapped) for dim, swapped, _ in seen] == [(0, False), (0, True)]
    assert "tkctest::halves" not in called(exe)


def test_what_a_converter_refuses_is_called_in_pytorch_or_refused_by_name() -> None:
    """With the converter's reason."""
    _register_halves()

    def function(x: torch.Tensor) -> Any:
        return torch.ops.tkctest.halves(x, 1)

    x = torch.randn(3)
    exe = compiled(function, x)
    assert called(exe) == {"tkctest::halves": 1}
    torch.testing.assert_close(exe(x), function(x))
    with pytest.raises(tkc.UnsupportedModelError, match=r"tkctest.halves.default \(.*dim=1 is not supported"):
        compiled(function, x, fallback=False)


def test_overloads_and_replaced_converters() -> None:
    """An overload by its name; one of TKC's own only where that is said."""

    def sine(b: Any, x: relax.Expr) -> relax.Expr:
        return relax.op.sin(x)

    tkc.converter("tkctest::twice.Tensor")(sine)
    with pytest.raises(tkc.UsageError, match=r"tkctest::twice.Tensor has a converter already; with replace=True"):
        tkc.converter("tkctest::twice.Tensor")(sine)
    with pytest.raises(tkc.UsageError, match="aten::exp has a converter already"):
        tkc.converter("aten::exp")(sine)
    assert tkc.converter("aten::exp", replace=True)(sine) is sine
    x = torch.randn(3)
    exe = compiled(lambda x: (torch.ops.tkctest.twice.Tensor(x), x.exp(), x.tan()), x)
    for found, expected in zip(exe(x), (x.sin(), x.sin(), x.tan()), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["mylib.op", "mylib::", "::op", "mylib::op.a.b", "my-lib::op", "", 3])
def test_names_that_are_none(name: Any) -> None:
    """Are errors when the decorator is made."""
    with pytest.raises(tkc.UsageError, match="is no name of a PyTorch operator"):
        tkc.converter(name)
    if name not in ("my-lib::op",):
        with pytest.raises(tkc.UsageError, match="is no name of an ONNX operator"):
            tkc.onnx_converter(name)


@pytest.mark.parametrize("decorator", [tkc.converter, tkc.onnx_converter])
def test_what_is_no_function(decorator: Callable[..., Any]) -> None:
    """A function without arguments, a class, a value: nothing is registered."""
    before = dict(registered.registered())
    for wrong in (lambda: None, int, "function", lambda **named: None):
        with pytest.raises(tkc.UsageError, match=r"tkc.*converter"):
            decorator("mylib::op")(wrong)
    assert registered.registered() == before


def test_operators_that_write_into_their_arguments() -> None:
    """Have no converter."""
    with pytest.raises(tkc.UsageError, match="tkctest::write writes into its arguments"):
        tkc.converter("tkctest::write")


def _model(operator: str, domain: str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y", "z"], domain=domain, scale=2.5)],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "yz"],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_an_onnx_converter(tmp_path: Path) -> None:
    """Of a domain of its own, with attributes, two outputs and symbolic sizes; refused by name before it is there."""
    onnx.save(_model("Both", "com.acme"), tmp_path / "model.onnx")
    with pytest.raises(tkc.UnsupportedModelError, match="Both"):
        tkc.compile(tmp_path / "model.onnx", kernels="none", database=False)

    @tkc.onnx_converter("com.acme::Both")
    def both(node: Any) -> list[relax.Expr]:
        x = node.tensor(0)
        return [relax.op.multiply(x, relax.const(node.attribute("scale"), "float32")), relax.op.negative(x)]

    exe = tkc.compile(tmp_path / "model.onnx", kernels="none", database=False)
    for x in (torch.randn(4, 3), torch.randn(1, 3)):
        found, negative = exe(x)
        torch.testing.assert_close((found, negative), (x * 2.5, -x))
    with pytest.raises(tkc.UsageError, match=r"com.acme::Both has a converter already"):
        tkc.onnx_converter("com.acme::Both")(both)
    for taken in ("ai.onnx::Relu", "com.microsoft::BiasGelu", "ai.onnx::LSTM"):
        with pytest.raises(tkc.UsageError, match="has a converter already"):
            tkc.onnx_converter(taken)(both)


def test_registered_code_is_part_of_what_shapes_a_model() -> None:
    """A function that closes over something is never taken for that of another process."""
    _register_halves()
    (hashed,) = (value for name, value in registered.registered().items() if name == "tkctest::halves")

    def sine(b: Any, x: relax.Expr) -> relax.Expr:
        return relax.op.sin(x)

    tkc.converter("tkctest::twice.Tensor")(sine)
    assert registered.registered()["tkctest::twice.Tensor"] != hashed  # `halves` closes over a list
