"""What a graph computes in PyTorch, and how far a correct computation may be from it.

The bound follows from the operators (Monte Carlo arithmetic): the graph runs in float64, once as it is, and several
times with every rounded value moved by its dtype's precision, each element in a random direction or all in the same,
as the roundings of a sum of equal numbers go, at every operator. Before a result is called wrong, it runs 28 times
more: once in sixteen times, two infinities whose signs are random have opposite ones in all of the first four.
Operators that round in between (reductions, matrix products) have their arguments moved too. What the results move by
is what the roundings of any correct computation may come to, cancellation and ill-conditioned functions included.
Elements that are finite in one of these runs and not in another are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.conformance.comparison import compare, example

from .program import Program, infer, source
from .tensors import make_all
from .types import DTYPES, FLOATS

_DIRECTIONS = (0, 1, 2, 3, "up", "down")
_MORE_DIRECTIONS = range(4, 32)
_DOUBLE = 2.0**-40
"""What float64 values are moved by: more than their precision, for the reference has no more of it than they do."""


@dataclass(frozen=True)
class Run:
    """What a call gives: results, then the inputs that were updated and the buffers, in the program's order."""

    outputs: tuple[torch.Tensor, ...]
    updated: tuple[torch.Tensor, ...]


def namespace(text: str, **names: Any) -> dict[str, Any]:
    """What the source of a program defines."""
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, **names}
    exec(compile(text, "<fuzz>", "exec"), scope)
    return scope


def module(program: Program, device: str = "cpu", text: str | None = None) -> nn.Module:
    """The program's module, with its parameters and buffers."""
    made = namespace(text or source(program))["Model"]
    held = make_all(program.held(), {}, device)
    model: nn.Module = made(held) if held else made()
    return _placed(model, device).eval()


def _placed(model: nn.Module, device: str) -> nn.Module:
    model.device = device  # type: ignore[assignment]  # no buffer nor submodule of that name
    return model


def eager(program: Program, sizes: dict[str, int], device: str = "cpu") -> Run:
    """PyTorch's results; raises what it raises."""
    model = module(program, device)
    inputs = make_all(program.given(), sizes, device)
    with torch.no_grad():
        outputs = model(*inputs)
    return run_of(program, model, inputs, outputs)


def run_of(program: Program, model: nn.Module, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Run:
    """Copies of what a call of ``model`` gave, and of what it updated."""
    return Run(_kept(outputs), _kept(_updated(program, model, inputs)))


def _updated(program: Program, model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    written = program.updated()
    given = [tensor for each, tensor in zip(program.given(), inputs, strict=True) if each.id in written]
    return given + [getattr(model, f"v{each.id}") for each in program.held() if each.role == "buffer"]


def _kept(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in tensors)


class Expected:
    """What the results of a program's call are compared with. Raises whatever PyTorch raises for it."""

    def __init__(self, program: Program, sizes: dict[str, int], device: str = "cpu") -> None:
        self._program, self._sizes, self._device = program, sizes, device
        self.eager = eager(program, sizes, device)
        self._text = source(program, reference=True)
        self._dtypes = {value: known.dtype for value, known in infer(program).items()}
        self._exact = self._wide(lambda *_: None)
        self._moved = [self._wide(_noise(direction)) for direction in _DIRECTIONS]

    def difference(self, found: Run) -> str | None:
        """What is wrong with ``found``, in words; ``None`` if nothing is."""
        if self._first_difference(found) is None:
            return None
        if len(self._moved) == len(_DIRECTIONS):
            self._moved += [self._wide(_noise(direction)) for direction in _MORE_DIRECTIONS]
        return self._first_difference(found)

    def _first_difference(self, found: Run) -> str | None:
        for kind, position in (("result", "outputs"), ("updated tensor", "updated")):
            values, wanted = getattr(found, position), getattr(self.eager, position)
            if len(values) != len(wanted):
                return f"{len(values)} {kind}s instead of {len(wanted)}"
            for index, (value, like) in enumerate(zip(values, wanted, strict=True)):
                exact = getattr(self._exact, position)[index]
                moved = [getattr(run, position)[index] for run in self._moved]
                if reason := _different(value, like, exact, moved):
                    return f"{kind} {index}: {reason}"
        return None

    def _wide(self, noise: Callable[..., Any]) -> Run:
        """The results in float64, where ``noise(place, tensor, eps, tiny)`` moves what is rounded."""
        dtypes = self._dtypes

        def rounded(value: int, tensor: torch.Tensor) -> None:
            info = torch.finfo(DTYPES[dtypes[value]])
            noise(value, tensor, info.eps if dtypes[value] != "float64" else _DOUBLE, info.smallest_normal * info.eps)

        def noisy(value: int, position: int, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
            info = torch.finfo(DTYPES[dtype])
            tensor = tensor.clone()
            place = 1009 * (position + 1) + value
            noise(place, tensor, info.eps if dtype != "float64" else _DOUBLE, info.smallest_normal * info.eps)
            return tensor

        made = namespace(self._text, rounded=rounded, noisy=noisy)["Model"]
        held = [_double(tensor) for tensor in make_all(self._program.held(), {}, self._device)]
        model = _placed(made(held) if held else made(), self._device)
        given: dict[int, torch.Tensor] = {}
        tensors = make_all(self._program.given(), self._sizes, self._device)
        for each, tensor in zip(self._program.given(), tensors, strict=True):
            given[each.id] = _double(tensor) if each.same is None else given[each.same]
        inputs = list(given.values())
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                outputs = model(*inputs)
        finally:
            torch.set_default_dtype(default)
        return run_of(self._program, model, inputs, outputs)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _noise(direction: int | str) -> Callable[[int, torch.Tensor, float, float], None]:
    def move(place: int, tensor: torch.Tensor, eps: float, tiny: float) -> None:
        if isinstance(direction, str):
            tensor.add_(tensor.abs() * eps + tiny, alpha=1 if direction == "up" else -1)
            return
        generator = torch.Generator().manual_seed(direction * 1_000_003 + place)
        signs = torch.randint(0, 2, tensor.shape, generator=generator).mul(2).sub(1).to(tensor.device)
        tensor.add_((tensor.abs() * eps + tiny) * signs)

    return move


def _different(
    value: torch.Tensor, like: torch.Tensor, exact: torch.Tensor, moved: Sequence[torch.Tensor]
) -> str | None:
    if value.dtype != like.dtype:
        return f"dtype {value.dtype} instead of {like.dtype}"
    if value.shape != like.shape:
        return f"shape {list(value.shape)} instead of {list(like.shape)}"
    if not value.numel():
        return None
    value, like, exact = value.cpu(), like.cpu(), exact.cpu()
    if str(like.dtype).removeprefix("torch.") not in FLOATS:
        wrong = value != like
        return example(wrong, value, like) if wrong.any() else None
    spread, sure = torch.zeros_like(exact), torch.ones_like(exact, dtype=torch.bool)
    for each in moved:
        each = each.cpu()
        both = each.isfinite() & exact.isfinite()
        sure &= both | (each == exact) | (each.isnan() & exact.isnan())
        spread = torch.maximum(spread, torch.where(both, (each - exact).abs(), 0.0))
    return compare(torch.where(sure, value, like), like, exact, spread)
