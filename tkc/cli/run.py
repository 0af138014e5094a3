"""Running an artifact or a model: inputs from files or at random, outputs to files, comparison with the source."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from rich.console import Console, RenderableType

from tkc.api import compile
from tkc.cli.progress import StageProgress
from tkc.cli.signatures import parse_sizes
from tkc.diagnosis.reference import run_source
from tkc.errors import UsageError
from tkc.runtime.executable import Executable
from tkc.runtime.loading import load
from tkc.runtime.program import Program
from tkc.runtime.random_inputs import random_inputs
from tkc.runtime.signature import Signature
from tkc.runtime.tables import PlainTable

MODEL_SUFFIXES = (".onnx", ".pt2")
"""What files are models, which are compiled first."""


@dataclass(frozen=True)
class OutputRow:
    """One output; ``error`` is its largest deviation from the source model, relative to the source's largest value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float | None = None


@dataclass(frozen=True)
class RunResult:
    """The outputs of one run, the time of a second call in milliseconds, and the tolerance of a comparison."""

    outputs: tuple[OutputRow, ...]
    milliseconds: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether no compared output deviates by more than the tolerance."""
        return all(row.error is None or row.error <= self.tolerance for row in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-ready values."""
        return {**asdict(self), "agrees": self.agrees}

    def __rich__(self) -> RenderableType:
        table = PlainTable(title=f"Ran in {self.milliseconds:.3f} ms")
        for column in ("output", "dtype", "shape", "error"):
            table.add_column(column)
        for row in self.outputs:
            verdict = (
                "" if row.error is None else f"{row.error:.2e} {'ok' if row.error <= self.tolerance else 'TOO LARGE'}"
            )
            table.add_row(row.name, row.dtype, str(list(row.shape)), verdict)
        return table


def run_model(
    path: Path,
    entry: str | None,
    inputs: Sequence[str],
    sizes: Sequence[str],
    seed: int,
    output: Path | None,
    compare: Path | None,
    tolerance: float,
) -> RunResult:
    """Run what :func:`loaded` has of ``path`` on given or random inputs, and compare with ``compare`` if asked."""
    if output is not None and output.suffix not in (".npz", ".safetensors"):
        raise UsageError(f"--output {output}: write outputs as .npz or .safetensors")
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}")
    executable = loaded(path, entry)
    signature = executable.signature
    values = chosen_inputs(inputs, sizes, seed, signature)
    # The first call loads code and weights. What it updates, the second finds as it was.
    executable.run_flat([copied_to(executable.device, value) for value in values])
    executable.reset()
    on_device = [copied_to(executable.device, value) for value in values]
    start = time.perf_counter()
    results = executable.run_flat(on_device)
    if executable.target.is_cuda:
        torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) * 1e3
    results = [result.cpu() if isinstance(result, torch.Tensor) else result for result in results]
    errors: list[float | None] = [None] * len(results)
    if compare is not None:
        expected = run_source(compare, values)
        errors = [relative_error(result, reference) for result, reference in zip(results, expected, strict=True)]
    if output is not None:
        _write(output, {spec.name: result for spec, result in zip(signature.outputs, results, strict=True)})
    rows = (
        OutputRow(spec.name, spec.dtype, tuple(result.shape), error)
        for spec, result, error in zip(signature.outputs, results, errors, strict=True)
    )
    return RunResult(tuple(rows), milliseconds, tolerance)


def loaded(path: Path, entry: str | None) -> Executable:
    """The artifact at ``path``, or an entry of it; a model's file, ``.onnx`` or ``.pt2``, compiled for this machine.

    Raises :class:`UsageError` where there is no such file.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder; give a model's file or what tkc compile wrote")
    if path.suffix not in MODEL_SUFFIXES or path.is_dir():
        return chosen_entry(load(path), entry)
    target = "cuda" if torch.cuda.is_available() else "cpu"
    with StageProgress(Console(stderr=True)) as progress:
        compiled = compile(path, target=target, observer=progress.stage, kernel_progress=progress.kernel)
    return chosen_entry(compiled, entry)


def chosen_entry(executable: Executable, name: str | None) -> Executable:
    """What runs: ``executable``, or the entry of a program; :class:`UsageError` if it is not said which, or none."""
    if not isinstance(executable, Program):
        if name is not None:
            raise UsageError(f"--entry {name}: this artifact has no entries; leave the option out")
        return executable
    known = ", ".join(executable.entries)
    if name is None:
        raise UsageError(f"this artifact has several entries: give --entry with one of {known}")
    if name not in executable.entries:
        raise UsageError(f"--entry {name}: this artifact has the entries {known}")
    return executable.entries[name]


def chosen_inputs(inputs: Sequence[str], sizes: Sequence[str], seed: int, signature: Signature) -> list[Any]:
    """What runs the model, in its order: the tensors of ``--input``, or random ones of the sizes of ``--size``.

    Strings are arrays.
    """
    if inputs and sizes:
        raise UsageError("--size is for random inputs; those of --input have sizes of their own")
    return _read_inputs(inputs, signature) if inputs else random_inputs(signature, parse_sizes(sizes), seed)


def copied_to(device: torch.device, value: torch.Tensor | np.ndarray) -> torch.Tensor | np.ndarray:
    """A copy of a tensor on ``device``, or of an array of strings."""
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value.copy()


def relative_error(result: torch.Tensor | np.ndarray, reference: torch.Tensor | np.ndarray) -> float:
    """The largest absolute deviation over the reference's largest magnitude; infinite for a NaN or another shape.

    Strings deviate by nothing, or infinitely.
    """
    if result.shape != reference.shape:
        return float("inf")
    if not isinstance(result, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return 0.0 if result.tolist() == reference.tolist() else float("inf")
    if result.numel() == 0:
        return 0.0
    if result.is_complex() and reference.is_complex():
        result, reference = (torch.view_as_real(tensor.resolve_conj()) for tensor in (result, reference))
    difference = (result.double() - reference.double()).abs().max()
    scale = reference.double().abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    error = float(difference / scale)
    return float("inf") if error != error else error


def read_named(files: Sequence[str]) -> dict[str, Any]:
    """The tensors of all ``--input``, by name, strings as arrays.

    Raises :class:`UsageError` for a file that holds none, and for a name twice.
    """
    named: dict[str, Any] = {}
    for text in files:
        read = _read(text)
        if twice := sorted(named.keys() & read.keys()):
            raise UsageError(f"--input {text}: there is a value for {', '.join(twice)} already")
        named |= read
    return named


def _read_inputs(files: Sequence[str], signature: Signature) -> list[Any]:
    named = read_named(files)
    names = [spec.name for spec in signature.inputs]
    if missing := [name for name in names if name not in named]:
        raise UsageError(f"no value for input {', '.join(missing)}; the model takes {', '.join(names)}")
    if unknown := sorted(set(named) - set(names)):
        raise UsageError(f"the model has no input {', '.join(unknown)}; it takes {', '.join(names)}")
    return [named[name] for name in names]


def _read(text: str) -> dict[str, Any]:
    """The tensors of one ``--input``; :class:`UsageError` for a file that holds none."""
    name, equals, path = text.partition("=")
    try:
        if equals:
            return {name: _value(np.load(_existing(path), allow_pickle=False))}
        if text.endswith(".npz"):
            with np.load(_existing(text), allow_pickle=False) as arrays:
                return {key: _value(value) for key, value in arrays.items()}
        if text.endswith(".safetensors"):
            return dict(safetensors.torch.load_file(_existing(text)))
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise UsageError(f"--input {text}: no tensors can be read from it: {error}") from None
    raise UsageError(f"--input {text}: give FILE.npz, FILE.safetensors or NAME=FILE.npy")


def _value(array: np.ndarray) -> torch.Tensor | np.ndarray:
    """What a file holds: numbers as a tensor, strings as they are."""
    return array if array.dtype.kind in "US" else torch.from_numpy(array)


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise UsageError(f"there is no input file {path}")
    return Path(path)


def _write(path: Path, outputs: Mapping[str, torch.Tensor | np.ndarray]) -> None:
    tensors = {name: value.contiguous() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    strings = {name: value for name, value in outputs.items() if not isinstance(value, torch.Tensor)}
    if path.suffix == ".npz":
        arrays = {name: value.astype(np.str_) for name, value in strings.items()}  # which need no pickle
        np.savez(path, **arrays, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]  # no flags
    elif strings:
        raise UsageError(f"--output {path}: outputs {', '.join(strings)} are strings; write them as .npz")
    else:
        safetensors.torch.save_file(tensors, path)
