"""What becomes of a graph: exported, compiled, called at each of its sizes, compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import tkc
from tests.conformance.verdicts import FAULTS, KINDS, Kind, described, first_line
from tkc.errors import InternalError, KernelBuildError

from . import dynamo
from .graph import Input
from .program import Program, dynamic_shapes, source
from .reference import Expected, Run, eager, module
from .tensors import make_all

__all__ = ["FAULTS", "KINDS", "Kind", "Options", "Verdict", "judge"]


Entry = Literal["export", "dynamo"]
"""By ``torch.export`` and ``tkc.compile``, or by ``torch.compile(backend="tkc")``."""


@dataclass(frozen=True)
class Options:
    """How graphs are compiled."""

    target: str = "cpu"
    kernels: str = "auto"
    entry: Entry = "export"

    @property
    def device(self) -> str:
        """Where tensors are."""
        return "cuda" if self.target.startswith("cuda") else "cpu"


@dataclass(frozen=True)
class Verdict:
    """Of one graph, with the reason where it is not right, and how many of its calls were compared."""

    kind: Kind
    reason: str = ""
    calls: int = 0


def judge(program: Program, options: Options) -> Verdict:
    """The verdict of ``program``; what kills the process is the caller's to see."""
    warnings.simplefilter("ignore")
    calls = program.sizes.by_name()
    try:
        example = Expected(program, calls[0], options.device)
    except Exception as error:
        return Verdict("not exportable", f"PyTorch itself: {described(error)}")
    try:
        call = _compiled(program, options)
    except (InternalError, KernelBuildError) as error:
        return Verdict("internal", described(error))
    except tkc.UnsupportedModelError as error:
        kind: Kind = "not exportable" if str(error).startswith("torch.export cannot") else "refused"
        return Verdict(kind, _explained(error))
    except tkc.Error as error:
        return Verdict("refused", first_line(error))
    except Exception as error:
        return Verdict("internal", described(error))
    compared, refused = 0, ""
    for sizes in calls:
        try:
            expected = example if sizes == calls[0] else Expected(program, sizes, options.device)
        except Exception as error:
            return Verdict("not exportable", f"PyTorch itself at {sizes}: {described(error)}", compared)
        try:
            found = call(sizes)
        except tkc.UnsupportedModelError as error:  # of a graph that Dynamo captured in this call
            return Verdict("refused", _explained(error), compared)
        except tkc.InputError as error:
            refused = f"at {sizes}: {first_line(error)}"
            continue
        except Exception as error:
            return Verdict("internal", f"at {sizes}: {described(error)}", compared)
        if (reason := expected.difference(found)) and not _as_on_the_cpu(program, sizes, found, options):
            return Verdict("wrong", f"at {sizes}: {reason}", compared)
        compared += 1
    return Verdict("refused" if refused else "right", refused, compared)


def pytorch_alone(program: Program, options: Options) -> Verdict:
    """The verdict of PyTorch's own results; what kills the process is the caller's to see."""
    warnings.simplefilter("ignore")
    for sizes in program.sizes.by_name():
        try:
            eager(program, sizes, options.device)
        except Exception as error:
            return Verdict("not exportable", f"PyTorch itself at {sizes}: {described(error)}")
    return Verdict("right")


def _as_on_the_cpu(program: Program, sizes: dict[str, int], found: Run, options: Options) -> bool:
    """Whether what a GPU gave is what PyTorch gives on the CPU: its own kernels for a GPU differ from these in places.

    In float64, a hardsigmoid has a sixth of float32 there, and an RMSNorm of a row with an infinity is NaN.
    """
    if options.device == "cpu":
        return False
    there = Run(*(tuple(tensor.cpu() for tensor in tensors) for tensors in (found.outputs, found.updated)))
    return Expected(program, sizes).difference(there) is None


def _compiled(program: Program, options: Options) -> Callable[[dict[str, int]], Run]:
    """What calls the compiled program at some sizes, from its initial state."""
    if options.entry == "dynamo":
        return dynamo.compiled(program, options.device, options.kernels)
    executable = _exported(program, options)
    return lambda sizes: _called(program, executable, sizes, options)


def _exported(program: Program, options: Options) -> Any:
    model = module(program, options.device, source(program))
    inputs = tuple(make_all(program.given(), program.sizes.by_name()[0], options.device))
    shapes = dynamic_shapes(program) if any(dict(call) for call in program.sizes.calls) else None
    return tkc.compile(
        model,
        inputs,
        target=options.target,
        kernels=options.kernels,  # type: ignore[arg-type]  # checked there
        dynamic_shapes=shapes,
        database=False,
    )


def _called(program: Program, executable: Any, sizes: dict[str, int], options: Options) -> Run:
    """The results of a call from the initial state."""
    if executable.signature.state:
        executable.reset()
    inputs = make_all(program.given(), sizes, options.device)
    outputs = executable(*inputs)
    if options.device == "cuda":
        executable.check()
    state = executable.state if executable.signature.state else {}
    updated = updated_by(program.given(), program.held(), program.updated(), inputs, state, options.device)
    return Run(tuple(map(torch.clone, outputs)), tuple(map(torch.clone, updated)))


def updated_by(
    given: Sequence[Input],
    held: Sequence[Input],
    written: Collection[int],
    inputs: Sequence[torch.Tensor],
    state: Mapping[str, torch.Tensor],
    device: str = "cpu",
) -> list[torch.Tensor]:
    """The inputs that a call wrote into, and all buffers; those that are not in ``state`` are as they were."""
    updated = [tensor for each, tensor in zip(given, inputs, strict=False) if each.id in written]
    buffers = [each for each in held if each.role == "buffer"]
    return updated + [
        state.get(f"v{each.id}", tensor) for each, tensor in zip(buffers, make_all(buffers, {}, device), strict=True)
    ]


def _explained(error: BaseException) -> str:
    cause = error.__cause__
    text = first_line(error)
    return f"{type(cause).__name__}: {text}" if cause is not None else text
