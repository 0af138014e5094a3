"""The memory that a call allocates, known before it runs, and a limit to it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tkc
from tkc.runtime.activations import ActivationPlan
from tkc.runtime.sizes import Formula

WIDTH = 32


class Sums(nn.Module):
    """Cumulative sums, each of them a function: two tensors live at a time, three where the first one is read again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, WIDTH]``."""
        first = x.cumsum(0)
        third = first.cumsum(0).cumsum(0)
        return first + third.cumsum(0)


@pytest.fixture(scope="module")
def sums() -> tkc.Executable:
    """For 1 to 4096 rows."""
    shapes = ({0: torch.export.Dim("rows", min=1, max=4096)},)
    return tkc.compile(Sums(), (torch.randn(4, WIDTH),), dynamic_shapes=shapes, database=False)


def allocated(executable: tkc.Executable, *inputs: torch.Tensor) -> list[int]:
    """The bytes of every storage that a call allocates, in order, as the virtual machine does it."""
    found: list[int] = []

    def note(_: object, symbol: str, before: bool, __: object, *arguments: object) -> int:
        if before and str(symbol) == "vm.builtin.alloc_storage":
            found.extend(int(size) for size in arguments[1])  # type: ignore[attr-defined]  # a shape
        return 0

    executable._running.told_run(note)(list(inputs))
    return found


@pytest.mark.parametrize("rows", [1, 5, 640])
def test_the_plan_has_what_a_call_allocates(sums: tkc.Executable, rows: int) -> None:
    """At every size, storage by storage; of which three tensors live at a time."""
    tensor = rows * WIDTH * 4
    plan = sums.report.activations
    planned = [size if isinstance(size, int) else Formula(size)({"rows": rows}) for size in plan.sizes]
    assert planned == allocated(sums, torch.randn(rows, WIDTH))
    assert sums.activation_bytes(rows=rows) == 3 * tensor
    assert plan.besides == ()


MEASURED = """
import re
import torch, tkc
from tests.runtime.test_activations import Sums
rows, width = 4096, 4096
executable = tkc.compile(Sums(), (torch.zeros(rows, width),), database=False)
small = tkc.compile(Sums(), (torch.zeros(2, width),), database=False)
small(torch.zeros(2, width))  # libraries are loaded, and threads begun
x = torch.zeros(rows, width)
def held(name):
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(name + r":\\s+(\\d+) kB", status.read())[1])
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")  # the peak begins anew: to compile took more
before = held("VmRSS")
executable(x)
print(executable.activation_bytes(), held("VmHWM") - before)
"""


@pytest.mark.daily(1)
def test_a_process_grows_by_so_much() -> None:
    """Of 192 MiB, beyond what it held before the call."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    planned, grown = map(int, done.stdout.split())
    assert planned == 3 * 4096 * 4096 * 4
    assert grown == pytest.approx(planned, rel=0.05)


def test_a_call_beyond_the_limit_is_refused_before_it_allocates(sums: tkc.Executable) -> None:
    """With the sizes, what they need, and the limit; others run, and so do all where the limit is taken away."""
    limited = copy.copy(sums)
    need = sums.activation_bytes(rows=10)
    limited.limit_memory(need)
    x = torch.randn(10, WIDTH)
    assert torch.equal(limited(x), sums(x))
    for _ in range(2):
        with pytest.raises(tkc.OutOfMemoryError, match=rf"rows=11 needs {need // 10 * 11} bytes .* limit is {need}"):
            limited(torch.randn(11, WIDTH))
    copied = copy.copy(limited)
    with pytest.raises(tkc.OutOfMemoryError):
        copied(torch.randn(11, WIDTH))
    limited.limit_memory(None)
    limited(torch.randn(11, WIDTH))
    for wrong in (-1, True, 1.5, "1 GB"):
        with pytest.raises(tkc.UsageError, match="limit_memory"):
            limited.limit_memory(wrong)  # type: ignore[arg-type]


def test_sizes_are_checked(sums: tkc.Executable) -> None:
    """Each has to be given, to be one of the model's, and in its range."""
    for sizes, message in (
        ({}, "give the size rows"),
        ({"rows": 3, "columns": 3}, "no size columns; its sizes are rows"),
        ({"rows": 5000}, "rows=5000 is out of range"),
    ):
        with pytest.raises(tkc.UsageError, match=message):
            sums.activation_bytes(**sizes)


def test_the_larger_branch_counts() -> None:
    """And what comes behind it has the result of the one that was taken, not of both."""
    vector = helper.make_tensor_value_info

    def branch(name: str, operators: int) -> onnx.GraphProto:
        values = ["x", *(f"{name}_{n}" for n in range(operators))]
        nodes = [helper.make_node("CumSum", [before, "axis"], [after]) for before, after in pairwise(values)]
        return helper.make_graph(nodes, name, [], [vector(values[-1], TensorProto.FLOAT, ["rows", 8])])

    branches = {"then_branch": branch("long", 3), "else_branch": branch("short", 1)}
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["y"], **branches), helper.make_node("Exp", ["y"], ["z"])],
        "branches",
        [vector("condition", TensorProto.BOOL, []), vector("x", TensorProto.FLOAT, ["rows", 8])],
        [vector("z", TensorProto.FLOAT, ["rows", 8])],
        [helper.make_tensor("axis", TensorProto.INT64, [], [0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    plan = tkc.explain(model, target="cuda:sm_90a", database=False).activations
    assert plan.besides == ()
    assert plan.peak({"rows": 16}) == 2 * 16 * 8 * 4


class Grows(nn.Module):
    """Adds its inputs to a cache, and calls an operator in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[4, 4]``."""
        self.cache.add_(x)
        return torch.linalg.pinv(self.cache) + x


def test_what_only_a_call_can_tell_is_named() -> None:
    """A lower bound is told to be one, and a model with state is limited too."""
    executable = tkc.compile(Grows(), (torch.eye(4),), database=False)
    assert any("PyTorch" in each for each in executable.report.activations.besides)
    assert "PyTorch" in executable.report.activations.told()
    state = executable.state["cache"].clone()
    executable.limit_memory(0)
    with pytest.raises(tkc.OutOfMemoryError, match=r"needs at least .* limit is 0"):
        executable(torch.eye(4))
    assert torch.equal(executable.state["cache"], state)


class Selects(nn.Module):
    """The elements that are positive, and their squares."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows]``."""
        return x[x > 0].cumsum(0)


def test_sizes_that_the_model_computes_are_named() -> None:
    """What lies in tensors of such sizes is not in the plan."""
    report = tkc.explain(Selects(), (torch.randn(5),), target="cpu", database=False)
    assert report.activations.besides


def test_a_program_is_limited_as_a_whole(tmp_path: Path) -> None:
    """And each entry says what it allocates; artifacts keep the plan."""
    x = torch.randn(3, WIDTH)
    program = tkc.compile(Sums(), entries={"sums": tkc.Entry(example_args=(x,))}, database=False)
    loaded = tkc.load(program.save(tmp_path / "program.tkc"))
    assert isinstance(loaded, tkc.Program)
    assert loaded.entries["sums"].activation_bytes() == 3 * 3 * WIDTH * 4
    loaded.limit_memory(100)
    with pytest.raises(tkc.OutOfMemoryError, match="limit is 100"):
        loaded.entries["sums"](x)
    with pytest.raises(tkc.InputError, match=r"exe\.sums\.activation_bytes"):
        loaded.activation_bytes()


def test_an_artifact_of_an_earlier_release_cannot_be_limited(sums: tkc.Executable) -> None:
    """It runs as it did."""
    data = json.loads(json.dumps(sums.report.to_json()))
    assert tkc.Report.from_json(data) == sums.report
    del data["activations"]
    report = tkc.Report.from_json(data)
    assert report.activations == ActivationPlan()
    old = tkc.Executable(sums.target, replace(sums._contents().entries["main"], report=report))
    for call in (lambda: old.limit_memory(1), lambda: old.activation_bytes(rows=3)):
        with pytest.raises(tkc.UsageError, match="compile it again"):
            call()
    x = torch.randn(3, WIDTH)
    assert torch.equal(old(x), sums(x))


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("activations", {"sizes": ["__import__('os')"]}),
        ("activations", {"moments": [[99]]}),
        ("calls", {"graphs": {"main": {"sites": [{"symbol": "f", "function": "f", "nodes": [7]}]}}, "nodes": []}),
        ("calls", {"graphs": {"main": {"sites": [], "first": [3]}}}),
    ],
)
def test_what_cannot_be_is_refused(sums: tkc.Executable, part: str, change: dict[str, object]) -> None:
    """Formulas that are none, and positions that there are not, in a changed artifact."""
    data = json.loads(json.dumps(sums.report.to_json()))
    data[part] |= change
    with pytest.raises(ValueError, match=r"no formula|there is not"):
        tkc.Report.from_json(data)


@pytest.mark.gpu
def test_a_gpu_holds_so_much() -> None:
    """As PyTorch's allocator is asked for it; what it gives may be a block up to 1 MiB larger."""
    x = torch.randn(1000, 1000, device="cuda")
    executable = tkc.compile(Sums(), (x,), target="cuda", database=False)
    executable.cuda_graphs = False
    executable(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    executable(x)
    grown = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    assert grown == pytest.approx(executable.activation_bytes(), rel=0.01)
