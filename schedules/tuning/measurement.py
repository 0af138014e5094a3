"""How long a scheduled function takes: built by some processes, run in others, here or on other machines."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import tvm
from tvm import tirx

from tkc.contracts import GLOBAL_SYMBOL, NO_ALIAS
from tkc.kernels.target import Target
from tkc.schedules.lowering.code_generation import for_code_generation
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.sizes import size_variables, specialize
from tkc.schedules.tuning.workers import Failure, Workers

_ENTRY = "main"
# How many functions are built before they are measured, where there are not more cores.
_AT_ONCE = 8
# A run that takes as many seconds is measured once: its spread is small, and a large model has many such functions.
_LONG = 0.5
FILL = "tvm.contrib.random.random_fill_for_measure"


@dataclass(frozen=True)
class TensorArgument:
    """A tensor to call a function with. Floats are random; integers are zero, which is valid as any index."""

    dtype: str
    shape: tuple[int, ...]


Argument = TensorArgument | int


@dataclass(frozen=True)
class Program:
    """A scheduled function and what to call it with."""

    func: tirx.PrimFunc
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Measurement:
    """The seconds of each run, or why there are none."""

    seconds: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Limits:
    """After how many seconds a build or a measurement counts as hanging."""

    build: float = 60.0
    run: float = 30.0


@dataclass(frozen=True)
class Library:
    """A built program: ``path`` of its shared library."""

    path: Path
    arguments: tuple[Argument, ...]


class Runner(Protocol):
    """Where libraries are run."""

    def run(self, libraries: Sequence[Library], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each library, by its index, as soon as it is there; those that there are at ``until``."""

    def close(self) -> None:
        """Give back what the runner holds, at once."""


class LocalRunner:
    """Runs libraries on this machine, one after the other, in a process that has all cores."""

    def __init__(self, target: Target, limits: Limits, prepare: Callable[[], None] | None = None) -> None:
        self._device = "cuda" if target.is_cuda else "cpu"
        self._limits = limits
        self._workers = Workers(1, partial(_prepare_to_run, prepare))

    def run(self, libraries: Sequence[Library], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each library, by its index, as soon as it is there; those that there are at ``until``."""
        calls = [(str(library.path), self._device, library.arguments) for library in libraries]
        for index, result in self._workers.run(run_here, calls, self._limits.run, until):
            yield index, measurement_of(result)

    def close(self) -> None:
        """End the process."""
        self._workers.close()


class Measurer:
    """Builds programs in parallel and gives the libraries to ``runner``; use it as a context manager."""

    def __init__(
        self,
        target: Target,
        tvm_target: tvm.target.Target,
        runner: Runner,
        limits: Limits,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._target = target
        self._tvm_target = tvm_target
        self._runner = runner
        self._limits = limits
        processes = os.cpu_count() or 1
        self._builders = Workers(processes, prepare)
        self._at_once = max(processes, _AT_ONCE)
        self._numbers = itertools.count()
        self._folder = tempfile.TemporaryDirectory(prefix="tkc-tune-")

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._builders.close()
        self._runner.close()
        self._folder.cleanup()

    def measure(self, programs: Sequence[Program], until: float | None = None) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each program, by its index, as soon as it is there; failures are measurements too.

        Programs of one function, called with other arguments, share its library. Nothing is built beside what is
        measured; so that results come early, a few functions are built and measured before the next ones are. At
        ``until`` (of ``time.monotonic``) what is under way is killed, and the rest has no measurement.
        """
        funcs = list(dict.fromkeys(program.func for program in programs))
        for start in range(0, len(funcs), self._at_once):
            chosen = {func: None for func in funcs[start : start + self._at_once]}
            positions = [position for position, program in enumerate(programs) if program.func in chosen]
            for index, measurement in self._measure(
                [programs[position] for position in positions], list(chosen), until
            ):
                yield positions[index], measurement

    def _measure(
        self, programs: Sequence[Program], funcs: Sequence[tirx.PrimFunc], until: float | None
    ) -> Iterator[tuple[int, Measurement]]:
        # A process that has loaded a library would get the same one again by the same name.
        paths = [str(Path(self._folder.name) / f"{next(self._numbers)}.so") for _ in funcs]
        calls = [(func, self._target, self._tvm_target, path) for func, path in zip(funcs, paths, strict=True)]
        built: dict[tirx.PrimFunc, Path] = {}
        for index, result in self._builders.run(build, calls, self._limits.build, until):
            if not isinstance(result, Failure):
                built[funcs[index]] = Path(paths[index])
                continue
            for position, program in enumerate(programs):
                if program.func.same_as(funcs[index]):
                    yield position, Measurement(error=f"build: {result.reason}")
        positions = [position for position, program in enumerate(programs) if program.func in built]
        libraries = [Library(built[programs[position].func], programs[position].arguments) for position in positions]
        for index, measurement in self._runner.run(libraries, until):
            yield positions[index], measurement
        for library in libraries:
            library.path.unlink(missing_ok=True)


def arguments_of(func: tirx.PrimFunc, sizes: Mapping[str, int] | None = None) -> tuple[Argument, ...]:
    """What to call ``func`` with at ``sizes``, in the order of its parameters."""
    at = dict(sizes or {})
    tensors = specialize(func, at)
    scalars = {variable: at[name] for name, variable in size_variables(func).items() if name in at}
    shapes = iter(tensors.buffer_map[param] for param in tensors.params)
    return tuple(_tensor(next(shapes)) if param in func.buffer_map else scalars[param] for param in func.params)


def _tensor(buffer: tirx.Buffer) -> TensorArgument:
    return TensorArgument(str(buffer.dtype), tuple(int(extent) for extent in buffer.shape))


def measurement_of(result: object) -> Measurement:
    """What a worker's result means."""
    if isinstance(result, Failure):
        return Measurement(error=f"run: {result.reason}")
    assert isinstance(result, list)
    return Measurement(seconds=tuple(result))


def build(func: tirx.PrimFunc, target: Target, tvm_target: tvm.target.Target, path: str) -> None:
    """Compile ``func``, scheduled, to the shared library ``path`` with the entry ``main``; as compilations do."""
    finished = for_code_generation(func, target).with_attr(GLOBAL_SYMBOL, _ENTRY).with_attr(NO_ALIAS, True)
    with tvm_target:
        module = tvm.compile(tvm.IRModule({_ENTRY: finished}), target=tvm_target, tir_pipeline=LOWERING)
        module.export_library(path)


def run_here(path: str, device: str, arguments: tuple[Argument, ...]) -> list[float]:
    """The seconds of each run of the library ``path`` on this machine's ``device``."""
    module = tvm.runtime.load_module(path)
    return evaluate(module, tvm.device(device), arguments, tvm.get_global_func(FILL))


def evaluate(
    module: tvm.runtime.Module,
    device: tvm.runtime.Device,
    arguments: tuple[Argument, ...],
    fill: Callable[[tvm.runtime.Tensor], None],
) -> list[float]:
    """The seconds of each run of ``module``'s entry, wherever it is loaded; ``fill`` is that machine's filler."""
    values = [_value(argument, device, fill) for argument in arguments]
    device.sync()
    once = module.time_evaluator(_ENTRY, device, number=1, repeat=1)(*values).results
    if once[0] >= _LONG:
        return [float(once[0])]
    # Several runs a record, so that its spread is known; each long enough for the clock.
    evaluator = module.time_evaluator(_ENTRY, device, number=1, repeat=3, min_repeat_ms=40)
    return [float(run) for run in evaluator(*values).results]


def _value(
    argument: Argument, device: tvm.runtime.Device, fill: Callable[[tvm.runtime.Tensor], None]
) -> tvm.runtime.Tensor | int:
    if isinstance(argument, int):
        return argument
    tensor = tvm.runtime.empty(argument.shape, argument.dtype, device)
    if argument.dtype.startswith(("int", "uint", "bool")):
        import numpy as np

        return tensor.copyfrom(np.zeros(argument.shape, argument.dtype))
    fill(tensor)
    return tensor


def _prepare_to_run(prepare: Callable[[], None] | None) -> None:
    # As in tkc's executables; TVM counts hyperthreads as half a core by itself.
    os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    if prepare is not None:
        prepare()
