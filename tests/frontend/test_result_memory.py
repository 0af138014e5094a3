"""What a model returns as a copy is one: writing into a result changes no input, weight, state or other result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import tkc


class Holder(nn.Module):
    """A model that holds a weight, a constant buffer and a count of its calls, and returns what ``function`` makes."""

    def __init__(self, function: Callable[[Holder, Tensor], list[Tensor]]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.register_buffer("table", torch.arange(4.0).reshape(2, 2))
        self.register_buffer("calls", torch.zeros(2, 2))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The function's results."""
        return self.function(self, x)


def counted(m: Holder, x: Tensor) -> list[Tensor]:
    """State after its update, as a copy and as it is."""
    m.calls.add_(1)
    return [m.calls.clone(), m.calls * 1, m.calls, m.calls.view(-1)]


def in_place(_: Holder, x: Tensor) -> list[Tensor]:
    """Copies that the model writes into, or as if it did."""
    y = x.clone()
    y.add_(0)
    z = torch.empty_like(x).copy_(x)
    return [y, z, x]


RESULTS: dict[str, Callable[[Holder, Tensor], list[Tensor]]] = {
    "of an input": lambda m, x: [x.clone(), x * 1, x + 0, x.to(x.dtype, copy=True), x, x.view(-1), x.contiguous()],
    "of a weight": lambda m, x: [m.weight.clone(), m.weight, m.weight * 1, m.weight.detach().clone(), x],
    "of a buffer": lambda m, x: [m.table.clone(), m.table / 1, m.table, m.table.view(4), m.table.reshape(4).clone()],
    "of results": lambda m, x: [(y := x + 1), y.clone(), y.view(-1), x + 1, torch.cat([y]), y],
    "of parts": lambda m, x: [x[:1].clone(), x[0], x.chunk(2)[1].clone(), *x.unbind(), torch.stack([x])[0]],
    "of literals": lambda m, x: [torch.tensor([1, 2]), torch.arange(3), torch.ones(2), m.table.double().float(), x],
    "of state": counted,
    "in place": in_place,
    "complex": lambda m, x: [(y := torch.complex(x, x)), y.clone(), y.conj().conj(), torch.view_as_real(y).clone()],
    "of a branch": lambda m, x: [torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: x + 1, (x,)), x],
}


def storages(tensors: list[Tensor]) -> list[int]:
    """For each, where the memory lies that it is a view of."""
    return [each.untyped_storage().data_ptr() for each in tensors]


@pytest.mark.parametrize("case", RESULTS)
def test_copies_are_copies(case: str) -> None:
    """Whatever has memory of its own in PyTorch has it here, and a caller who fills it changes nothing else."""
    model = Holder(RESULTS[case]).eval()
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    exe = tkc.compile(copy.deepcopy(model), (x,))
    with torch.no_grad():
        for _ in range(2):  # the second call after the first one's results were written into
            mine, given = x.clone(), x.clone()
            expected, found = model(mine), exe(given)
            torch.testing.assert_close(list(found), expected)
            theirs, ours = storages([mine, *expected]), storages([given, *found])
            for i, first in enumerate(ours):
                assert all(theirs[i] == theirs[j] for j in range(i) if ours[j] == first), f"{case}: result {i - 1}"
            held = {theirs[0], *storages([*model.parameters(), *model.buffers()])}
            for memory, result in zip(theirs[1:], found, strict=True):
                if memory not in held:
                    result.fill_(0)
            assert torch.equal(given, mine)


def test_one_result_alone() -> None:
    """That is no tuple."""
    x = torch.ones(3)
    result = tkc.compile(nn.Identity(), (x,))(x)
    assert storages([result]) == storages([x])

    class Copied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clone()

    result = tkc.compile(Copied(), (x,))(x)
    result.zero_()
    assert x.sum() == 3


def test_onnx_results_are_tensors_of_their_own(tmp_path: Path) -> None:
    """As those of ONNX Runtime: of an input, of an initializer, and one value under two names."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Identity", ["w"], ["weight"]),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("same", "flat", "weight", "a", "b")
    ]
    held = [
        onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"),
        onnx.numpy_helper.from_array(np.array([-1]), "shape"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, held)), tmp_path / "m.onnx")
    exe = tkc.compile(tmp_path / "m.onnx")
    x = torch.ones(2, 2)
    results = list(exe(x))
    assert len(set(storages([x, *results]))) == 6
    for result in results:
        result.fill_(7)
    for result in exe(x):
        assert torch.equal(result, torch.ones_like(result))
