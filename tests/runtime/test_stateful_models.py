"""Models that change buffers and inputs: what a call changes, what the next one finds, and what users see of it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import tkc
from tests.runtime.manifests import edit_manifest
from tests.runtime.stateful import BY_NAME, CASES, Case


def compiled(case: Case) -> tkc.Executable:
    """The case's model without kernels and tuning records."""
    with torch.no_grad():
        return tkc.compile(case.model(), case.inputs(), kernels="none", database=False)


@pytest.fixture(scope="module")
def indexed() -> tkc.Executable:
    """A model that writes rows of its cache ``[3, 6, 4]``."""
    return compiled(BY_NAME["indexed"])


@pytest.fixture(scope="module")
def in_input() -> tkc.Executable:
    """A model that writes rows of the cache that it is given."""
    return compiled(BY_NAME["in_input"])


def reset(executable: tkc.Executable) -> tkc.Executable:
    """``executable`` in its initial state."""
    executable.reset()
    return executable


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_several_calls_agree_with_pytorch(case: Case) -> None:
    """Results, state and inputs after each of four calls; what earlier calls returned stays as it was."""
    model, executable = case.model(), compiled(case)
    assert set(executable.state) == {name for name, _ in model.named_buffers()}
    kept = []
    for _ in range(4):
        inputs = case.inputs()
        given = copy.deepcopy(inputs)
        with torch.no_grad():
            expected = model(*inputs)
        result = executable(*given)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given, inputs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dict(executable.state), dict(model.named_buffers()), rtol=1e-4, atol=1e-5)
        updated = {place for place, _ in executable.signature.returned}
        own = [leaf for place, leaf in enumerate(pytree.tree_leaves(result)) if place not in updated]
        kept.append((own, copy.deepcopy(own)))
    for results, copies in kept:
        torch.testing.assert_close(results, copies, rtol=0, atol=0)


def test_the_model_itself_stays_as_it_was() -> None:
    """Neither compiling nor calling touches the source model's buffers, or tensors that it only holds; nor the other
    way round."""

    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = torch.tensor([5])
            self.register_buffer("sum", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            self.sum.add_(x)
            return self.sum * self.calls

    model = Holding()
    executable = tkc.compile(model, (torch.ones(2),), kernels="none", database=False)
    model.sum.fill_(100)
    assert executable(torch.ones(2)).tolist() == [6, 6]
    assert executable(torch.ones(2)).tolist() == [14, 14]
    assert model.calls.tolist() == [5] and model.sum.tolist() == [100, 100]


def test_state_can_be_filled_and_reset(indexed: tkc.Executable) -> None:
    """What is written into it is what the next call finds; its memory stays where it is."""
    executable, case = reset(indexed), BY_NAME["indexed"]
    cache, filled = executable.state["cache"], torch.randn(3, 6, 4)
    address, initial = cache.data_ptr(), cache.clone()
    cache.copy_(filled)
    x, places = case.inputs()
    filled[:, places] = x
    torch.testing.assert_close(executable(x, places), filled.sum(-1), rtol=1e-4, atol=1e-5)
    assert torch.equal(executable.state["cache"], filled) and executable.state["cache"].data_ptr() == address
    executable.reset()
    assert torch.equal(executable.state["cache"], initial) and executable.state["cache"].data_ptr() == address
    with pytest.raises(TypeError):
        executable.state["cache"] = filled  # type: ignore[index]


def test_what_is_returned_of_the_state_is_the_state(in_input: tkc.Executable) -> None:
    """As in PyTorch: no copy is made of a cache that a model updates and returns."""
    executable = compiled(BY_NAME["returned"])
    first, second, third = executable(torch.ones(4))
    assert first.data_ptr() == executable.state["cache"].data_ptr()
    assert not {second.data_ptr(), third.data_ptr()} & {first.data_ptr()}
    x, cache, places = BY_NAME["in_input"].inputs()
    assert in_input(x, cache, places)["cache"].data_ptr() == cache.data_ptr()


def test_an_input_is_updated_where_it_is_or_copied_back(in_input: tkc.Executable) -> None:
    """Contiguous and aligned tensors in place; others, and NumPy arrays, hold the new values all the same."""
    x, cache, places = BY_NAME["in_input"].inputs()
    expected = cache.clone()
    expected[:, places] = x
    strided = torch.empty(3, 4, 6).transpose(1, 2).copy_(cache)
    shifted = torch.empty(73)[1:].view(3, 6, 4).copy_(cache)
    array = cache.numpy().copy()
    for given in (strided, shifted, cache):
        assert in_input(x, given, places)["cache"].data_ptr() == given.data_ptr()
        assert torch.equal(given, expected)
    in_input(x.numpy(), array, places.numpy())
    np.testing.assert_array_equal(array, expected.numpy())


def test_an_input_that_cannot_be_written_is_refused(in_input: tkc.Executable) -> None:
    """Before anything runs, with the cure."""
    x, cache, places = BY_NAME["in_input"].inputs()
    frozen = cache.numpy().copy()
    frozen.flags.writeable = False
    with pytest.raises(tkc.InputError, match=r"'inputs_1', which the model updates, is a read-only array; pass a copy"):
        in_input(x.numpy(), frozen, places.numpy())
    for view in (cache[:1].expand(3, 6, 4), cache.numpy()[::-1]):
        before = np.array(view)
        with pytest.raises(tkc.InputError, match=r"'inputs_1', which the model updates.*pass a contiguous copy"):
            in_input(x, view, places)
        np.testing.assert_array_equal(view, before)


def test_artifacts_keep_the_initial_state(indexed: tkc.Executable, tmp_path: Path) -> None:
    """Whatever was called before saving; and two loads do not share it."""
    executable, case = reset(indexed), BY_NAME["indexed"]
    initial = executable.state["cache"].clone()
    x, places = case.inputs()
    expected = executable(x, places)
    path = executable.save(tmp_path / "model.tkc")
    one, other = tkc.load(path), tkc.load(path)
    assert one.signature == executable.signature
    assert torch.equal(one.state["cache"], initial)
    assert torch.equal(one(x, places), expected)
    assert torch.equal(one.state["cache"], executable.state["cache"])
    assert torch.equal(other.state["cache"], initial)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("state", [{"name": "missing", "shape": [3], "dtype": "float32"}], "its state missing has no initial value"),
        (
            "state",
            [{"name": "cache", "shape": [3, 6], "dtype": "float32"}],
            r"the initial value of cache is .*\[3, 6, 4\], and should be float32 \[3, 6\]",
        ),
        ("updated_inputs", ["missing"], "updates missing, which is no input"),
        ("returned", [[0, 7]], "output 0 cannot be update 7"),
    ],
)
def test_a_manifest_whose_state_makes_no_sense_is_refused(
    indexed: tkc.Executable, tmp_path: Path, field: str, value: object, message: str
) -> None:
    """Before anything runs."""
    path = indexed.save(tmp_path / "model.tkc")
    edit_manifest(path, lambda manifest: manifest["entries"]["main"]["signature"].update({field: value}))
    with pytest.raises(tkc.ArtifactError, match=message):
        tkc.load(path)


@pytest.mark.nvcc
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can hold the state")
def test_state_of_another_machine_is_refused() -> None:
    """There is no device to hold it."""
    executable = tkc.compile(BY_NAME["flagged"].model(), (torch.randn(3),), target="cuda:sm_90a", kernels="none")
    with pytest.raises(tkc.TargetError, match="cannot run here"):
        _ = executable.state


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_on_the_gpu_agree_with_pytorch(case: Case) -> None:
    """Launched at first, then replayed as a graph; inputs that are updated are the same tensors each time."""
    model = case.model().cuda()
    own = tuple(tensor.cuda() for tensor in case.inputs())
    given = tuple(tensor.clone() for tensor in own)
    with torch.no_grad():
        executable = tkc.compile(case.model().cuda(), own, target="cuda", kernels="none", database=False)
        for _ in range(5):
            expected, result = model(*own), executable(*given)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(given, own, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dict(executable.state), dict(model.named_buffers()), rtol=1e-4, atol=1e-5)
            for mine, new in zip(given, case.inputs(), strict=True):
                mine.copy_(new)
            for mine, new in zip(own, given, strict=True):
                mine.copy_(new)
    assert any(recorded and recorded.graph for recorded in executable._running._graphs._recorded.values())


class Copies(torch.nn.Module):
    """Copies into a buffer, an input and a tensor of its own from smaller tensors of other dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(2, 3, dtype=torch.int32))

    def forward(self, row: torch.Tensor, column: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``row [3]``, ``column [n, 1]`` of doubles, ``given [n, 3]``."""
        own = torch.empty_like(given).copy_(column)
        return self.counts.copy_(row) * 2, given.copy_(row) + 1, own + given


def test_copies_broadcast_and_convert() -> None:
    """As PyTorch's do; its own functional form of them has the wrong shape and dtype."""
    n = torch.export.Dim("n", min=1, max=16)

    def inputs(rows: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor([1.7, -2.2, 3.0]), torch.randn(rows, 1, dtype=torch.float64), torch.zeros(rows, 3)

    model = Copies()
    exe = tkc.compile(copy.deepcopy(model), inputs(4), dynamic_shapes=(None, {0: n}, {0: n}))
    for rows in (1, 4, 7):
        given = inputs(rows)
        same = [tensor.clone() for tensor in given]
        for found, expected in zip(exe(*given), model(*same), strict=True):
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(given[2], same[2])
        torch.testing.assert_close(exe.state["counts"], model.counts)


class EmptyBuffers(torch.nn.Module):
    """Buffers without elements, one updated and one read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("updated", torch.zeros(4, 0, 3, dtype=torch.int64))
        self.register_buffer("read", torch.zeros(2, 5, 0))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All have no elements but the first."""
        updated = self.updated.index_add_(0, rows, x[:, 1:-1, :])
        return x + 1, updated + 1, self.read * 2, torch.cat([self.read, self.read], 2)


def test_buffers_without_elements() -> None:
    """PyTorch's strides of them are not those that TVM expects."""
    inputs = torch.ones(7, 2, 3, dtype=torch.int64), torch.zeros(7, dtype=torch.int64)
    executable = tkc.compile(torch.export.export(EmptyBuffers(), inputs))
    for found, expected in zip(executable(*inputs), EmptyBuffers()(*inputs), strict=True):
        assert torch.equal(found, expected) and found.shape == expected.shape
    executable.reset()
