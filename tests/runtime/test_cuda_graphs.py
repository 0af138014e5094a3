"""CUDA graphs: which calls are recorded and kept, and that replaying one is calling the model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import tkc
from tkc.runtime import cuda_graphs
from tkc.runtime.cuda_graphs import CudaGraphs, Launches


@dataclass
class Recording:
    """Stands in for recording: counts what is recorded, launched and replayed, by the number of rows."""

    bytes_per_row: int = 1
    recorded: list[int] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)

    def graphs(self, monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
        """Graphs that are recorded here."""

        class Recorded(cuda_graphs._Recorded):
            def replay(_, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                self.replayed.append(len(inputs[0]))
                return []

        def record(_: object, inputs: Sequence[torch.Tensor], __: object) -> cuda_graphs._Recorded:
            rows = len(inputs[0])
            self.recorded.append(rows)
            return Recorded(graph=object(), bytes=rows * self.bytes_per_row)  # type: ignore[arg-type]

        monkeypatch.setattr(cuda_graphs, "_record", record)
        return CudaGraphs(lambda inputs: self.launched.append(len(inputs[0])) or [], lambda inputs: ([], 0, None))


def call(graphs: CudaGraphs, *rows: int) -> None:
    """One call for each number of rows."""
    for count in rows:
        graphs([torch.empty(count, 1)])


def test_the_second_call_of_a_shape_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that come once cost nothing; others are recorded once."""
    recording = Recording()
    call(recording.graphs(monkeypatch), 3, 4, 3, 3, 3, 5)
    assert recording.launched == [3, 4, 5] and recording.recorded == [3] and recording.replayed == [3, 3, 3]


def test_the_graph_that_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more shape than are kept drops the oldest, which is recorded anew when it comes back twice."""
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    recording = Recording()
    call(recording.graphs(monkeypatch), 1, 1, 2, 2, 1, 3, 3, 1, 2, 2)
    assert recording.recorded == [1, 2, 3, 2] and recording.launched == [1, 2, 3, 2]


def test_graphs_hold_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones make room for new ones by their bytes."""
    monkeypatch.setattr(cuda_graphs, "MOST_BYTES", 50)
    recording = Recording(bytes_per_row=10)
    call(recording.graphs(monkeypatch), 2, 2, 3, 3, 4, 4, 4, 3)
    assert recording.recorded == [2, 3, 4] and recording.launched == [2, 3, 4, 3]


def test_inputs_that_stay_where_they_are_belong_to_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for these tensors alone; others at their place are recorded by themselves."""
    recording = Recording()
    recording.graphs(monkeypatch)
    graphs = CudaGraphs(lambda inputs: recording.launched.append(3) or [], lambda inputs: ([], 0, None), in_place=[1])
    one, other = torch.empty(5), torch.empty(5)
    for weights in (one, one, one, other, one, other, other):
        graphs([torch.empty(3, 1), weights])
    assert recording.launched == [3, 3] and recording.recorded == [3, 3] and recording.replayed == [3] * 5


def test_a_call_without_inputs_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs tell generated code the stream: without, its kernels would run beside the recording and leave it empty."""
    recording, runs = Recording(), []
    recording.graphs(monkeypatch)
    graphs = CudaGraphs(lambda inputs: runs.append(len(inputs)) or [], lambda inputs: ([], 0, None))
    for _ in range(3):
        graphs([])
    assert runs == [0, 0, 0] and recording.recorded == []


@pytest.mark.parametrize(
    ("functions", "rows", "is_recorded"),
    [(2, 8, False), (5, 8, True), (None, 8, True), (5, 1 << 22, False), (100, 1 << 22, True), (0, 8, False)],
)
def test_what_is_sooner_launched_is_not_recorded(
    functions: int | None, rows: int, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few functions, or large tensors, which a graph copies."""
    recording = Recording()
    recording.graphs(monkeypatch)
    results = [torch.empty(rows, 4, device="meta")]
    launches = None if functions is None else Launches(functions, 4.8e12)
    graphs = CudaGraphs(lambda inputs: results, lambda inputs: (results, 0, None), launches=launches)
    for _ in range(3):
        graphs([torch.empty(rows, 4, device="meta")])
    assert bool(recording.recorded) == is_recorded


def test_what_updates_its_inputs_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not copied."""
    recording = Recording()
    recording.graphs(monkeypatch)
    graphs = CudaGraphs(lambda inputs: [], lambda inputs: ([], 0, None), in_place=[0], launches=Launches(1, 4.8e12))
    cache = torch.empty(4, 4)
    for _ in range(3):
        graphs([cache])
    assert recording.recorded == [4]


class Layer(nn.Module):
    """Products, a normalization and a reduction that generated code does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)
        self.second = nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [batch, 256]``; as many outputs, and their mean."""
        y = x + self.second(torch.relu(self.norm(self.first(x))))
        return y, y.mean(0)


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    """The model in bfloat16 on the GPU."""
    torch.manual_seed(0)
    return Layer().to("cuda", torch.bfloat16).eval()


@pytest.fixture
def executable(layer: nn.Module) -> tkc.Executable:
    """The model compiled with a symbolic batch."""
    sizes = ({0: torch.export.Dim("batch", max=4096)},)
    return tkc.compile(layer, (inputs(2),), target="cuda", dynamic_shapes=sizes)


def inputs(batch: int) -> torch.Tensor:
    """Random inputs of a batch on the GPU."""
    return torch.randn(batch, 256, device="cuda", dtype=torch.bfloat16)


@pytest.mark.gpu
def test_replays_agree_with_launches(executable: tkc.Executable) -> None:
    """Each call of a recorded shape computes from its own inputs, and its outputs outlive the next call."""
    kept = []
    for batch in (1, 64, 1, 64, 1, 64, 1, 64):
        x = inputs(batch)
        kept.append((x, executable(x)))
    executable.cuda_graphs = False
    for x, outputs in kept:
        for replayed, launched in zip(outputs, executable(x), strict=True):
            assert torch.equal(replayed, launched)


@pytest.mark.gpu
def test_other_shapes_between_replays_do_not_disturb_them(executable: tkc.Executable) -> None:
    """What a call of another shape computes, and what its caller keeps, lies outside the memory of graphs."""
    x = inputs(64)
    first = executable(x)[0].clone()
    kept = []
    for batch in range(60, 70):
        other = inputs(batch)
        kept.append((other, executable(other)[0]))
        assert torch.equal(executable(x)[0], first)
    executable.cuda_graphs = False
    assert all(torch.equal(executable(other)[0], outputs) for other, outputs in kept)


@pytest.mark.gpu
def test_replays_run_on_the_current_stream(executable: tkc.Executable) -> None:
    """Work that the caller's stream holds before a call is done before the graph reads its inputs."""
    x = inputs(64)
    expected = [executable(x)[0] for _ in range(3)][-1]
    late = torch.zeros_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        result = executable(late)[0]
        torch.cuda.current_stream().synchronize()
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_a_call_that_needs_too_much_memory_is_launched(
    executable: tkc.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once, and gives what it gave before."""
    monkeypatch.setattr(cuda_graphs, "MOST_BYTES", 1000)
    x = inputs(64)
    first, second, third = (executable(x)[0] for _ in range(3))
    assert torch.equal(first, second) and torch.equal(second, third)
    graphs = executable._running._graphs
    assert all(recorded is None or recorded.graph is None for recorded in graphs._recorded.values())


@pytest.mark.gpu
def test_what_cannot_be_recorded_is_launched_with_a_warning(
    executable: tkc.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synchronization within the call, which a capture forbids; the device stays usable."""
    x = inputs(8)
    first = executable(x)[0]

    def synchronizing(inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int, None]:
        torch.cuda.current_stream().synchronize()
        return [], 0, None

    monkeypatch.setattr(executable._running._graphs, "_retaining", synchronizing)
    with pytest.warns(UserWarning, match="launched one by one"):
        second = executable(x)[0]
    assert torch.equal(first, second) and torch.equal(executable(x)[0], first)
    assert torch.rand(3, device="cuda").min() >= 0  # the generator is not left in the recording


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_on_a_gpu_that_is_not_the_current_one(layer: nn.Module, executable: tkc.Executable) -> None:
    """It is compiled for its own GPU and runs there, recorded too, by turns with one on the current GPU."""
    with torch.no_grad():
        x = inputs(5)
        other = tkc.compile(copy.deepcopy(layer).to("cuda:1"), (x.to("cuda:1"),), target="cuda")
        for _ in range(4):
            (found, _), (expected, _) = other(x.to("cuda:1")), executable(x)
            assert found.device == torch.device("cuda:1") == other.device and torch.cuda.current_device() == 0
            assert torch.equal(found.to("cuda:0"), expected)
        with torch.cuda.device(1):
            assert torch.equal(executable(x)[0], expected)


@pytest.mark.gpu
def test_a_failed_recording_leaves_pytorch_as_it_was(executable: tkc.Executable) -> None:
    """The caller's stream is the current one, and nothing is being recorded."""
    before = torch.cuda.current_stream()

    def failing(_: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int, None]:
        raise RuntimeError("not this one")

    with pytest.warns(UserWarning, match="not this one"):
        assert cuda_graphs._record(failing, [inputs(3)], ()) is None
    assert torch.cuda.current_stream() == before and not torch.cuda.is_current_stream_capturing()
    assert torch.equal(executable(inputs(3) * 0)[0], executable(inputs(3) * 0)[0])
