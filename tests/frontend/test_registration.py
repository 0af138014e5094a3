"""Converters that are registered from outside of TKC."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.export import Dim
from tvm import relax, te

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
LIBRARY.define("double(Tensor x) -> Tensor")
LIBRARY.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
LIBRARY.define("parts(Tensor x) -> Tensor[]")
LIBRARY.impl("parts", lambda x: [x + 1, x + 2], "CompositeExplicitAutograd")
LIBRARY.define("places(Tensor x) -> Tensor")
LIBRARY.impl("places", lambda x: x.long(), "CompositeExplicitAutograd")


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


def _te(x: relax.Expr) -> te.Tensor:
    return te.compute((3,), lambda i: te.placeholder((3,))[i])


WRONG_RESULTS: dict[str, tuple[Callable[[relax.Expr], Any], str]] = {
    "nothing": (lambda x: None, "returned None where PyTorch has float32 [3]"),
    "list": (lambda x: [x, x], "returned a list of 2 where"),
    "list of one": (lambda x: [x], "returned a list of 1 where"),
    "relax tuple": (lambda x: relax.Tuple([x, x]), "returned a"),
    "number": (lambda x: 3, "returned the int 3 where"),
    "prim value": (lambda x: relax.PrimValue(3), "returned a relax.PrimValue, which is no tensor"),
    "shape": (lambda x: relax.ShapeExpr([3]), "returned a relax.ShapeExpr, which is no tensor"),
    "tensor": (lambda x: torch.ones(3), "returned a torch.Tensor where"),
    "te tensor": (_te, "returned a te.Tensor (emit_te"),
    "rank": (lambda x: relax.op.expand_dims(x, 0), "returned float32 [1, 3] where PyTorch has float32 [3]"),
    "shape of another": (lambda x: relax.op.concat([x, x]), "returned float32 [6] where PyTorch has float32 [3]"),
    "raises": (lambda x: x.absent, "raised AttributeError at its line"),
    "raises in tvm": (lambda x: relax.op.matmul(x, relax.const(1.0)), "raised "),
}


@pytest.mark.parametrize("used", [False, True], ids=["returned", "used"])
@pytest.mark.parametrize("wrong", WRONG_RESULTS)
def test_what_a_converter_returns_that_does_not_fit(wrong: str, used: bool) -> None:
    """Is an error of its author's, which names it, the operator's place, what came and what was expected."""
    make, message = WRONG_RESULTS[wrong]

    @tkc.converter("tkctest::double")
    def mistaken(b: Any, x: relax.Expr) -> Any:
        return make(x)

    with pytest.raises(tkc.UsageError, match=re.escape(message)) as caught:
        compiled(lambda x: torch.ops.tkctest.double(x) + 1 if used else torch.ops.tkctest.double(x), torch.ones(3))
    told = str(caught.value)
    assert "The converter of tkctest::double (mistaken in " in told and "test_registration.py" in told
    assert "tkctest.double.default" in told and "report" not in told


@pytest.mark.parametrize("operator", ["halves", "parts"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: [x], "returned a list of 1 where PyTorch has 2 results (float32 [3], float32 [3])"),
        (lambda x: (x, x, x), "returned a tuple of 3 where PyTorch has 2 results"),
        (lambda x: x, "returned float32 [3] where PyTorch has 2 results"),
        (lambda x: None, "returned None where PyTorch has 2 results"),
        (lambda x: [x, None], "returned None as result 1 where"),
        (lambda x: [x, 2.5], "returned the float 2.5 as result 1 where"),
        (lambda x: [x, relax.op.concat([x, x])], "returned float32 [6] as result 1 where"),
    ],
)
def test_several_results_that_do_not_fit(operator: str, make: Callable[[relax.Expr], Any], message: str) -> None:
    """Too few, too many, and one that is wrong, by its position; of tuples and of lists."""
    tkc.converter(f"tkctest::{operator}")(lambda b, x, *others: make(x))
    with pytest.raises(tkc.UsageError, match=re.escape(message)):
        compiled(lambda x: getattr(torch.ops.tkctest, operator)(x)[1] * 2, torch.ones(3))


def test_results_that_nothing_uses_may_be_left_out() -> None:
    """And several may come as a tuple of Relax."""
    tkc.converter("tkctest::halves")(lambda b, x, dim, swapped: [relax.op.sin(x), None])
    tkc.converter("tkctest::parts")(lambda b, x: relax.Tuple([x, relax.op.negative(x)]))
    x = torch.randn(3)
    exe = compiled(lambda x: (torch.ops.tkctest.halves(x)[0], *torch.ops.tkctest.parts(x)), x)
    torch.testing.assert_close(exe(x), (x.sin(), x, -x))


def test_floats_are_not_cast_to_integers_unasked() -> None:
    """The other way is a cast."""
    x = torch.tensor([1.5, -2.5])
    tkc.converter("tkctest::places")(lambda b, x: x)
    with pytest.raises(tkc.UsageError, match=r"returned float32 \[2\] where PyTorch has int64 \[2\].*b.cast"):
        compiled(lambda x: torch.ops.tkctest.places(x), x)
    tkc.converter("tkctest::places", replace=True)(lambda b, x: b.cast(x, "int64"))
    tkc.converter("tkctest::double")(lambda b, x: b.cast(x, "int32"))
    exe = compiled(lambda x: (torch.ops.tkctest.places(x), torch.ops.tkctest.double(x)), x)
    torch.testing.assert_close(exe(x), (x.long(), torch.tensor([1.0, -2.0])))


def test_loops_are_named_first() -> None:
    """``emit_te`` without a name says so."""

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda i: x[i] * 2)

    for arguments in ((compute,), (compute, "double"), ("double", 3)):
        tkc.converter("tkctest::double", replace=True)(lambda b, x, given=arguments: b.emit_te(*given, x))
        with pytest.raises(tkc.UsageError, match=r"emit_te.*tkctest\.double.*name first, as in b.emit_te\('double'"):
            compiled(lambda x: torch.ops.tkctest.double(x), torch.ones(3))
    tkc.converter("tkctest::double", replace=True)(lambda b, x: b.emit_te("double", compute, x))
    exe = compiled(lambda x: torch.ops.tkctest.double(x), torch.ones(3))
    torch.testing.assert_close(exe(torch.ones(3)), torch.full((3,), 2.0))


def test_overloads_that_do_not_exist() -> None:
    """Are refused with those that do; an operator that is not there yet may come."""
    for name in ("tkctest::halves.bad", "tkctest::halves.Tensor", "aten::add.Tenser"):
        with pytest.raises(tkc.UsageError, match=r"has no overload '(bad|Tensor|Tenser)'; give one.*'(tkctest|aten)::"):
            tkc.converter(name)
    with pytest.raises(tkc.UsageError, match=r"no overload 'default'; .*: 'tkctest::twice.Tensor'"):
        tkc.converter("tkctest::twice")
    tkc.converter("tkctest::later")(lambda b, x: x)
    tkc.converter("tkctest::later.Tensor")(lambda b, x: x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: None, "returned None for"),
        (lambda x: 3, "returned the int 3 for"),
        (lambda x: torch.ones(3), "returned a torch.Tensor for"),
        (lambda x: x, "returned float32 [n, 3] for"),
        (lambda x: [x], "returned a list of 1 for"),
        (lambda x: [x, None], "returned None as output 1 for"),
        (lambda x: [x, torch.ones(3)], "returned a torch.Tensor as output 1 for"),
        (lambda x: x.absent, "raised AttributeError at its line"),
    ],
)
def test_what_an_onnx_converter_returns_that_does_not_fit(make: Callable[[relax.Expr], Any], message: str) -> None:
    """The same of ONNX nodes."""

    @tkc.onnx_converter("com.acme::Wrong")
    def mistaken(node: Any) -> Any:
        return make(node.tensor(0))

    with pytest.raises(tkc.UsageError, match=re.escape(message)) as caught:
        tkc.compile(_model("Wrong", "com.acme"), kernels="none", database=False)
    told = str(caught.value)
    assert "The converter of com.acme::Wrong (mistaken in " in told and "com.acme.Wrong" in told


def test_registered_code_is_part_of_what_shapes_a_model() -> None:
    """A function that closes over something is never taken for that of another process."""
    _register_halves()
    (hashed,) = (value for name, value in registered.registered().items() if name == "tkctest::halves")

    def sine(b: Any, x: relax.Expr) -> relax.Expr:
        return relax.op.sin(x)

    tkc.converter("tkctest::twice.Tensor")(sine)
    assert registered.registered()["tkctest::twice.Tensor"] != hashed  # `halves` closes over a list
