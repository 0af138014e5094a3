"""ONNX's backend tests: the cases, their inputs and expected outputs, and the verdict on one run."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

# In how many units of the last place a chain of operations in 16 bits may differ from ONNX's own.
ROUNDINGS = 4


@dataclass(frozen=True)
class Run:
    """One way to run a case."""

    case: str
    constants: bool

    @property
    def mode(self) -> str:
        """Where the inputs behind the first come from."""
        return "constants" if self.constants else "inputs"


# Cases


def backend_cases() -> dict[str, TestCase]:
    """ONNX's own tests of operators and small models, by name, in a stable order."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return {case.name: case for case in sorted(cases, key=lambda case: (zlib.crc32(case.name.encode()), case.name))}


def runs(cases: Iterable[TestCase]) -> list[Run]:
    """The ways to run each case."""
    result = []
    for case in cases:
        result.append(Run(case.name, constants=False))
        if len(_inputs(case_model(case))) > 1:
            result.append(Run(case.name, constants=True))
    return result


def case_model(case: TestCase) -> onnx.ModelProto:
    """The model of a case, which some have in a file."""
    return case.model if case.model is not None else onnx.load(Path(case.model_dir or "") / "model.onnx")


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives: before IR version 4, initializers are listed among a graph's inputs."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def _data_sets(case: TestCase, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """The inputs and expected outputs of each of a case's data sets."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield arrays(inputs), arrays(outputs)
        return
    for folder in sorted(Path(case.model_dir or "").glob("test_data_set_*")):
        yield (
            [_stored(folder / f"input_{i}.pb", value) for i, value in enumerate(_inputs(model))],
            [_stored(folder / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)],
        )


def _stored(path: Path, value: onnx.ValueInfoProto) -> Any:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.load_tensor(path))


def arrays(values: Sequence[Any]) -> list[Any]:
    """Tensors as arrays; sequences and optional values as they are."""
    arrays = [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in arrays]


# One run, in a worker


def judged(case: TestCase, constants: bool) -> tuple[str, str]:
    """The verdict on one run of a case, and the reason."""
    import tkc
    from tkc.errors import InputError, UnsupportedModelError
    from tkc.runtime.tensors import from_torch_as, narrowed

    to_array = from_torch_as(np.empty(0))
    try:
        for given, expected in _data_sets(case, case_model(case)):
            model = case_model(case)
            inputs, bound = _split(model, given, constants)
            executable = tkc.compile(model, target="cpu", kernels="none", constants=bound)
            outputs = [
                narrowed(to_array(output), spec.dtype) if spec.held != spec.dtype else to_array(output)
                for output, spec in zip(executable.run_flat(inputs), executable.signature.outputs, strict=True)
            ]
            if (difference := _disagreement(outputs, expected, case)) is not None:
                return "wrong", difference
    except (UnsupportedModelError, InputError) as error:  # when the model is compiled, or at the call
        return "refused", str(error)
    except Exception as error:
        return "internal", f"{type(error).__name__}: {error}"
    return "right", ""


def _split(
    model: onnx.ModelProto, given: Sequence[Any], constants: bool
) -> tuple[list[Any], dict[str, np.ndarray] | None]:
    """What the call is given, and what is bound as constants: if asked for, every tensor but the first."""
    if not constants:
        return list(given), None
    inputs: list[Any] = []
    bound: dict[str, np.ndarray] = {}
    for value, array in zip(_inputs(model), given, strict=True):
        if inputs and isinstance(array, np.ndarray):
            bound[value.name] = array
        else:
            inputs.append(array)
    return inputs, bound


def _disagreement(outputs: Sequence[np.ndarray], expected: Sequence[Any], case: TestCase) -> str | None:
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for output, reference in zip(outputs, expected, strict=True):
        if (found := difference(output, np.asarray(reference), case)) is not None:
            return found
    return None


def difference(output: np.ndarray, reference: np.ndarray, case: TestCase) -> str | None:
    """How an output differs from what ``case`` expects; ``None`` if it agrees."""
    if (output.dtype, output.shape) != (reference.dtype, reference.shape):
        return f"{output.dtype}{output.shape} instead of {reference.dtype}{reference.shape}"
    rtol, atol = case.rtol, case.atol
    if output.dtype in (np.float16, ml_dtypes.bfloat16):
        rtol = max(rtol, ROUNDINGS * float(ml_dtypes.finfo(output.dtype).eps))
    if output.dtype.kind not in "biuf":  # the types that NumPy does not know, whose numbers float32 holds
        output, reference = output.astype("float32"), reference.astype("float32")
    if case.name.startswith(("test_dft", "test_stft")):  # each number is a sum of all, and errs with the largest
        atol = max(atol, ROUNDINGS * float(np.finfo(output.dtype).eps * np.abs(reference).max(initial=0)))
    close = np.isclose(output, reference, rtol, atol, equal_nan=True)
    if close.all():
        return None
    return f"{output[~close][:4]} instead of {reference[~close][:4]}, {(~close).sum()} of {close.size} elements"
