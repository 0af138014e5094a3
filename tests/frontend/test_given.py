"""What is given for a model and is none, and what the errors say to give instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.command_line import tkc as command
from tkc.errors import Error, UnsupportedModelError, UsageError
from tkc.frontend import import_model


def double(x: torch.Tensor) -> torch.Tensor:
    """A function that is no module."""
    return x * 2


class Plain:
    """A class that is no module."""

    def call(self, x: torch.Tensor) -> torch.Tensor:
        """The same as ``x``."""
        return x


@pytest.mark.parametrize("examples", [(), (torch.ones(2, 3),)], ids=["alone", "with examples"])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: double, "the function 'double' is no model; wrap it in an nn.Module"),
        (lambda: lambda x: x * 2, "<lambda>' is no model; wrap it in an nn.Module"),
        (lambda: torch.relu, "the function .*relu' is no model; wrap it in an nn.Module"),
        (lambda: functools.partial(double), "the function .*double.* is no model; wrap it"),
        (lambda: nn.Linear(3, 3).forward, "the bound method 'Linear.forward' is no model; give the nn.Module"),
        (lambda: Plain().call, "the bound method 'Plain.call' is no model; wrap it in an nn.Module"),
        (lambda: nn.ReLU, r"the class 'ReLU' is no model; give an instance of it, as ReLU\(\.\.\.\) makes one"),
        (lambda: Plain, "the class 'Plain' is no model; give an nn.Module"),
        (lambda: Plain(), "a Plain is no model; give an nn.Module"),
        (lambda: None, "a NoneType is no model; give an nn.Module"),
        (lambda: torch.ones(3), "a Tensor is no model; give an nn.Module"),
        (lambda: nn.Linear(3, 3).state_dict(), "a OrderedDict is no model; if it holds weights, load them"),
        (
            lambda: torch.jit.trace(double, torch.ones(3)),
            "ScriptFunction 'double' is no model.*without torch.jit.*wrap",
        ),
        (lambda: "/nowhere/model.pt2", "there is no model file /nowhere/model.pt2"),
        (lambda: Path("/nowhere/model.onnx"), "there is no model file /nowhere/model.onnx"),
    ],
)
def test_what_is_no_model(make: Callable[[], Any], told: str, examples: tuple[Any, ...]) -> None:
    """The error says what it is and what to give, whether there are examples or not."""
    with pytest.raises(UsageError, match=told):
        import_model(make(), examples)


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".pth", ".ts"])
@pytest.mark.parametrize("examples", [(), (torch.ones(2, 3),)], ids=["alone", "with examples"])
def test_files_of_pytorch_that_hold_no_program(tmp_path: Path, suffix: str, examples: tuple[Any, ...]) -> None:
    """TorchScript, weights and pickled modules are told apart by what they hold, whatever the file is called."""
    path, model = tmp_path / f"model{suffix}", nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    torch.jit.save(torch.jit.script(model), path)
    with pytest.raises(UnsupportedModelError, match=rf"model\{suffix} is a TorchScript file.*torch\.export\.save"):
        import_model(path, examples)
    for held in (model.state_dict(), model):
        torch.save(held, path)
        with pytest.raises(
            UnsupportedModelError, match=rf"model\{suffix} is a file of torch\.save.*give the nn\.Module"
        ):
            import_model(str(path), examples)


def test_folders(tmp_path: Path) -> None:
    """A compiled model is one."""
    with pytest.raises(UsageError, match=r"is a folder, and no model file$"):
        import_model(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is a folder, and no model file; .*tkc\.load"):
        import_model(tmp_path)


def test_an_exported_program_of_another_ending(tmp_path: Path) -> None:
    """Is a program: its name is at fault."""
    path = tmp_path / "model.pt"
    torch.export.save(torch.export.export(nn.ReLU(), (torch.ones(3),)), path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)
    with pytest.raises(Error, match=r"neither \.pt2 .*rename it"):
        import_model(path)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    """Of a file that torch.jit.save wrote."""
    torch.jit.save(torch.jit.script(nn.ReLU()), tmp_path / "model.pt")
    errors = command("compile", tmp_path / "model.pt", "-o", tmp_path / "out", code=2).stderr
    assert "model.pt is a TorchScript file, of torch.jit.save" in errors
