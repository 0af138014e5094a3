"""What the sources of libraries share: weights that hide nothing, and the first call that PyTorch computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from .sources import NotConstructibleError

Model = TypeVar("Model", bound=nn.Module)


def filled(model: Model) -> Model:
    """``model`` in evaluation mode, in whose tensors no number stands everywhere.

    A scale of zero at the end of a residual branch would hide the branch, a bias of zero that it is added, statistics
    of mean 0 and variance 1 the whole normalization; memory that nobody filled is not the same twice.
    """
    generator = torch.Generator().manual_seed(1)

    def noise(tensor: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * scale

    with torch.no_grad():
        for weight in model.parameters():
            if not weight.is_floating_point() or not weight.numel():
                continue
            if not weight.isfinite().all() or weight.abs().max() > 1e3:
                weight.copy_(noise(weight, 0.05))
            elif weight.numel() > 1 and weight.min() == weight.max():
                weight.add_(noise(weight, 0.05 if weight.dim() > 1 else 0.1))
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
                assert layer.running_var is not None
                layer.running_mean.copy_(noise(layer.running_mean, 0.1))
                layer.running_var.copy_(noise(layer.running_var, 0.1).exp())
    return model.eval()


def weights(model: nn.Module) -> int:
    """How many numbers its parameters hold."""
    return sum(weight.numel() for weight in model.parameters())


def runs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """The result of a call in PyTorch. Raises what PyTorch raises."""
    with torch.no_grad():
        torch.manual_seed(0)
        return model(*copy.deepcopy(args), **copy.deepcopy(kwargs or {}))


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """What ``torch.export`` makes of a call, by running its code or, where that fails, by reading it (``strict``).

    ``int()`` of a tensor, by which graph networks count nodes, is read, and stops what is run. Raises the first error.
    """
    with torch.no_grad():
        try:
            return torch.export.export(model, args, kwargs, strict=False)
        except Exception:
            with suppress(Exception):
                program = torch.export.export(model, args, kwargs, strict=True)
                if not any(isinstance(value, FakeTensor) for value in program.constants.values()):
                    return program  # none without its numbers
            raise


Made = TypeVar("Made")


def first(candidates: Iterable[Callable[[], Made]]) -> Made:
    """What the first of ``candidates`` makes that raises nothing.

    Raises :class:`NotConstructibleError` with the first error where all of them do: it is the most telling.
    """
    error: Exception | None = None
    for make in candidates:
        try:
            return make()
        except Exception as each:
            error = error or each
    raise NotConstructibleError(line(error) if error else "there is nothing to try")


def line(error: BaseException) -> str:
    """An error in one line."""
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:240]}"
