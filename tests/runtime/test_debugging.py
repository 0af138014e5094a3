"""tkc.debug finds planted faults: of a converter, of what is done to several nodes together, and in ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tkc
from tests.command_line import tkc as command
from tkc.frontend.torch.converters import CONVERTERS
from tkc.frontend.torch.converters.emitter import Emitter


class Layers(torch.nn.Module):
    """Layers with a counter, a split and integers among their values."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [batch, 6]``."""
        left, right = self.layers(x).split([3, 5], -1)
        return torch.cat([right, torch.tanh(left)], -1) + 1, right.argmax(-1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The layers as a .pt2 file with a symbolic batch."""
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    path = tmp_path / "layers.pt2"
    torch.export.save(torch.export.export(Layers().eval(), (torch.randn(3, 6),), dynamic_shapes=shapes), path)
    return path


def test_a_model_without_fault(model: Path) -> None:
    """Every node agrees, and so do the outputs."""
    found = tkc.debug(model)
    assert found.agrees and found.first is None
    assert len(found.nodes) >= 8 and len(found.outputs) == 2
    assert all(node.bound < 1e-4 for node in found.nodes)


@pytest.mark.daily(1)
def test_a_converter_with_a_fault(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is named, and not those after it; the command says so, too."""

    def wrong(emitter: Emitter, x: relax.Expr) -> relax.Expr:
        return emitter.emit(relax.op.multiply(relax.op.tanh(x), relax.const(1.001, "float32")))

    monkeypatch.setitem(CONVERTERS, "aten.tanh.default", wrong)
    found = tkc.debug(model)
    assert found.first is not None and not found.agrees
    assert "aten.tanh" in found.first.node and "in forward" in found.first.node
    assert found.first.bound < 1e-4 < found.first.error < 2e-3
    assert [node.node for node in found.nodes if node.differs] == [found.first.node]
    shown = command("debug", model, code=1).stdout
    assert "first node that differs" in shown and "aten.tanh" in shown


@pytest.mark.daily(1)
def test_a_fault_of_several_nodes_together(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that is wrong where one node reads another is found although each node is right by itself."""
    from tkc import pipeline

    original = pipeline.substitution_stages

    def stages(*args: object, **kwargs: object) -> list[pipeline.PassStage]:
        found = original(*args, **kwargs)  # type: ignore[arg-type]
        return [pipeline.PassStage("fault", (DropsGelu(),)), *found]

    monkeypatch.setattr(pipeline, "substitution_stages", stages)
    found = tkc.debug(model, kernels="none")
    assert found.first is not None and found.first is found.together
    assert "aten.layer_norm" in found.first.node


@relax.expr_functor.mutator
class _DropsGelu(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if getattr(call.op, "name", "") == "relax.nn.layer_norm":
            before = self.lookup_binding(call.args[0])
            if isinstance(before, relax.Call) and getattr(before.op, "name", "") == "relax.nn.gelu":
                return relax.Call(call.op, [before.args[0], *call.args[1:]], call.attrs)
        return call


@tvm.transform.module_pass(opt_level=0, name="DropsGelu")
class DropsGelu:
    """A layer norm of a GELU loses the GELU."""

    def transform_module(self, module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        """``module`` with the fault."""
        module = module.clone()
        module["main"] = _DropsGelu(module).visit_expr(module["main"])
        return module


def test_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the reference evaluator, by the node's name."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="second"),
        helper.make_node("Mul", ["b", "x"], ["y"], name="third"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 18)]
    )
    onnx.checker.check_model(proto)
    assert tkc.debug(proto).agrees
    from tkc.frontend.onnx.converters import CONVERTERS as ONNX_CONVERTERS

    monkeypatch.setitem(ONNX_CONVERTERS, ("", "Tanh"), lambda node: relax.op.sin(node.tensor(0)))
    found = tkc.debug(proto)
    assert found.first is not None and "second" in found.first.node and found.first.error > 0.01


def _halved_and_doubled(weight: np.ndarray) -> onnx.ModelProto:
    """An image, halved and doubled, added to itself and to another: odd sizes do not fit."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, h, w] image, float[3, 1, 1] other) => (float[1, 3, c, d] y) {
            scales = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>()
            halved = Conv<strides = [2, 2], kernel_shape = [2, 2]>(image, weight)
            doubled = Resize<mode = "nearest">(halved, , scales)
            sum = Add(doubled, image)
            y = Mul(sum, other)
        }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    return proto


@pytest.mark.daily(1)
def test_onnx_with_sizes_and_inputs(tmp_path: Path) -> None:
    """Random inputs of sizes that the model takes, and inputs from files; what does not fit is named."""
    generator = np.random.default_rng(0)
    proto = _halved_and_doubled(generator.standard_normal((3, 3, 2, 2)).astype("float32"))
    onnx.save(proto, tmp_path / "model.onnx")
    command("debug", tmp_path / "model.onnx", "--size", "h=8", "--size", "w=6")
    inputs = [generator.standard_normal(shape).astype("float32") for shape in ((1, 3, 4, 6), (3, 1, 1))]
    for name, array in zip(("image", "other"), inputs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    files = [text for name in ("image", "other") for text in ("--input", f"{name}={tmp_path / name}.npy")]
    command("debug", tmp_path / "model.onnx", *files)
    assert tkc.debug(proto, inputs).agrees
    assert tkc.debug(proto, (inputs[0],), {"other": inputs[1]}).agrees
    with pytest.raises(tkc.UsageError, match=r"image, other; give each of them once"):
        tkc.debug(proto, inputs[:1])
    with pytest.raises(tkc.UsageError, match=r"no symbolic size height; its sizes are h from 2 on"):
        tkc.debug(proto, sizes={"height": 8})
    with pytest.raises(tkc.UsageError, match=r"cannot run the model with image \[1, 3, 3, 2\].*--size"):
        tkc.debug(proto, sizes={"h": 3})


class Joined(torch.nn.Module):
    """Two weights that a kernel takes as one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.randn(8, 16)), torch.nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, 16]``."""
        return torch.relu(x @ torch.cat([self.first, self.second]).T)


def test_weights_that_are_joined() -> None:
    """Each node is computed of what it reads, whether that is a weight or not."""
    assert tkc.debug(Joined(), (torch.randn(3, 16),)).agrees
