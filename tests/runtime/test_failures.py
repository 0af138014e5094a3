"""Failures of libraries below TKC: each is an InternalError that names the stage and the node, with a folder."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import tvm
from onnx import TensorProto, helper

import tkc
from tkc import pipeline
from tkc.child import ChildDiedError, ChildStuckError, RaisedInChildError, in_child
from tkc.compiler import code
from tkc.diagnosis.bug_report import write_bug_report
from tkc.frontend.torch.converters import CONVERTERS
from tkc.runtime.loaded_code import LoadedCode


class Layers(torch.nn.Module):
    """A hyperbolic tangent among other things, with a symbolic batch."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.middle = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Tanh())
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, 4]``."""
        hidden = self.middle(torch.nn.functional.gelu(self.first(x)))
        return torch.sigmoid(self.last(hidden) * 2)


def compile_layers() -> tkc.Executable:
    """The model above."""
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    return tkc.compile(Layers().eval(), (torch.randn(2, 4),), dynamic_shapes=shapes, database=False)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of failures go with the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def has_tanh(module: tvm.IRModule) -> bool:
    """Whether ``module`` computes a hyperbolic tangent."""
    return "tanh" in module.script(show_meta=False)


@tvm.transform.module_pass(opt_level=0, name="FailsOnTanh")
class FailsOnTanh:
    """A pass with a fault."""

    def transform_module(self, module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        """``module``, unless it holds a tanh."""
        if has_tanh(module):
            raise IndexError("planted")
        return module


def fail_in_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stage that fuses fail."""
    original = pipeline.fusion_stages

    def stages(**options: bool) -> list[pipeline.PassStage]:
        return [
            pipeline.PassStage(stage.name, (FailsOnTanh(), *stage.passes)) if stage.name == "fuse" else stage
            for stage in original(**options)
        ]

    monkeypatch.setattr(pipeline, "fusion_stages", stages)


def fail_in_code_generation(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], Any]) -> None:
    """Have code generation do ``fail`` where there is a tanh."""
    original = code.vm_executable

    def built(module: tvm.IRModule, target: Any) -> Any:
        return fail() if has_tanh(module) else original(module, target)

    monkeypatch.setattr(code, "vm_executable", built)


def crash() -> None:
    """Read where there is nothing."""
    ctypes.string_at(0)


def test_a_pass_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the module's path and its line; the folder holds the module and no weights."""
    fail_in_pass(monkeypatch)
    with pytest.raises(tkc.InternalError, match=r"stage 'fuse' failed: IndexError: planted") as caught:
        compile_layers()
    error = caught.value
    assert error.stage == "fuse"
    (node,) = error.nodes
    assert "aten.tanh" in node and "module 'middle.1'" in node and "activation.py" in node
    assert node in str(error) and str(error.folder) in str(error)
    assert error.folder is not None
    report = json.loads((error.folder / "report.json").read_text())
    assert report["nodes"] == [node] and report["target"] == "cpu" and report["versions"]["apache-tvm"]
    assert "FailsOnTanh" in (error.folder / "traceback.txt").read_text() or "planted" in report["message"]
    assert "R.func_attr" in (error.folder / "module.py").read_text()
    smallest = (error.folder / "smallest.py").read_text()
    assert "tanh" in smallest and "gelu" not in smallest and "matmul" not in smallest
    assert sum(file.stat().st_size for file in error.folder.iterdir()) < 100_000
    packed = error.folder.with_suffix(".zip")
    write_bug_report(error.folder, packed)
    assert set(zipfile.ZipFile(packed).namelist()) == {"report.json", "traceback.txt", "module.py", "smallest.py"}
    with pytest.raises(tkc.UsageError, match="exists"):
        write_bug_report(error.folder, packed)


def test_code_generation_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process lives, and names the signal, the function and the node."""
    fail_in_code_generation(monkeypatch, crash)
    with pytest.raises(tkc.InternalError, match=r"stage 'generate code' failed: .*SIGSEGV") as caught:
        compile_layers()
    error = caught.value
    assert error.function is not None and "tanh" in error.function and error.function in str(error)
    assert len(error.nodes) == 1 and "aten.tanh" in error.nodes[0]
    assert error.folder is not None and "Segmentation fault" in (error.folder / "output.txt").read_text()


def test_code_generation_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as a crash, but with the traceback of the child."""

    def fail() -> None:
        raise tvm.error.InternalError("planted")

    fail_in_code_generation(monkeypatch, fail)
    with pytest.raises(tkc.InternalError, match=r"InternalError: planted") as caught:
        compile_layers()
    assert caught.value.folder is not None
    assert "in fail" in (caught.value.folder / "traceback.txt").read_text()


def test_a_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says begins as lines of TVM's traces do."""
    fail_in_code_generation(monkeypatch, lambda: Path("/none/such").read_bytes())
    with pytest.raises(tkc.InternalError, match=r"FileNotFoundError: \[Errno 2\] No such file.*/none/such"):
        compile_layers()


def test_an_onnx_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name and operator."""
    nodes = [helper.make_node(op, [i], [o], name=n) for op, i, o, n in
             (("Exp", "x", "a", "first"), ("Tanh", "a", "b", "second"), ("Neg", "b", "y", "third"))]  # fmt: skip
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 18)]
    )
    onnx.checker.check_model(model)
    fail_in_pass(monkeypatch)
    with pytest.raises(tkc.InternalError, match="at ONNX node 'second'") as caught:
        tkc.explain(model, database=False)
    assert caught.value.nodes == ("ONNX node 'second' (Tanh)",)


def test_a_converter_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names its node, without a search."""
    monkeypatch.setitem(CONVERTERS, "aten.tanh.default", lambda emitter, x: {}[x])
    with pytest.raises(tkc.InternalError, match=r"aten\.tanh.*middle\.1.*failed: KeyError") as caught:
        compile_layers()
    assert caught.value.stage == "import" and "aten.tanh" in caught.value.nodes[0]
    assert caught.value.folder is not None and caught.value.folder.is_dir()


def test_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lack of memory is no fault of TKC; anything else names the inputs. A model that works goes on working."""

    class Outer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh()[:, None] * x[None]

    size = torch.export.Dim("n", max=1 << 40)
    outer = tkc.compile(Outer(), (torch.randn(4),), dynamic_shapes={"x": {0: size}}, database=False)
    with pytest.raises(tkc.OutOfMemoryError, match=r"not enough memory .*\[5000000\]"):
        outer(torch.randn(5_000_000))
    x = torch.randn(5)
    torch.testing.assert_close(outer(x), Outer()(x))
    with pytest.raises(tkc.InputError, match="sparse_coo"):
        outer(x.to_sparse())

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    loaded = outer._running._loaded
    assert isinstance(loaded, LoadedCode)
    with pytest.raises(tkc.InternalError, match="stage 'call' failed: RuntimeError: planted") as caught:
        loaded._explained(fail)(x)
    assert caught.value.folder is not None
    assert json.loads((caught.value.folder / "report.json").read_text())["inputs"] == ["torch.float32 [5]"]


def test_a_full_disk_is_not_tkcs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder and the cause are named."""

    def fail() -> None:
        raise OSError(28, "No space left on device", "/somewhere/model.so")

    fail_in_code_generation(monkeypatch, fail)
    with pytest.raises(tkc.UsageError, match=r"/somewhere/model.so cannot be written: the disk is full"):
        compile_layers()


def test_a_child() -> None:
    """Results, exceptions, deaths, output and time."""
    assert in_child(lambda: [1, "two"]) == [1, "two"]
    assert len(in_child(lambda: b"x" * 1_000_000)) == 1_000_000
    with pytest.raises(RaisedInChildError, match="ZeroDivisionError") as raised:
        in_child(lambda: 1 // 0)
    assert "test_failures.py" in raised.value.trace
    with pytest.raises(tkc.UsageError, match="mine"):
        in_child(lambda: (_ for _ in ()).throw(tkc.UsageError("mine")))
    with pytest.raises(ChildDiedError, match="exit code 7"):
        in_child(lambda: os._exit(7))
    start = time.monotonic()
    with pytest.raises(ChildStuckError):
        in_child(lambda: time.sleep(60), timeout=0.1)
    assert time.monotonic() - start < 10


_GARBAGE = """
import gc, os
from tkc.child import in_child

# As modules do; what it allocates makes a collection due.
os.register_at_fork(after_in_child=lambda: [[] for _ in range(100000)])


class Driver:
    def __init__(self, parent):
        self.itself, self.parent = self, parent

    def __del__(self):
        print("destroyed", os.getpid() == self.parent, flush=True)


gc.disable()
Driver(os.getpid())
gc.enable()
print("answer", in_child(lambda: (gc.enable(), [[] for _ in range(100000)], gc.collect(), 3)[-1]))
assert gc.isenabled()
gc.collect()
"""


def test_a_forked_child_collects_no_garbage_of_its_parent() -> None:
    """Of a CUDA graph or memory for a GPU, a destructor ends the child: no driver survives a fork."""
    result = subprocess.run([sys.executable, "-c", _GARBAGE], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["answer", "3", "destroyed", "True"]
    assert "destroyed" not in result.stderr


def test_an_interrupt_ends_a_child(tmp_path: Path) -> None:
    """With the processes that it started, and at once."""
    pids = tmp_path / "pids"

    def work() -> None:
        other = subprocess.Popen(["sleep", "60"])
        pids.write_text(f"{os.getpid()} {other.pid}")
        time.sleep(60)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            in_child(work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 5
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
