"""Why PyTorch's tracer stops at an operator, in words: of some operators PyTorch says no more than the name."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedMutationAliasingException,
    UnsupportedOperatorException,
)

from tkc.errors import UnsupportedModelError
from tkc.frontend.given import FROM_PYTHON
from tkc.frontend.torch.callable_operators import of_another_library

_WRAP = (
    "wrap what calls it in a torch.library.custom_op with a fake function (register_fake), which TKC calls in place, "
    "or compute it outside of the model."
)

_ADVICE = "The error above occurred when calling torch.export.export"
"""How the advice begins that PyTorch appends to some messages."""

_NO_FAKE = ("no fake impl registered", "no fake impl or Meta kernel registered")
"""What PyTorch says in whole sentences of operators that cannot be traced."""


def operator_refusal(error: Exception) -> str | None:
    """Why PyTorch's tracer stopped at an operator, and what to do; ``None`` where it is not for one."""
    place = _line_in_model(error)
    where = f" ({place})" if place else ""
    if isinstance(error, UnsupportedModelError):  # raised by TKC while PyTorch traced the model
        return f"{error}{where and f' It is called at {place}.'}"
    operator = getattr(error, "func", None)
    if isinstance(error, DataDependentOutputException):
        return (
            f"{operator}{where} gives Python a value that its data decides, and a compiled model has one way for all "
            f"data. Compute with the tensor instead, as by torch.where, or {_WRAP}"
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"{operator}{where} gives results whose sizes PyTorch takes for decided by its data, and PyTorch has no "
            f"rule that says them for a fake tensor, one without data. To compile the model, {_WRAP}"
        )
    told = str(error).partition(_ADVICE)[0].strip()
    if isinstance(error, UnsupportedOperatorException):
        cure = _WRAP
        if isinstance(operator, OpOverload) and of_another_library(operator):
            cure = f"register one for it by torch.library.register_fake({operator.name()!r})."
        return (
            f"{operator}{where} has no rule that says the shapes and dtypes of its results for fake tensors, which "
            f"have no data. To compile the model, {cure}"
        )
    if isinstance(error, UnsupportedFakeTensorException | UnsupportedMutationAliasingException):
        return f"{told}{where}. To compile the model, {_WRAP}"
    if isinstance(error, RuntimeError) and any(words in told for words in _NO_FAKE):
        return f"{told}{where and f' It is called at {place}.'}"
    return None


def script_refusal(model: nn.Module) -> str | None:
    """That ``model``, which could not be exported, was made by ``torch.jit``, or holds what was; ``None`` otherwise."""
    scripted = [path for path, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if not scripted:
        return None
    if not scripted[0]:
        return f"it is a TorchScript module. {FROM_PYTHON}."
    outer = [repr(path) for path in scripted if not any(path.startswith(f"{other}.") for other in scripted)]
    are = "is a TorchScript module" if len(outer) == 1 else "are TorchScript modules"
    return f"its {', '.join(outer)} {are}. {FROM_PYTHON}."


def _line_in_model(error: BaseException) -> str:
    """The innermost line of code outside of PyTorch and TKC that ``error`` went through; empty where there is none."""
    folders = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*folders, "<"))]
    return f'File "{own[-1].filename}", line {own[-1].lineno}, in {own[-1].name}' if own else ""
