"""Profiles: which nodes each function computes, how much work that is, and that their times are those of the call."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tkc
from tests.runtime import profiled_models
from tests.runtime.profiled_models import WIDTH, Block, functions
from tkc.runtime.profiling.node_names import common_path, module_path, named_nodes, operator
from tkc.runtime.profiling.profile import Profile
from tkc.runtime.profiling.rows import HOST


def test_each_row_has_the_nodes_that_it_computes(layers: tkc.Executable) -> None:
    """Also where layers share a function, and with the lines of the model's own code."""
    rows = functions(layers.profile(torch.randn(7, WIDTH), repeat=3))
    expected = {
        text.format(layer)
        for layer in range(3)
        for text in (
            "layers.{0}.norm (layer_norm)",
            "layers.{0}.up (linear), layers.{0} (gelu)",
            "layers.{0}.down (linear), layers.{0} (add)",
        )
    }
    assert set(rows) == expected
    assert all(row.calls == 1 for row in rows.values())
    add = rows["layers.1.down (linear), layers.1 (add)"].nodes[-1]
    lines = Path(profiled_models.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "x + self.down" in text)
    assert f'profiled_models.py", line {line}' in add
    kind = "kernel" if layers.report.uses else "generated"
    assert {row.kind for row in rows.values()} == {kind}


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_work_is_counted_at_the_sizes_of_the_call(layers: tkc.Executable, rows: int) -> None:
    """Of products exactly, and what is moved: the tensors that are read and written."""
    found = functions(layers.profile(torch.randn(rows, WIDTH), repeat=1))
    down = found["layers.2.down (linear), layers.2 (add)"]
    products = 2 * rows * 64 * WIDTH
    assert products <= down.flops <= products + 3 * rows * WIDTH
    assert down.bytes == 4 * (rows * 64 + 64 * WIDTH + WIDTH + 2 * rows * WIDTH)
    assert down.roofline > 0


def test_the_rows_are_the_time_of_the_call() -> None:
    """Of a model that takes milliseconds, functions have nearly all, and the host the rest."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).eval()
    x = torch.randn(512, 512)
    executable = tkc.compile(model, (x,), database=False)
    profiles = (executable.profile(x, repeat=9) for _ in range(8))  # other processes have their share of the time
    profile = next(each for each in profiles if 0.85 < each.function_seconds / each.call_seconds < 1.15)
    total = sum(row.seconds for row in profile.rows)
    assert total == pytest.approx(max(profile.call_seconds, profile.function_seconds))
    assert profile.rows[-1].kind == HOST
    seconds = [row.seconds for row in profile.rows[:-1]]
    assert seconds == sorted(seconds, reverse=True)
    assert [row.share for row in profile.rows] == [row.seconds / profile.call_seconds for row in profile.rows]
    last = next(row for row in profile.rows if row.name.endswith("[2 (linear)]"))
    assert profile.by_module() == {"2": last.seconds}  # what is fused over two modules is in neither


def test_a_profile_is_written_and_read_back(layers: tkc.Executable, tmp_path: Path) -> None:
    """As JSON, and as a page that loads nothing."""
    profile = layers.profile(torch.randn(2, WIDTH), repeat=2)
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    written = json.loads(profile.save(tmp_path / "profile.json").read_text())
    assert Profile.from_dict(written) == profile
    page = profile.save(tmp_path / "profile.html").read_text()
    assert "layers.1.up (linear)" in page and "not in any function" in page
    assert "http" not in page and "<script" not in page
    assert "layers.1.up" in str(profile) and "Roofline" in str(profile)
    for wrong in (tmp_path / "profile.txt", tmp_path / "no" / "profile.html"):
        with pytest.raises(tkc.UsageError, match=r"profile\.(txt|html)"):
            profile.save(wrong)


def test_a_saved_model_has_its_profile(layers: tkc.Executable, tmp_path: Path) -> None:
    """Names and work stand in the artifact."""
    x = torch.randn(5, WIDTH)
    loaded = tkc.load(layers.save(tmp_path / "layers.tkc"))
    rows, expected = functions(loaded.profile(x, repeat=1)), functions(layers.profile(x, repeat=1))
    assert {key: (row.flops, row.bytes) for key, row in rows.items()} == {
        key: (row.flops, row.bytes) for key, row in expected.items()
    }


def test_an_artifact_of_an_earlier_release_has_functions_without_nodes(layers: tkc.Executable) -> None:
    """And is profiled by their names."""
    data = layers.report.to_json()
    del data["calls"]
    old = copy.copy(layers)
    old.report = tkc.Report.from_json(data)
    rows = [row for row in old.profile(torch.randn(5, WIDTH), repeat=1).rows if row.kind != HOST]
    assert sum(row.calls for row in rows) == 9
    assert all(not row.nodes and row.flops is None and row.roofline is None for row in rows)


class Convolutions(nn.Module):
    """Two convolutions of PyTorch's library, on images whose channels it wants last, and one of TKC's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(32, 32, 3, padding=1, groups=2) for _ in range(2))
        self.head = nn.Conv2d(32, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, 32, 24, 24]``."""
        y: torch.Tensor = self.head(self.second(self.first(x).relu()).relu())
        return y


def test_what_a_pass_makes_of_a_node_has_its_name() -> None:
    """Each call of the library is of its own convolution, though the graph has other variables by then."""
    x = torch.randn(1, 32, 24, 24)
    profile = tkc.compile(Convolutions().eval(), (x,), target="cpu", database=False).profile(x, repeat=2)
    called = [row.name for row in profile.rows if row.function == "aten::convolution"]
    assert len(called) == 2
    assert sorted("first" in name for name in called) == sorted("second" in name for name in called) == [False, True]
    (head,) = [row for row in profile.rows if row.kind == "product"]
    assert head.function == "tkc.convolution" and "head" in head.name


class Counts(nn.Module):
    """Adds its input to a buffer, and sorts it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[6, 6]``."""
        self.sums.add_(x)
        x.mul_(2.0)
        return torch.sort(self.sums, dim=-1)[0] @ torch.linalg.pinv(self.sums)


def test_what_a_model_changes_is_as_it_was() -> None:
    """State and updated inputs; operators in PyTorch have rows by their names."""
    executable = tkc.compile(Counts(), (torch.eye(6),), database=False)
    executable(torch.eye(6))
    x = torch.eye(6)
    before = executable.state["sums"].clone()
    profile = executable.profile(x, repeat=3)
    assert torch.equal(x, torch.eye(6))
    assert torch.equal(executable.state["sums"], before)
    called = [row for row in profile.rows if row.kind == "PyTorch"]
    assert called and all(row.function.startswith("aten::") and row.nodes for row in called)


class Chooses(nn.Module):
    """A branch of two, and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[4, WIDTH]``."""
        from torch._higher_order_ops import while_loop

        def more(i: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return i < 5

        def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, self.other(x).sigmoid()

        y = torch.cond(x.sum() > 0, lambda x: self.one(x).relu(), lambda x: (x * 2).tanh(), (x,))
        return while_loop(more, step, (torch.tensor(0), y))[1]


def test_branches_and_loops_have_the_rows_that_ran() -> None:
    """A branch has those of the side that was taken, a loop as many calls as it took steps."""
    executable = tkc.compile(Chooses().eval(), (torch.ones(4, WIDTH),), database=False)
    for sign, taken, other in ((1, "relu", "tanh"), (-1, "tanh", "relu")):
        rows = executable.profile(sign * torch.ones(4, WIDTH), repeat=2).rows
        operators = {operator(node): row for row in rows for node in row.nodes}
        assert taken in operators and other not in operators
        assert operators["sigmoid"].calls == 5
        assert operators["lt"].calls == 6


def test_branches_that_call_one_function_have_the_nodes_of_both() -> None:
    """What the machine tells cannot say which it was. What follows the branch is known again."""
    vector = helper.make_tensor_value_info

    def branch(name: str, scale: str) -> onnx.GraphProto:
        node = helper.make_node("Mul", ["x", scale], [f"{name}_y"], name=name)
        return helper.make_graph([node], name, [], [vector(f"{name}_y", TensorProto.FLOAT, [3])])

    branches = {"then_branch": branch("doubles", "two"), "else_branch": branch("trebles", "three")}
    nodes = [
        helper.make_node("If", ["c"], ["y"], **branches),
        helper.make_node("Exp", ["y"], ["z"], name="grows"),
    ]
    scales = [helper.make_tensor(n, TensorProto.FLOAT, [1], [v]) for n, v in (("two", 2.0), ("three", 3.0))]
    graph = helper.make_graph(
        nodes,
        "chooses",
        [vector("c", TensorProto.BOOL, []), vector("x", TensorProto.FLOAT, [3])],
        [vector("z", TensorProto.FLOAT, [3])],
        scales,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    executable = tkc.compile(model, database=False)
    rows = executable.profile(torch.tensor(False), torch.ones(3), repeat=1).rows
    nodes_of = [{module_path(node) for node in row.nodes} for row in rows if row.nodes]
    assert nodes_of.count({"doubles", "trebles"}) == 1
    assert sum("grows" in each for each in nodes_of) == 1


def test_others_may_call_the_model_meanwhile(layers: tkc.Executable) -> None:
    """By machines of their own."""
    x = torch.randn(64, WIDTH)
    expected = layers(x)
    wrong: list[int] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            if not torch.equal(layers(x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        calls = [row.calls for row in layers.profile(torch.randn(3, WIDTH), repeat=10).rows if row.kind != HOST]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert calls == [1] * 9
    assert not wrong


def test_inputs_are_checked_as_in_a_call(layers: tkc.Executable) -> None:
    """And so is the number of calls."""
    with pytest.raises(tkc.InputError, match="expected 48"):
        layers.profile(torch.randn(3, 4))
    for repeat in (0, True, 1.5):
        with pytest.raises(tkc.UsageError, match="repeat="):
            layers.profile(torch.randn(3, WIDTH), repeat=repeat)  # type: ignore[arg-type]


def test_a_program_is_profiled_by_its_entries() -> None:
    """Whose names the error tells."""
    x = torch.randn(2, WIDTH)
    program = tkc.compile(Block().eval(), entries={"decode": tkc.Entry(example_args=(x,))}, database=False)
    assert isinstance(program, tkc.Program)
    assert functions(program.entries["decode"].profile(x, repeat=1))
    with pytest.raises(tkc.InputError, match=r"exe\.decode\.profile"):
        program.profile(x)


def test_nodes_are_told_in_short() -> None:
    """By their module's path and operator."""
    linear = "aten.linear.default (module 'layers.0.up', File \"model.py\", line 3, in forward)"
    gelu = "aten.gelu.default (module 'layers.0', File \"model.py\", line 6, in forward)"
    split = "ONNX node '/layers.0/attn/Split' (Split)"
    assert (module_path(linear), operator(linear)) == ("layers.0.up", "linear")
    assert (module_path(split), operator(split)) == ("/layers.0/attn/Split", "Split")
    assert named_nodes([linear, gelu, linear]) == "layers.0.up (linear), layers.0 (gelu)"
    assert named_nodes([linear, gelu], most=1) == "layers.0.up (linear), … 1 more"
    assert named_nodes(['aten.softmax.int (File "model.py", line 1, in forward)']) == "softmax"
    view = "aten.view.default (module 'layers.0', File \"model.py\", line 6, in forward)"
    assert named_nodes([view, linear]) == "layers.0.up (linear)" and named_nodes([view]) == "layers.0 (view)"
    assert common_path([linear, gelu]) == "layers.0"
    assert common_path([]) == common_path([linear, "aten.add.Tensor"]) == ""
