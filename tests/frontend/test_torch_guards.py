"""What ``torch.export`` takes for granted of sizes is checked in each call, wherever the program comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc
from tkc.frontend.torch.importer import import_torch
from tkc.runtime.input_checks import InputChecks

Import = Callable[..., Any]
ANY = {0: Dim.AUTO, 1: Dim.AUTO}


class _Model(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of one tensor."""
        return self.function(x)


class _Nested(_Model):
    def forward(self, x: torch.Tensor, others: tuple[torch.Tensor, ...], *, last: torch.Tensor) -> torch.Tensor:
        """Of all that is handed over."""
        return self.function(sum(others, x) + last)


def _from_module(model: nn.Module, args: Any, kwargs: Any, shapes: Any, _: Path) -> Any:
    return import_torch(model, args, kwargs, dynamic_shapes=shapes)


def _program(model: nn.Module, args: Any, kwargs: Any, shapes: Any, _: Path) -> torch.export.ExportedProgram:
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)


def _from_program(*given: Any) -> Any:
    return import_torch(_program(*given))


def _from_file(*given: Any) -> Any:
    path = given[-1] / "model.pt2"
    torch.export.save(_program(*given), path)
    return import_torch(path)


def _from_loaded(*given: Any) -> Any:
    path = given[-1] / "model.pt2"
    torch.export.save(_program(*given), path)
    return import_torch(torch.export.load(path))


MODELS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[int], list[int]]] = {
    "remainder": (lambda x: x * 2 if x.shape[1] % 4 == 0 else x * 3, [20, 8, 24], [21, 9]),
    "a part of it": (lambda x: x[:, : int(x.shape[1] * 0.7)], [20, 21], [22, 24, 33]),
    "its root": (lambda x: x * float(int(x.shape[1] ** 0.5)), [20, 17], [9, 30]),
    "decomposed": (lambda x: torch.addcmul(x, x, x) if x.shape[1] // 2 == 10 else x, [20, 21], [22, 19]),
}


@pytest.mark.parametrize("source", [_from_module, _from_program, _from_file, _from_loaded])
@pytest.mark.parametrize("name", MODELS)
def test_calls_are_checked_for_what_the_tracer_found(name: str, source: Import, tmp_path: Path) -> None:
    """PyTorch's own module of the program raises for such sizes; a compiled one computed something else."""
    function, accepted, refused = MODELS[name]
    imported = source(_Model(function), (torch.randn(3, 20),), {}, {"x": ANY}, tmp_path)
    checks = InputChecks(imported.signature, torch.device("cpu"))
    for size in accepted:
        checks([torch.randn(3, size)])
    for size in refused:
        with pytest.raises(tkc.InputError, match="exported for sizes with"):
            checks([torch.randn(3, size)])


@pytest.mark.parametrize("source", [_from_module, _from_program, _from_file])
def test_inputs_may_have_any_place(source: Import, tmp_path: Path) -> None:
    """In a tuple, and by keyword."""
    x = torch.randn(3, 20)
    shapes = {"x": ANY, "others": (ANY, ANY), "last": ANY}
    given = _Nested(MODELS["remainder"][0]), (x, (x, x)), {"last": x}, shapes
    checks = InputChecks(source(*given, tmp_path).signature, torch.device("cpu"))
    checks([torch.randn(3, 8)] * 4)
    with pytest.raises(tkc.InputError, match="% 4"):
        checks([torch.randn(3, 9)] * 4)


def test_a_condition_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    """A file may say anything; nothing of it is run."""
    program = _program(_Model(lambda x: x * 2), (torch.randn(3, 20),), {}, {"x": ANY}, tmp_path)
    cast(Any, program)._guards_code = ["L['x'].stride()[0] == __import__('os').getpid()"]
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(tkc.UnsupportedModelError, match=r"exported for .*which TKC cannot check"):
        import_torch(tmp_path / "model.pt2")


@pytest.mark.parametrize("size", [Dim.AUTO, Dim.DYNAMIC])
def test_sizes_without_a_name_may_be_one_and_zero(size: Any) -> None:
    """PyTorch's tracer takes every size for 2 or more, and its programs run with others."""
    imported = import_torch(_Model(lambda x: x * 2), (torch.randn(4, 3),), dynamic_shapes=({0: size},))
    for rows in (0, 1, 5):
        InputChecks(imported.signature, torch.device("cpu"))([torch.randn(rows, 3)])
    least = import_torch(_Model(lambda x: x * 2), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("rows", min=2)},))
    with pytest.raises(tkc.InputError, match="at least 2"):
        InputChecks(least.signature, torch.device("cpu"))([torch.randn(1, 3)])
