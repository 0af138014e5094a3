"""What a deployed model needs: the runtime alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tkc

BARRED = (
    *("tkc.frontend", "tkc.passes", "tkc.schedules", "tkc.builder", "tkc.compiler", "tkc.pipeline", "tkc.diagnosis"),
    *("tkc.tuning", "tkc.measure", "tkc.bench", "tkc.cli", "onnx", "onnxscript", "tilelang", "xgboost", "transformers"),
)

RUN = """
import sys

class Barred:
    def find_spec(self, name, path=None, target=None):
        if any(name == barred or name.startswith(barred + ".") for barred in {barred!r}):
            raise ImportError(f"{{name}} is no part of a deployment")

sys.meta_path.insert(0, Barred())
import torch
import tkc

executable = tkc.load({folder!r})
print(repr(executable), executable.report)
inputs = torch.load({inputs!r})
torch.save(executable(*inputs), {outputs!r})
assert executable.report.target == "cpu"
rows = executable.profile(*inputs, repeat=1).rows
assert any(row.kind == "kernel" and row.nodes and row.flops for row in rows), rows
"""


class Gated(torch.nn.Module):
    """SwiGLU, for which there is a kernel, between products; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """One layer; ``index`` chooses rows."""
        self.calls += 1
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))[index]


def test_a_saved_model_runs_with_the_runtime_alone(tmp_path: Path) -> None:
    """Kernels, symbolic sizes, indices and state included; nothing else of TKC, ONNX or TileLang can be imported."""
    model, rows = Gated().eval(), torch.export.Dim("rows", max=64)
    inputs = (torch.randn(5, 32), torch.tensor([0, 3]))
    expected = model(*inputs)
    executable = tkc.compile(
        model, inputs, dynamic_shapes={"x": {0: rows}, "index": None}, kernels="all", database=False
    )
    executable.save(tmp_path / "model")
    torch.save(inputs, tmp_path / "inputs.pt")
    script = RUN.format(
        barred=BARRED,
        folder=str(tmp_path / "model"),
        inputs=str(tmp_path / "inputs.pt"),
        outputs=str(tmp_path / "outputs.pt"),
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Kernels for cpu" in done.stdout
    torch.testing.assert_close(torch.load(tmp_path / "outputs.pt"), expected)


def test_importing_tkc_imports_no_framework() -> None:
    """Neither PyTorch nor TVM, before somebody compiles or loads."""
    script = "import sys, tkc; print([name for name in ('torch', 'tvm', 'onnx', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.speed
def test_importing_tkc_takes_no_time() -> None:
    """At most 0.3 s, the interpreter's own start left out; the least of five."""
    script = "import time; start = time.perf_counter(); import tkc; print(time.perf_counter() - start)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(seconds) <= 0.3, seconds
