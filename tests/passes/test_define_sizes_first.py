"""Sizes that the model computes are known before anything uses them."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.reference
import pytest
import torch
import tvm
from tvm import relax, tirx

import tkc
from tkc.passes.lowering.define_sizes_first import DefineSizesFirst


@pytest.mark.parametrize("kind", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_a_length_that_the_caller_gives(kind: str) -> None:
    """ONNX writes them as functions of a Range, whose length fusion used before it was computed."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (int32 length) => (float[N] window) {{ window = {kind} (length) }}'
    )
    executable = tkc.compile(model, target="cpu")
    expected = onnx.reference.ReferenceEvaluator(model)
    for length in (10, 33):
        given = torch.tensor(length, dtype=torch.int32)
        window = torch.from_numpy(expected.run(None, {"length": given.numpy()})[0])
        torch.testing.assert_close(executable(given), window, atol=1e-6, rtol=1e-5)


def two_selections() -> tvm.IRModule:
    """A function that defines two sizes, the second by what the first selects."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((8,), "float32"))
    sizes = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for size in sizes:
                positions = builder.emit(relax.op.nonzero(value))
                chosen = builder.match_cast(positions, relax.TensorStructInfo((1, size), "int64"))
                ones = builder.emit(relax.op.ones(relax.ShapeExpr([size]), "float32"))
                value = builder.emit(relax.op.add(ones, relax.op.astype(relax.op.squeeze(chosen, [0]), "float32")))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def reordered(module: tvm.IRModule, order: Callable[[list[relax.Binding]], list[relax.Binding]]) -> tvm.IRModule:
    """``module`` with the bindings of ``main`` in another order."""
    main = module["main"]
    (block,) = main.body.blocks
    body = relax.SeqExpr([relax.DataflowBlock(order(list(block.bindings)))], main.body.body)
    return tvm.IRModule({"main": relax.Function(main.params, body, main.ret_struct_info, True, main.attrs)})


def tensors_first(bindings: list[relax.Binding]) -> list[relax.Binding]:
    """As fusion may leave them: what needs no tensor, only sizes, before the sizes."""
    return sorted(bindings, key=lambda binding: "ones" not in str(binding.value))


def test_a_size_is_defined_before_its_use() -> None:
    """The order is valid again, and the program runs."""
    module = DefineSizesFirst()(reordered(two_selections(), tensors_first))
    names = [str(binding.value) for binding in module["main"].body.blocks[0].bindings]
    assert [index for index, name in enumerate(names) if "ones" in name] > [0, 1]
    relax.analysis.well_formed(module)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    x = torch.tensor([0.0, 1, 0, 2, 3, 0, 0, 0])
    result = torch.from_dlpack(machine["main"](tvm.runtime.from_dlpack(x)))
    torch.testing.assert_close(result, torch.tensor([1.0, 2, 3]))  # the positions of three nonzero numbers, plus one


def test_an_order_that_is_valid_stays() -> None:
    """Nothing moves without need."""
    module = two_selections()
    tvm.ir.assert_structural_equal(DefineSizesFirst()(module), module)


def test_a_tensor_made_with_a_size_does_not_define_it() -> None:
    """As in Siglip2: an operator of PyTorch resizes to a size that was read, and its result is matched with that."""
    builder = relax.BlockBuilder()
    x, size = relax.Var("x", relax.TensorStructInfo((8,), "float32")), tirx.Var("n", "int64")
    with builder.function("main", [x]):
        with builder.dataflow():
            unknown = relax.TensorStructInfo(dtype="float32", ndim=1)
            chosen = builder.match_cast(builder.emit(relax.op.nonzero(x)), relax.TensorStructInfo((1, size), "int64"))
            made = builder.emit(relax.call_pure_packed("made", relax.PrimValue(size), sinfo_args=[unknown]))
            known = builder.match_cast(made, relax.TensorStructInfo((size,), "float32"))
            result = relax.op.add(known, relax.op.astype(relax.op.squeeze(chosen, [0]), "float32"))
            value = builder.emit_output(result)
        builder.emit_func_output(value)
    later = (made, known)
    given = reordered(builder.get(), lambda bindings: sorted(bindings, key=lambda binding: binding.var not in later))
    module = DefineSizesFirst()(given)
    names = [binding.var.name_hint for binding in module["main"].body.blocks[0].bindings]
    assert names.index(chosen.name_hint) < names.index(made.name_hint) < names.index(known.name_hint)
    tvm.compile(module, target="llvm")  # which refuses sizes that nothing has computed
