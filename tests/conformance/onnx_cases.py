"""ONNX's backend tests: their models, inputs and expected outputs, and how far outputs may differ."""

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


# What no two runtimes draw alike, so that only which numbers there are is compared.
RANDOM = ("test_bernoulli",)


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
        if len(inputs_of(model_of(case))) > 1:
            result.append(Run(case.name, constants=True))
    return result


def model_of(case: TestCase) -> onnx.ModelProto:
    """The model of a case."""
    return case.model if case.model is not None else onnx.load(Path(case.model_dir or "") / "model.onnx")


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives: before IR version 4, initializers are listed among a graph's inputs."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def data_sets(case: TestCase) -> Iterator[tuple[list[Any], list[Any]]]:
    """The inputs and expected outputs of each of a case's data sets."""
    model = model_of(case)
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield plain_arrays(inputs), plain_arrays(outputs)
        return
    for folder in sorted(Path(case.model_dir or "").glob("test_data_set_*")):
        yield (
            [_stored(folder / f"input_{i}.pb", value) for i, value in enumerate(inputs_of(model))],
            [_stored(folder / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)],
        )


def _stored(path: Path, value: onnx.ValueInfoProto) -> Any:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.load_tensor(path))


def plain_arrays(values: Sequence[Any]) -> list[Any]:
    """Tensors as arrays; sequences and optional values as they are."""
    arrays = [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in arrays]


def disagreement(outputs: Sequence[Any], expected: Sequence[Any], case: TestCase) -> str | None:
    """Where outputs, tensors and sequences of them, differ from what a case expects; ``None`` where they agree."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for output, reference in zip(outputs, expected, strict=True):
        if reference is None or isinstance(reference, list | tuple):
            if reference is None or output is None or not isinstance(output, list | tuple):
                found = None if output is None and reference is None else f"{output} instead of {reference}"
            else:
                found = disagreement(output, reference, case)
        else:
            found = difference(np.asarray(output), np.asarray(reference), case)
        if found is not None:
            return found
    return None


def difference(output: np.ndarray, reference: np.ndarray, case: TestCase) -> str | None:
    """How one tensor differs from what a case expects of it; ``None`` where it is as close as the case asks."""
    if reference.dtype.kind in "OU" and output.dtype == object:  # strings, which ONNX has in arrays of either
        same = output.shape == reference.shape and output.tolist() == reference.tolist()
        return None if same else f"{output.tolist()} instead of {reference.tolist()}"
    if (output.dtype, output.shape) != (reference.dtype, reference.shape):
        return f"{output.dtype}{output.shape} instead of {reference.dtype}{reference.shape}"
    if case.name.startswith(RANDOM):
        odd = set(np.unique(output).tolist()) - set(np.unique(reference).tolist())
        return f"{odd} among random numbers" if odd else None
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
