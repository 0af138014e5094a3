"""What was given for a model, in words, and what to give instead."""

from __future__ import annotations

import functools
import os
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tkc.errors import UnsupportedModelError, UsageError

FROM_PYTHON = (
    "torch.export does not read TorchScript: make the model from the Python module, without torch.jit.script, "
    "torch.jit.trace and torch.jit.load"
)


def described(model: Any) -> str:
    """What was given, as a part of a sentence."""
    if isinstance(model, (str, os.PathLike)):
        return f"the path {os.fspath(model)!r}"
    return f"a {type(model).__name__}"


def check_given(model: Any) -> None:
    """Raise for what is no model, or a file of another kind, with what to give in its place."""
    import torch

    if isinstance(model, torch.nn.Module):
        return  # of its parts that torch.jit made, the export tells
    if isinstance(model, (str, os.PathLike)):
        _check_path(Path(model))
    elif isinstance(model, torch.jit.ScriptFunction):
        raise UsageError(
            f"the torch.jit.ScriptFunction {model.name!r} is no model. {FROM_PYTHON}; wrap the Python function in an "
            "nn.Module whose forward calls it"
        )
    elif isinstance(model, type):
        name = model.__name__
        instance = f"give an instance of it, as {name}(...) makes one" if issubclass(model, torch.nn.Module) else _KINDS
        raise UsageError(f"the class {name!r} is no model; {instance}")
    elif isinstance(getattr(model, "__self__", None), torch.nn.Module) and model.__name__ in ("forward", "__call__"):
        raise UsageError(f"the bound method {model.__qualname__!r} is no model; give the nn.Module that it belongs to")
    elif isinstance(model, _FUNCTIONS):
        kind = "bound method" if isinstance(model, types.MethodType) else "function"
        name = getattr(model, "__qualname__", None) or repr(model)
        raise UsageError(f"the {kind} {name!r} is no model; wrap it in an nn.Module whose forward calls it")
    elif isinstance(model, Mapping):
        raise UsageError(
            f"{described(model)} is no model; if it holds weights, load them into the nn.Module "
            "(load_state_dict), and give that"
        )


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_KINDS = "give an nn.Module, an ExportedProgram, a .pt2 or .onnx path, or a ModelProto"


def refusal(model: Any) -> UsageError:
    """The error for what is no model of any kind."""
    return UsageError(f"{described(model)} is no model; {_KINDS}")


def _check_path(path: Path) -> None:
    if path.is_dir():
        load = "; it holds a compiled model, which tkc.load reads" if (path / "manifest.json").is_file() else ""
        raise UsageError(f"{path} is a folder, and no model file{load}")
    if not path.is_file():
        raise UsageError(f"there is no model file {path}")
    if path.suffix != ".onnx" and (kind := _kind_of_archive(path)) is not None:
        raise UnsupportedModelError(f"{path} {kind}.")


def _kind_of_archive(path: Path) -> str | None:
    """What a file is that PyTorch wrote, but not ``torch.export.save``; ``None`` for any other."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    inner = {name.partition("/")[2] for name in names}
    if "archive_format" in inner:
        return None
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return f"is a TorchScript file, of torch.jit.save. {FROM_PYTHON}, and write it with torch.export.save"
    if "data.pkl" in inner:
        return (
            "is a file of torch.save, which holds weights or pickled objects and no exported program. Load it in "
            "Python, and give the nn.Module, or write torch.export.export(module, example_args) with torch.export.save"
        )
    return None
