"""Weights that a module concatenates are packed once, before it runs, and only where nothing else reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import tkc
from tests.passes.reference_execution import imported
from tkc.contracts import UPDATES
from tkc.frontend.exchangeable import model_weights
from tkc.frontend.held_weights import HeldWeight
from tkc.frontend.model import ImportedModel
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.canonical.pack_weights import PackedWeights, pack_weights
from tkc.passes.graph.updates import updates
from tkc.runtime.signature import Signature
from tkc.runtime.weights import EntryWeights, check_weights, exchange

X, A, B, C = torch.ones(2, 3), torch.rand(2, 3), torch.rand(4, 3), torch.rand(2, 3)


def packed(function: Callable[..., object], num_input: int = 1) -> tuple[int, list[PackedWeights]]:
    """How many parameters ``function`` of ``X, A, B, C`` has afterwards, and what was packed."""
    module = imported(function, X, A, B, C, symbolic=())
    module["main"] = module["main"].with_attr("num_input", num_input)
    changed, found = pack_weights(module)
    return len(changed["main"].params), list(found)


def test_concatenated_weights_become_one() -> None:
    """Along any axis, in the order of the concatenation."""
    assert packed(lambda x, a, b, c: torch.cat([b, a]) + c.sum() + x.sum()) == (3, [PackedWeights((1, 0), 0)])
    assert packed(lambda x, a, b, c: torch.cat([a, c], 1) + b.sum() + x.sum()) == (3, [PackedWeights((0, 2), 1)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b, c: torch.cat([a, x]) + b.sum() + c.sum(),
        lambda x, a, b, c: (torch.cat([a, b]), torch.cat([b, c]), x),
        lambda x, a, b, c: torch.cat([a, a]) + b + c.sum() + x.sum(),
        lambda x, a, b, c: torch.cat([a + 1, c]) + b + x.sum(),
    ],
    ids=["an input", "read twice", "one twice", "computed"],
)
def test_other_concatenations_stay(function: Callable[..., object]) -> None:
    """What changes from call to call, or is needed apart, cannot be packed before."""
    assert packed(function) == (4, [])


def test_weights_that_are_updated_stay_and_are_still_the_updated_ones() -> None:
    """Their number among the parameters changes when others are packed."""
    module = imported(lambda x, a, b, c: (torch.cat([a, c]) + x.sum(), b + 1), X, A, B, C, symbolic=())
    module["main"] = module["main"].with_attrs({"num_input": 1, UPDATES: [2]})
    changed, found = pack_weights(module)
    main = changed["main"]
    (update,) = updates(main)
    assert found == (PackedWeights((0, 2), 0),) and update.target.same_as(main.params[1])
    module = imported(lambda x, a, b, c: (torch.cat([a, c]), x + b.sum()), X, A, B, C, symbolic=())
    module["main"] = module["main"].with_attrs({"num_input": 1, UPDATES: [1]})
    changed, found = pack_weights(module)
    assert len(changed["main"].params) == 4 and found == ()


def _convolution(x: Tensor, w: Tensor, other: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1) + other[0]


def _permuted(function: Callable[..., object], weight: Tensor) -> list[PackedWeights]:
    examples = [torch.randn(2, 32, 5, 5).bfloat16(), weight, torch.randn(2, 16, 1, 1).bfloat16()]
    module = Canonicalize()(ConvolutionProducts()(imported(function, *examples, symbolic=())))
    module["main"] = module["main"].with_attr("num_input", 1)
    assert pack_weights(module)[1] == ()
    return list(pack_weights(module, permutes=True)[1])


def test_a_convolutions_weight_has_its_channels_last() -> None:
    """Once, and not at each call, where nothing else reads it."""
    weight = torch.randn(16, 32, 3, 3).bfloat16()
    assert _permuted(_convolution, weight) == [PackedWeights((0,), 0, (0, 2, 3, 1))]
    assert _permuted(lambda x, w, other: _convolution(x, w, other) + w[0, 0, 0, 0], weight) == []
    assert _permuted(_convolution, weight.float()) == []


def test_new_values_of_a_permuted_weight_are_permuted() -> None:
    """They are given as the model has them."""
    weight = torch.rand(4, 3, 2, 5)
    held = HeldWeight(weight, "float32", "a", same_as="a")
    model = ImportedModel(None, {"a": weight, "b": B}, Signature((), (), {}), held={"a": held})
    model.pack_weights([PackedWeights((0,), 0, (0, 2, 3, 1))])
    (name,) = set(model.parameters) - {"b"}
    assert model.parameters[name].is_contiguous()
    torch.testing.assert_close(model.parameters[name], weight.permute(0, 2, 3, 1))
    weights = model_weights(model)
    assert weights is not None
    check_weights(weights, [(4, 3), (4, 2, 5, 3)], ["float32"] * 2, [False] * 2)
    with pytest.raises(ValueError, match="does not fit"):
        check_weights(weights, [(4, 3), (4, 3, 2, 5)], ["float32"] * 2, [False] * 2)
    entries = {"main": EntryWeights(weights, model.parameters, {})}
    other = torch.rand(4, 3, 2, 5)
    changed = exchange(entries, {"a": other}, strict=True).parameters(entries, None)["main"]
    torch.testing.assert_close(changed[name], other.permute(0, 2, 3, 1))
    assert changed["b"] is B


@pytest.mark.gpu
def test_an_executable_with_permuted_weights_runs_and_loads(tmp_path: Path) -> None:
    """On the GPU, with new values as well."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 16, 3)).bfloat16().cuda().eval()
    x = torch.randn(2, 32, 9, 9).bfloat16().cuda()
    executable = tkc.compile(model, (x,), target="cuda", database=False)
    executable.save(tmp_path / "model.tkc")
    with torch.no_grad():
        for runnable in (executable, tkc.load(tmp_path / "model.tkc")):
            torch.testing.assert_close(runnable(x), model(x), rtol=2e-2, atol=2e-2)
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.mul_(-1.5)
        executable.load_weights(other.state_dict())
        torch.testing.assert_close(executable(x), other(x), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(tkc.load(tmp_path / "model.tkc")(x), model(x), rtol=2e-2, atol=2e-2)


def test_without_weights_nothing_is_packed() -> None:
    """Arguments of the call are not known before it."""
    assert packed(lambda x, a, b, c: torch.cat([a, b]) + x.sum() + c.sum(), num_input=4) == (4, [])


def test_packed_parameters_follow_the_others() -> None:
    """The order is that of the module's parameters; what is not packed is the same tensor as before."""
    model = ImportedModel(None, {"a": A, "b": B, "c": C}, Signature((), (), {}))
    model.pack_weights([PackedWeights((2, 0), 1)])
    assert list(model.parameters) == ["b", "c+a"]
    assert model.parameters["b"] is B
    torch.testing.assert_close(model.parameters["c+a"], torch.cat([C, A], 1))


class Projections(nn.Module):
    """A query, key and value with biases, and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 12), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query and key, and the value projected back."""
        return self.query(x), self.key(x).unflatten(-1, (2, 4)), self.out(self.value(x))


def test_a_model_with_packed_weights_runs_and_loads(tmp_path: Path) -> None:
    """The artifact holds the packed weights; the model's own are neither changed nor copied."""
    torch.manual_seed(0)
    model = Projections().eval()
    batch = Dim("batch", min=1, max=64)
    executable = tkc.compile(model, (torch.randn(2, 16),), dynamic_shapes={"x": {0: batch}}, kernels="all")
    packed = ["key.weight+value.weight+query.weight", "key.bias+value.bias+query.bias"]
    assert sorted(executable.parameters) == sorted(["out.weight", "out.bias", *packed])
    assert executable.parameters["out.weight"].data_ptr() == model.out.weight.data_ptr()
    executable.save(tmp_path / "model.tkc")
    x = torch.randn(5, 16)
    with torch.no_grad():
        expected = model(x)
    for runnable in (executable, tkc.load(tmp_path / "model.tkc")):
        for found, wanted in zip(runnable(x), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_kernels_that_are_not_used_join_nothing() -> None:
    """On the CPU, products are left to generated code, which takes each weight as it is."""
    model = Projections().eval()
    executable = tkc.compile(model, (torch.randn(2, 16),))
    assert set(executable.parameters) == set(dict(model.named_parameters()))
