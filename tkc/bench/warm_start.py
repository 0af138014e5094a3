"""How long the first call of ``torch.compile(model, backend="tkc")`` takes, in a first and in a second process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tkc.bench.first_call import CONTENDERS, Call, FirstCall
from tkc.errors import UsageError
from tkc.measure.record import Row

_CACHES = ("TKC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
"""Environment variables that name the folders in which a contender, or the CUDA driver, keeps what it compiled."""
_REASON_WIDTH = 300  # characters


@dataclass(frozen=True)
class _Size:
    """A model, how many sequences of how many tokens it is called with, and how many layers it has."""

    model: str
    batch: int
    tokens: int
    layers: int | None = 4


SIZES = {
    "llama": _Size("llama-3-8b", 1, 2048),
    "qwen3-moe": _Size("qwen3-30b-a3b", 1, 4096),
    "bert": _Size("bert-large", 32, 512),
    "vit": _Size("vit-l-16", 64, 1),
    "generate": _Size("llama-3.1-8b", 1, 2048, None),
}
"""What is called, by the name of its row: keys of :data:`tkc.bench.models.MODELS`, and a whole language model, with all
its layers, by transformers' ``generate``."""

_SMALL_SIZE = (2, 64)  # sequences, and their tokens
_STATES = ("first process", "second process")


def bench_warm_start(
    names: Sequence[str],
    layers: int | None,
    device: torch.device,
    dtype: torch.dtype,
    references: Sequence[str],
    small: bool = False,
    dynamic: bool | None = None,
    limit: float | None = None,
) -> Iterator[Row]:
    """Two rows for each of ``names``, of :data:`SIZES` (all, where there are none), with so many ``layers``, where they
    are given.

    Each contender, TKC and the ``references``, has a process of its own for each row, whose time is that from
    ``torch.compile(model)(...)`` to its first result. Its caches are empty in the first process, and what that one left
    in the second. What of a time went into imports is noted, as is the share of each reference's time that TKC's is.
    ``small`` are models of the same types that two CPU cores bear; ``dynamic`` is ``torch.compile``'s. A first call
    that takes longer than ``limit`` seconds, with its imports and the making of its model, is given up. A contender
    that fails has a note that says why; where that is TKC, the row has no figures.

    Raises :class:`tkc.UsageError` for a name or a reference that does not exist, before anything is measured.
    """
    if unknown := [name for name in names if name not in SIZES]:
        raise UsageError(f"there is no model {', '.join(unknown)} to start; choose from {', '.join(SIZES)}")
    possible = [name for name in CONTENDERS if name != "tkc"]
    if unknown := [name for name in references if name not in possible]:
        raise UsageError(f"{', '.join(unknown)} compiles nothing; choose references from {', '.join(possible)}")
    contenders = ["tkc", *references]
    for name in names or SIZES:
        size = SIZES[name]
        batch, tokens = _SMALL_SIZE if small else (size.batch, size.tokens)
        with tempfile.TemporaryDirectory(prefix="tkc-bench-", ignore_cleanup_errors=True) as folder:
            for state in _STATES:
                calls: dict[str, FirstCall | str] = {}
                for contender in contenders:
                    call = Call(
                        size.model,
                        small,
                        size.layers if layers is None else layers,
                        batch,
                        tokens,
                        device.type,
                        str(dtype).removeprefix("torch."),
                        contender,
                        dynamic,
                    )
                    calls[contender] = _in_its_process(call, Path(folder) / contender, limit)
                told = f"{batch} × {tokens:,} tokens" if size.tokens > 1 else f"{batch} images"
                which = f"{'small ' if small else ''}{name}, {call.layers or 'all'} layers"
                yield _row(f"{which}, {told}, {state}", calls)


def _row(name: str, calls: Mapping[str, FirstCall | str]) -> Row:
    """A row of what each contender's first call came to, or why it failed."""
    ours = calls["tkc"]
    notes: dict[str, float | str] = {}
    milliseconds: dict[str, float] = {}
    for contender, call in calls.items():
        if isinstance(call, str):
            notes[f"{contender} failed"] = call
            continue
        if isinstance(ours, str):
            notes[f"{contender} s"] = call.seconds
        else:
            milliseconds[contender] = call.seconds * 1e3
            if contender != "tkc":
                notes[f"tkc / {contender}"] = ours.seconds / call.seconds
        notes[f"{contender} imports s"] = call.imports
        notes[f"{contender} without imports s"] = call.seconds - call.imports
        notes[f"{contender} graphs"] = float(call.graphs)
        notes[f"{contender} error"] = call.error
        if call.warned:
            notes[f"{contender} warned"] = textwrap.shorten("; ".join(call.warned), _REASON_WIDTH)
    if isinstance(ours, str):
        return Row(name, {}, notes=notes)
    others = [time for contender, time in milliseconds.items() if contender != "tkc"]
    return Row(name, milliseconds, min(others) / milliseconds["tkc"] if others else None, ours.error, notes)


def _in_its_process(call: Call, caches: Path, limit: float | None) -> FirstCall | str:
    """What a process of its own, with its ``caches`` in a folder, measures; in words, why it failed."""
    folders = {name: str(caches / name) for name in _CACHES}
    command = [sys.executable, "-m", "tkc.bench.first_call", json.dumps(asdict(call))]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        # A group of its own, which a compiler's processes are in, too, and end with.
        process = subprocess.Popen(
            command, env={**os.environ, **folders}, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"not done after {limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (output, errors):
            file.seek(0)
        if status != 0:
            told = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
            return textwrap.shorten(told[-1] if told else f"exit code {status}", _REASON_WIDTH)
        return FirstCall(**json.loads(output.read().decode().splitlines()[-1]))
