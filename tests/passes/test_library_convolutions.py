"""Convolutions on the CPU, by the runtime's products or PyTorch's library, against PyTorch in float64."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper, parser
from torch import nn
from torch.export import Dim

import tkc


class Chain(nn.Module):
    """A layer, what follows it, and the layer again if it may follow itself."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, channels, ...]``."""
        return torch.relu(self.norm(self.layer(x))) * 0.5 + 1


def normalized(channels: int, rank: int) -> nn.Module:
    """A batch normalization with statistics as of a trained network."""
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[rank](channels)
    with torch.no_grad():
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return norm


def calls(executable: tkc.Executable) -> int:
    """How many convolutions the library computes."""
    return sum(use.calls for use in executable.report.library_calls)


def check(executable: Callable[..., torch.Tensor], model: nn.Module, x: torch.Tensor) -> None:
    """The result is as near to float64 as PyTorch's own, give or take the order of sums."""
    exact = model.double()(x.double())
    own = (model.float()(x) - exact).abs().max()
    found = executable(x)
    assert found.dtype == torch.float32 and found.is_contiguous()
    assert (found - exact).abs().max() <= 4 * own + 1e-6 * exact.abs().max()


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "3 x 3": (nn.Conv2d(16, 24, 3, padding=1), (16, 15, 18)),
    "pixels": (nn.Conv2d(256, 128, 1, bias=False), (256, 22, 23)),
    "stride, dilation": (nn.Conv2d(16, 24, (3, 5), stride=(2, 1), padding=(2, 4), dilation=(2, 3)), (16, 21, 20)),
    "groups": (nn.Conv2d(32, 64, 3, groups=4, padding=1), (32, 14, 13)),
    "depthwise": (nn.Conv2d(64, 64, 5, groups=64, padding=2), (64, 24, 25)),
    "depthwise, twice as many": (nn.Conv2d(48, 96, 3, groups=48), (48, 30, 31)),
    "uneven padding": (nn.Conv2d(16, 24, 4, padding="same"), (16, 15, 18)),
    "one channel": (nn.Conv2d(1, 32, 7, stride=2), (1, 64, 60)),
    "signal": (nn.Conv1d(40, 64, 5, padding=2, stride=2), (40, 180)),
    "uneven signal": (nn.Conv1d(40, 64, 4, padding="same"), (40, 90)),
    "volume": (nn.Conv3d(8, 12, 3, padding=1), (8, 7, 9, 11)),
    "mirrored": (nn.Conv2d(16, 24, 3, padding=1, padding_mode="reflect"), (16, 15, 18)),
}
OF_THE_LIBRARY = ("groups", "depthwise, twice as many", "volume")
"""Those that the runtime's own products are not for (``passes/canonical/library_convolutions.py``)."""


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("owns", [False, True], ids=["shared", "packed"])
def test_agrees_with_pytorch_at_every_size(name: str, owns: bool) -> None:
    """Batches of none, one and several, and images of other sizes; weights that are shared, and packed once."""
    layer, sizes = LAYERS[name]
    model = Chain(layer, normalized(layer.out_channels, len(sizes) - 1)).eval()
    shapes = ({0: Dim("batch", min=0, max=64), **{i: Dim.AUTO for i in range(2, len(sizes) + 1)}},)
    x = torch.randn(4, *sizes)
    executable = tkc.compile(model, (x,), target="cpu", dynamic_shapes=shapes, copy_weights=owns, database=False)
    assert calls(executable) == (name in OF_THE_LIBRARY)
    for batch, longer in ((4, 0), (1, 3), (7, 6), (0, 0)):
        given = torch.randn(batch, sizes[0], *(size + longer for size in sizes[1:]))
        for _ in range(2):  # packed by the first call, and taken by the second
            check(executable, model, given) if batch else executable(given)


class Block(nn.Module):
    """A residual block of grouped convolutions, which are the library's, pooled and classified."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([normalized(32, 2) for _ in range(2)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, 32, height, width]``."""
        y = F.relu(self.norms[0](self.first(x)))
        y = F.max_pool2d(F.relu(self.norms[1](self.second(y)) + x), 2)
        out: torch.Tensor = self.head(y.mean((2, 3)))
        return out


def compiled_block(**options: object) -> tuple[nn.Module, torch.Tensor, tkc.Executable]:
    """A residual block with an input."""
    model, x = Block().eval(), torch.randn(2, 32, 16, 16)
    return model, x, tkc.compile(model, (x,), target="cpu", database=False, **options)


def test_nothing_is_transposed_between_convolutions(tmp_path: Path) -> None:
    """The input is: the result has no channels left to bring forward."""
    compiled_block(dump=tmp_path)
    (after,) = tmp_path.glob("*_substitute_kernels.py")
    moved = [line for line in after.read_text().splitlines() if "R.permute_dims(" in line]
    assert moved and [line for line in moved if "R.permute_dims(x" not in line and "head" not in line] == []


def test_shared_weights_may_change_and_own_ones_are_the_executables() -> None:
    """A model that is trained further changes the first executable, also by ways that PyTorch does not count."""
    model, x, shared = compiled_block()
    own = tkc.compile(model, (x,), target="cpu", database=False, copy_weights=True)
    before = own(x)
    torch.testing.assert_close(shared(x), before)
    model.first.weight.data.mul_(2)  # type: ignore[operator, union-attr]
    check(shared, model, x)
    assert not torch.allclose(shared(x), before)
    torch.testing.assert_close(own(x), before, rtol=0, atol=0)


ONNX = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 32, h, w] x) => (float[n, 32, a, b] z) {
    y = Conv<group = 2>(x, filters)
    z = Relu(y)
}"""


def test_an_onnx_models_weights_are_packed() -> None:
    """They are bytes of the model, which nobody changes."""
    proto = parser.parse_model(ONNX)
    weight = torch.randn(32, 16, 3, 3)
    proto.graph.initializer.append(numpy_helper.from_array(weight.numpy(), "filters"))
    executable = tkc.compile(proto, target="cpu", database=False)
    assert calls(executable) == 1
    for size in (8, 9, 8):
        x = torch.randn(2, 32, size, size + 2)
        expected = F.conv2d(x.double(), weight.double(), groups=2).relu()
        assert (executable(x) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert executable._running._loaded is not None and len(executable._running._loaded._packed or ()) == 1


class OfGivenWeights(nn.Module):
    """Convolves with an input, and with what is computed of a parameter and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32, 3, 3))

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """``x [batch, 32, height, width]``, ``given [32, 32, 3, 3]``."""
        return F.conv2d(F.conv2d(x, given), self.weight * given.abs().mean())


TRANSPOSED = {
    "doubled": (nn.ConvTranspose2d(24, 24, 2, stride=2), "strides = [2, 2]", (16, 17)),
    "overlapping": (
        nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1),
        "strides = [2, 2], pads = [1, 1, 1, 1]",
        (9, 8),
    ),
    "groups": (
        nn.ConvTranspose2d(32, 48, 3, stride=(1, 3), groups=4, padding=(2, 0), output_padding=(0, 1)),
        "strides = [1, 3], group = 4, pads = [2, 0, 2, 0], output_padding = [0, 1]",
        (12, 13),
    ),
    "depthwise": (nn.ConvTranspose2d(64, 64, 4, stride=2, groups=64), "strides = [2, 2], group = 64", (20, 21)),
    "signal": (nn.ConvTranspose1d(48, 40, 5, stride=2), "strides = [2]", (150,)),
    "volume": (nn.ConvTranspose3d(8, 12, 3, stride=2), "strides = [2, 2, 2]", (6, 7, 8)),
    "uneven": (nn.ConvTranspose2d(24, 24, 3, stride=2), "strides = [2, 2], pads = [0, 1, 1, 0]", (16, 17)),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_onnx_agree_at_every_size(name: str) -> None:
    """Those whose edges are cropped unevenly are generated."""
    layer, attributes, sizes = TRANSPOSED[name]
    rank, weight, bias = len(sizes), layer.weight.detach(), layer.bias.detach()
    names = ", ".join(f"s{i}" for i in range(rank))
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[B, {weight.shape[0]}, {names}] x) => (float[B, C, {", ".join(f"t{i}" for i in range(rank))}] y)
        {{ z = Relu(x)  y = ConvTranspose<{attributes}>(z, w, b) }}""")
    proto.graph.initializer.extend(
        numpy_helper.from_array(array.numpy(), name) for name, array in (("w", weight), ("b", bias))
    )
    executable = tkc.compile(proto, target="cpu", database=False)
    assert calls(executable) == (name != "uneven")
    for batch, longer in ((1, 0), (3, 5)):
        x = torch.randn(batch, weight.shape[0], *(size + longer for size in sizes))
        expected = layer.double()(x.relu().double())
        if name == "uneven":
            expected = expected[:, :, :-1, 1:]
        for _ in range(2):
            assert (executable(x) - expected).abs().max() <= 2e-6 * expected.abs().max()
        layer.float()


def test_weights_that_a_call_brings_are_not_kept() -> None:
    """Two calls with other weights at the same address give other results."""
    model, x, given = OfGivenWeights().eval(), torch.randn(2, 32, 16, 16), torch.randn(32, 32, 3, 3)
    executable = tkc.compile(model, (x, given), target="cpu", database=False, copy_weights=True)
    assert calls(executable) == 2
    for _ in range(3):
        expected = model.double()(x.double(), given.double())
        found = executable(x, given)
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
        model.float()
        given.normal_()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "options", [{"kernels": "none"}, {"kernels": "all"}, {"batch_invariant": True}], ids=lambda each: str(each)
)
def test_is_left_out_where_it_is_not_wanted(options: dict[str, object]) -> None:
    """Generated code convolves then."""
    model, x, executable = compiled_block(**options)
    assert calls(executable) == 0 and "aten::convolution" not in executable.requires.operators
    check(executable, model, x)


@pytest.mark.parametrize(
    ("layer", "batch", "expected"),
    [
        (nn.Conv2d(8, 8, 3, groups=2), 1, 0),  # 2^15.5 products
        (nn.Conv2d(8, 8, 3, groups=2), 32, 1),
        (nn.Conv2d(64, 64, 1, groups=2), 1, 0),  # 2^19 products of single pixels
        (nn.Conv2d(64, 64, 1, groups=2), 32, 1),
    ],
)
def test_what_costs_less_than_a_call_is_generated(layer: nn.Conv2d, batch: int, expected: int) -> None:
    """Images of 16 by 16, one and many."""
    x = torch.randn(batch, layer.in_channels, 16, 16)
    assert calls(tkc.compile(layer, (x,), target="cpu", database=False)) == expected


def test_an_artifact_says_what_it_calls(tmp_path: Path) -> None:
    """The report lists the library apart from what has no converter, and the loaded model gives the same."""
    model, x, executable = compiled_block(fallback=False)
    assert executable.report.verdict == "compiled whole" and not executable.report.operators
    (use,) = executable.report.library_calls
    assert (
        (use.operator, use.calls) == ("aten::convolution", 2)
        and use.nodes == ("first_weight", "second_weight")
        and "oneDNN" in use.why
    )
    assert "aten::convolution" in str(executable.report)
    executable.save(tmp_path / "block.tkc")
    loaded = tkc.load(tmp_path / "block.tkc")
    assert loaded.requires.operators == ("aten::convolution",) and loaded.report == executable.report
    check(loaded, model, x)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch computes in two threads, whatever the other tests do."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_call_at_once() -> None:
    """Each gets its own result, while the weights are packed."""
    model, _, executable = compiled_block(copy_weights=True)
    inputs = [torch.randn(2, 32, 16, 16) for _ in range(4)]
    expected = [model(x) for x in inputs]
    found: dict[int, list[torch.Tensor]] = {}

    def run(i: int) -> None:
        found[i] = [executable(inputs[i]) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, results in found.items():
        for result in results:
            torch.testing.assert_close(result, expected[i])


ONE_THREAD = """
import sys, threading
from pathlib import Path
import torch, tkc
torch.set_num_threads(int(sys.argv[2]))
executable = tkc.load(sys.argv[1])
names = lambda: [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
before, x = len(names()), torch.randn(2, 32, 64, 64)
executable(x)
print(len(names()) - before, names().count("tkc-worker"))
"""


@pytest.mark.daily(1)
def test_loops_run_in_as_many_threads_as_pytorch_has(tmp_path: Path) -> None:
    """There is no pool beside OpenMP's; with one thread, nothing runs beside the caller."""
    _, _, executable = compiled_block(dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},))
    executable.save(tmp_path / "block.tkc")
    environment = {name: value for name, value in os.environ.items() if name != "TVM_NUM_THREADS"}
    found = []
    for threads in ("1", "3"):
        command = [sys.executable, "-c", ONE_THREAD, str(tmp_path / "block.tkc"), threads]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(tuple(map(int, run.stdout.split())))
    (alone, workers), (more, others) = found
    assert (alone, workers, others) == (0, 0, 0) and more >= 2


@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_calls_too() -> None:
    """OpenMP's threads are gone there: what waited for them would never end."""
    _, x, executable = compiled_block()
    expected = executable(x).clone()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(executable(x).tolist()))
    child.start()
    assert receiver.poll(60), "the child hangs"
    torch.testing.assert_close(torch.tensor(receiver.recv()), expected)
    child.join(10)
    assert child.exitcode == 0
