"""Compiled graphs that are stored: found by other processes, and by nothing else than the same graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from tests.dynamo.comparing import check_same
from tkc.dynamo import backend


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A store of its own, and what is compiled for it."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    made: list[object] = []
    compile_model = backend.compile_model

    def counted(program, **options):
        made.append(program)
        return compile_model(program, **options)

    monkeypatch.setattr(backend, "compile_model", counted)
    return made


def _run(function, *arguments, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.tkc, **options)(*arguments)


def _function(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + torch.tensor([1.0, 2.0])


def test_a_graph_is_compiled_once(compilations: list[object]) -> None:
    """The second time it is found."""
    x = torch.randn(3, 2)
    for _ in range(2):
        check_same(_function(x), _run(_function, x))
    assert len(compilations) == 1


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("function", "x", "options"),
    [
        (lambda x: x.cos() + torch.tensor([1.0, 2.0]), torch.ones(3, 2), {}),
        (lambda x: x.sin() + torch.tensor([1.0, 3.0]), torch.ones(3, 2), {}),
        (_function, torch.ones(4, 2), {}),
        (_function, torch.ones(2, 3).t(), {}),
        (_function, torch.ones(3, 2, dtype=torch.float64), {}),
        (_function, torch.ones(3, 2), {"dynamic": True}),
        (_function, torch.ones(3, 2), {"options": {"kernels": "none"}}),
    ],
    ids=["operator", "constant", "shape", "strides", "dtype", "symbolic", "options"],
)
def test_another_graph_is_not_found(compilations: list[object], function, x: torch.Tensor, options: dict) -> None:
    """One that differs in any of these is compiled."""
    _run(_function, torch.ones(3, 2))
    check_same(function(x), _run(function, x, **options))
    assert len(compilations) == 2


def _scaled(factor: float):
    def function(q: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, q, q, score_mod=lambda x, b, h, i, j: x * torch.tensor(factor))

    return function


@pytest.mark.daily(1)
@torch.no_grad()
def test_graphs_whose_functions_hold_other_constants(compilations: list[object]) -> None:
    """They differ in no node of theirs."""
    q = torch.randn(1, 2, 5, 16)
    results = [_run(_scaled(factor), q) for factor in (0.5, 4.0)]
    assert len(compilations) == 2
    assert not torch.allclose(*results)


@pytest.mark.daily(1)
def test_entries_hold_no_weights(compilations: list[object], tmp_path: Path) -> None:
    """They are small beside the weights."""
    model = torch.nn.Linear(1024, 1024)
    _run(model, torch.randn(2, 1024))
    stored = sum(file.stat().st_size for file in (tmp_path / "graphs").rglob("*") if file.is_file())
    assert 0 < stored < model.weight.nbytes / 4


@pytest.mark.daily(1)
def test_a_damaged_entry_is_compiled_anew(compilations: list[object], tmp_path: Path, warned: list[str]) -> None:
    """With a warning, and stored again."""
    x = torch.randn(3, 2)
    _run(_function, x)
    (code,) = (tmp_path / "graphs").rglob("model.so")
    content = code.read_bytes()
    code.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    check_same(_function(x), _run(_function, x))
    assert len(compilations) == 2 and "damaged" in warned[0]
    _run(_function, x)
    assert len(compilations) == 2


@pytest.mark.daily(1)
def test_a_folder_that_cannot_be_written(
    compilations: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    """A warning, and a graph that runs."""
    (tmp_path / "graphs").write_text("no folder")
    x = torch.randn(3, 2)
    check_same(_function(x), _run(_function, x))
    assert "not stored" in warned[0]


_PROCESS = """
import torch
from tkc.dynamo import backend
made = []
compile_model = backend.compile_model
backend.compile_model = lambda *given, **options: (made.append(1), compile_model(*given, **options))[1]
x = torch.ones(5, 2)
y = torch.compile(lambda x: x.sin() @ x.t().exp(), backend=backend.tkc)(x)
assert torch.allclose(y, x.sin() @ x.t().exp())
print(len(made))
"""


@pytest.mark.daily(1)
def test_processes_share_what_one_compiles(compilations: list[object]) -> None:
    """Two at once compile one graph once."""
    command = [sys.executable, "-c", _PROCESS]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    made = [int(process.communicate()[0]) for process in both]
    assert sorted(made) == [0, 1]
