"""Models on the CPU beside eager PyTorch, Inductor and ONNX Runtime, with as many threads as the user gives all."""

from __future__ import annotations

import gc
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tkc.api import compile
from tkc.bench.cpu_models import CPU_MODELS, CpuCase, cpu_case
from tkc.errors import UsageError
from tkc.measure.record import Row, shortened

OURS = "tkc"
_SMALL_TURNS = 20  # calls of a contender in a row, of those that take less than a millisecond

Call = Callable[[], Any]


def bench_cpu(names: Sequence[str], references: Sequence[str], seconds: float, onnx: Sequence[Path]) -> Iterator[Row]:
    """A row for each of ``names``, of :data:`CPU_MODELS` (all, where there are none), and for each file of ``onnx``.

    ``references`` are keys of :data:`REFERENCES`. A contender's time is the least of its calls, some ``seconds`` of
    them, by turns with the others': the machine's other work makes calls longer, never shorter. It is the process's
    CPU time, of all threads together, for which reason one thread (``OMP_NUM_THREADS=1 TVM_NUM_THREADS=1``) says
    most. Weights are TKC's own, as those of an artifact are. What one cannot compile or run is noted, and the
    others are measured.
    """
    for kind, given, known in (("model", names, CPU_MODELS), ("reference", references, REFERENCES)):
        if unknown := [name for name in given if name not in known]:
            raise UsageError(f"there is no {kind} {', '.join(unknown)}; choose from {', '.join(known)}")
    for name in names or ([] if onnx else CPU_MODELS):
        yield _model_row(name, references, seconds)
        torch.compiler.reset()
        gc.collect()
    for file in onnx:
        yield _file_row(file, references, seconds)


def _model_row(name: str, references: Sequence[str], seconds: float) -> Row:
    case = cpu_case(name)
    notes: dict[str, float | str] = {}
    with torch.no_grad():
        expected = case.model(**case.inputs)
        start = time.perf_counter()
        try:
            ours = compile(case.model, (), dict(case.inputs), copy_weights=True)
        except Exception as error:  # of whatever kind: the other models are still to be measured
            return Row(name, {}, notes={"failed": shortened(error)})
        notes["compile s"] = time.perf_counter() - start
        calls: dict[str, Call] = {OURS: lambda: ours(**case.inputs)}
        for reference in references:
            try:
                call = REFERENCES[reference](case)
                call()
            except Exception as error:
                notes[f"{reference} failed"] = shortened(error)
            else:
                calls[reference] = call
        return _row(name, calls, _first(expected), seconds, notes)


def _file_row(file: Path, references: Sequence[str], seconds: float) -> Row:
    """Of an ONNX file ONNX Runtime is the one reference; symbolic sizes are those of ``_example``."""
    notes: dict[str, float | str] = {}
    try:
        session = _session(str(file))
        inputs = {spec.name: _example(spec) for spec in session.get_inputs()}
        arrays = {name: value.numpy() for name, value in inputs.items()}
        expected = torch.from_numpy(session.run(None, arrays)[0])
        start = time.perf_counter()
        ours = compile(file)
        notes["compile s"] = time.perf_counter() - start
        calls: dict[str, Call] = {OURS: lambda: ours(**inputs)}
        if "onnxruntime" in references:
            calls["onnxruntime"] = lambda: session.run(None, arrays)
        with torch.no_grad():
            return _row(file.stem, calls, expected, seconds, notes)
    except Exception as error:
        return Row(file.stem, {}, notes={"failed": shortened(error)})


def _example(spec: Any) -> torch.Tensor:
    """A random input as ``spec``, ONNX Runtime's, describes it: a symbolic batch is 1, other symbolic sizes are 224."""
    sizes = [size if isinstance(size, int) else 1 if axis == 0 else 224 for axis, size in enumerate(spec.shape)]
    if spec.type == "tensor(float)":
        return torch.randn(sizes)
    integers = {"tensor(int64)": torch.int64, "tensor(int32)": torch.int32}
    if spec.type not in integers:
        raise UsageError(f"no example is made of the input {spec.name} of {spec.type}")
    return torch.ones(sizes, dtype=integers[spec.type])


def _row(
    name: str, calls: Mapping[str, Call], expected: torch.Tensor, seconds: float, notes: dict[str, float | str]
) -> Row:
    milliseconds = least_milliseconds(calls, seconds)
    others = {reference: time for reference, time in milliseconds.items() if reference != OURS}
    if others:
        notes["fastest other"] = min(others, key=others.__getitem__)
    found = _first(calls[OURS]())
    error = torch.linalg.vector_norm(found.double() - expected.double()) / torch.linalg.vector_norm(expected.double())
    ratio = min(others.values()) / milliseconds[OURS] if others else None
    return Row(name, milliseconds, ratio, float(error), notes)


def least_milliseconds(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """The least CPU time of a call of each, over about ``seconds`` of each, by turns; of many calls in a row, if short.

    The process's clock may stand still for a call of some microseconds.
    """
    least: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        call()  # TKC packs weights for the first two calls of a size
        counts[name] = _SMALL_TURNS if _milliseconds(call, 1) < 1 else 1
        least[name] = _milliseconds(call, counts[name])
    turns = max(5, round(seconds * 1e3 * len(calls) / sum(least[name] * counts[name] for name in calls)))
    for _ in range(turns):
        for name, call in calls.items():
            least[name] = min(least[name], _milliseconds(call, counts[name]))
    return least


def _milliseconds(call: Call, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count * 1e3


def _first(outputs: Any) -> torch.Tensor:
    """The first output of a model, whatever structure it returns."""
    while not isinstance(outputs, torch.Tensor):
        outputs = next(iter(outputs.values())) if isinstance(outputs, Mapping) else outputs[0]
    return outputs


def _eager(case: CpuCase) -> Call:
    return lambda: case.model(**case.inputs)


def _inductor(case: CpuCase) -> Call:
    compiled = torch.compile(case.model, dynamic=False)
    return lambda: compiled(**case.inputs)


def _frozen(case: CpuCase) -> Call:
    """Inductor with weights that nobody changes, which it packs, as TKC does."""
    from torch._inductor import config

    compiled = torch.compile(case.model, dynamic=False, options={"freezing": True})

    def call() -> Any:
        return compiled(**case.inputs)

    assert hasattr(config, "freezing")
    return call


def _onnx_runtime(case: CpuCase) -> Call:
    if not case.exports:
        raise UsageError("ONNX has no state")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(
            case.model, (), file, kwargs=dict(case.inputs), dynamo=True, external_data=True, verbose=False
        )
        session = _session(file)
    arrays = {name: value.numpy() for name, value in case.inputs.items()}
    return lambda: session.run(None, arrays)


def _session(file: str) -> Any:
    """ONNX Runtime's, of as many threads as PyTorch has; :class:`tkc.UsageError` where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError("ONNX Runtime is not installed (pip install onnxruntime)")
    import onnxruntime  # type: ignore[import-not-found]  # no requirement of TKC's

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


REFERENCES: dict[str, Callable[[CpuCase], Call]] = {
    "eager": _eager,
    "inductor": _inductor,
    "frozen": _frozen,
    "onnxruntime": _onnx_runtime,
}
"""What models are measured beside, by name: ``frozen`` is Inductor with constant weights."""
