"""Sizes and conditions that the host reads from tensors, in programs for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
import tvm
from onnx import parser
from tvm import relax, tirx

import tkc
from tkc.contracts import AWAIT, MAIN, RETAINING_MAIN
from tkc.kernels import Target
from tkc.pipeline import lowering_stage

HOST_READS = ("vm.builtin.tensor_to_shape", "if")


def lowered(module: tvm.IRModule) -> tvm.IRModule:
    """The module as a program for a GPU."""
    return tvm.transform.Sequential(lowering_stage(Target.parse("cuda:sm_90a")).passes)(module)


def program_with_sizes(count: int) -> tvm.IRModule:
    """One whose result has sizes that are elements of an input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo([count], "int64"))
    with builder.function(MAIN, [x], {"num_input": 1}):
        shape = builder.emit(relax.op.tensor_to_shape(x))
        sizes = [tirx.Var(f"s{i}", "int64") for i in range(count)]
        builder.match_cast(shape, relax.ShapeStructInfo(sizes))
        made = builder.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(sizes), "float32", 0))
        builder.emit_func_output(made)
    return builder.get()


def program_with_a_choice() -> tvm.IRModule:
    """One that returns one of its inputs, and a choice in a branch."""
    builder = relax.BlockBuilder()
    c, d = (relax.Var(name, relax.TensorStructInfo([], "bool")) for name in "cd")
    x, y = (relax.Var(name, relax.TensorStructInfo([3], "float32")) for name in "xy")
    with builder.function(MAIN, [c, d, x, y], {"num_input": 4}):
        inner = relax.SeqExpr([], relax.If(d, relax.SeqExpr([], x), relax.SeqExpr([], y)))
        builder.emit_func_output(builder.emit(relax.If(c, inner, relax.SeqExpr([], y))))
    return relax.transform.Normalize()(builder.get())


def what_happens(function: relax.Function) -> Iterator[str]:
    """The functions of the runtime and the choices of a program, in the order in which they run."""

    def walk(body: relax.Expr) -> Iterator[str]:
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    yield "if"
                    yield from walk(value.true_branch)
                    yield from walk(value.false_branch)
                elif isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
                    yield value.op.global_symbol

    return walk(function.body)


@pytest.mark.parametrize(
    ("program", "reads"), [(program_with_sizes(1), 1), (program_with_sizes(3), 1), (program_with_a_choice(), 2)]
)
def test_every_read_on_the_host_waits_and_is_never_recorded(program: tvm.IRModule, reads: int) -> None:
    """The stream is waited for directly before each; and there is no entry of which a CUDA graph could be made."""
    module = lowered(program)
    happening = [what for what in what_happens(module[MAIN]) if what in (AWAIT, *HOST_READS)]
    assert [what == AWAIT for what in happening] == [True, False] * reads
    assert RETAINING_MAIN not in [name.name_hint for name in module.get_global_vars()]


TOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3, 5] x, int64[1] k) => (float[3, n] values, int64[3, n] places) {
    doubled = Add(x, x)
    values, places = TopK<axis=1>(doubled, k)
}"""


@pytest.mark.gpu
def test_sizes_of_each_call_are_its_own(tmp_path: Path) -> None:
    """Calls of the same shapes, on PyTorch's stream and on a busy one, give as many results as each asks for."""
    onnx.save(parser.parse_model(TOP), tmp_path / "top.onnx")
    executable = tkc.compile(tmp_path / "top.onnx", target="cuda", database=False)
    x = torch.randn(3, 5, device="cuda")
    heavy = torch.randn(4096, 4096, device="cuda")
    other = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), other):
        for count in (2, 5, 1, 3, 3):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                k = (heavy @ heavy)[:1, 0].mul(0).add(count).long()
                values, indices = executable(x, k)
                expected = torch.topk(x + x, count, dim=1)
                torch.testing.assert_close(values, expected.values, rtol=0, atol=0)
                torch.testing.assert_close(indices, expected.indices, rtol=0, atol=0)
