"""What ``tkc.tune`` does: schedules for a model's functions, searched on real devices and kept in a database."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.compiler import Kernels, check_kernels, checked_in_graph, prepare_toolchain
from tkc.errors import TargetError, TuningStoppedError, UsageError
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.runtime.local_gpu import runs_here
from tkc.targets import resolve_target

if TYPE_CHECKING:
    from tvm import IRModule

    from tkc.frontend.model import ImportedModel
    from tkc.schedules.tuning.background import Background
    from tkc.schedules.tuning.budget import Budget
    from tkc.schedules.tuning.measurement import Limits, Runner
    from tkc.schedules.tuning.progress import Progress
    from tkc.schedules.tuning.remote import Endpoint
    from tkc.schedules.tuning.tasks import Extraction
    from tkc.stages import Observer

_OTHER_FOLDER = "name another folder (--database, or the environment variable TKC_DATABASE_DIR)"
_SMALLEST_ROOM = 1 << 14  # bytes, of a few records


@dataclass(frozen=True)
class TuningResult:
    """What a job did: the ``folder`` of its records, how far it came, and why it ended."""

    folder: Path
    target: str
    progress: Progress

    @property
    def gain(self) -> float:
        """How much faster the model's generated functions are together than under the default rules."""
        return self.progress.gain

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; times in seconds."""
        return {
            "folder": str(self.folder),
            "target": self.target,
            "gain": self.gain,
            "copy_share": self.progress.copy_share,
            **dataclasses.asdict(self.progress),
        }


def tuned(
    model: Any,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    *,
    target: str | Target,
    dynamic_shapes: Any,
    database: str | os.PathLike[str] | None,
    trials: int | None,
    minutes: float | None,
    until_gain: float | None,
    shapes: Mapping[str, Sequence[int]] | None,
    rpc: str | None,
    device_key: str | None,
    resume: bool,
    kernels: Kernels,
    checks: bool,
    size_names: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    observer: Callable[[Progress], None] | None,
    started: float | None,
) -> TuningResult:
    """What :func:`tkc.tune` returns, whose arguments these are."""
    started = time.monotonic() if started is None else started
    from tkc.schedules.tuning.background import Background, TimeIsUpError
    from tkc.schedules.tuning.budget import Budget

    try:
        budget = Budget(trials, minutes, until_gain)
    except ValueError as error:
        raise UsageError(str(error)) from None
    resolved = resolve_target(target)
    if rpc is None and (reason := runs_here(resolved)):
        raise TargetError(f"cannot measure for {resolved} here: {reason}; name an RPC tracker with servers that can")
    endpoint = _endpoint(rpc, device_key)
    check_kernels(kernels)
    root = _root(database)
    begin = _Beginning(started, observer)
    background = Background()
    until = budget.deadline(started)
    checked = checked_in_graph(checks, resolved)
    read = partial(
        import_model, model, example_args, example_kwargs, dynamic_shapes, checked, size_names, constants=constants
    )
    try:
        # Tracing a module depends on the modes that the caller's thread is in; a file does not.
        if not isinstance(model, str | os.PathLike):
            prepare_toolchain(resolved)
            begin("importing the model")
            imported = read(fallback=True)
        else:
            begin("loading the compiler")
            background.run(partial(prepare_toolchain, resolved), until)
            begin("importing the model")
            imported = background.run(read, until)
        extraction = background.run(partial(_extraction, imported, resolved, kernels, shapes, begin), until)
        begin("measuring")
        return _run(extraction, resolved, root, budget, endpoint, resume, observer, started, background)
    except TimeIsUpError:
        raise TuningStoppedError(
            f"the {budget.minutes:g} minutes were over before anything was measured: {begin.spent()}; "
            "give the job more minutes"
        ) from None


class _Beginning:
    """Tells ``observer`` what is done before there is a job, and notes how long each thing took."""

    def __init__(self, started: float, observer: Callable[[Progress], None] | None) -> None:
        self._started = started
        self._observer = observer
        self._begun: list[tuple[str, float]] = []

    def __call__(self, activity: str) -> None:
        from tkc.schedules.tuning.progress import Progress

        now = time.monotonic()
        self._begun.append((activity, now))
        if self._observer is not None:
            self._observer(Progress(activity, (), 0, now - self._started, ()))

    def spent(self) -> str:
        """What the time went into."""
        ends = [*(begun for _, begun in self._begun[1:]), time.monotonic()]
        spent: dict[str, float] = {}
        for (activity, begun), end in zip(self._begun, ends, strict=True):
            spent[activity] = spent.get(activity, 0.0) + end - begun
        return ", ".join(f"{activity} took {seconds:.1f} s" for activity, seconds in spent.items() if seconds >= 0.1)


def _run(
    extraction: Extraction,
    target: Target,
    root: Path,
    budget: Budget,
    endpoint: Endpoint | None,
    resume: bool,
    observer: Callable[[Progress], None] | None,
    started: float,
    background: Background,
) -> TuningResult:
    from tkc.schedules.database import target_folder
    from tkc.schedules.target import tvm_target
    from tkc.schedules.tuning.job import NothingToTuneError, TuningJob
    from tkc.schedules.tuning.measurement import Limits, Measurer
    from tkc.schedules.tuning.state import StateFile, UnreadableStateError
    from tkc.schedules.tuning.stored_records import StoredRecords

    generated_for, limits, folder = tvm_target(target), Limits(), target_folder(root, target)
    prepare = partial(prepare_toolchain, target)
    try:
        records = StoredRecords(root, target, None if endpoint is None else endpoint.key)
        with (
            Measurer(target, generated_for, _runner(endpoint, target, limits), limits, prepare) as measurer,
            closing(StateFile(folder / "jobs", extraction.tasks)) as file,
        ):
            job = TuningJob(
                extraction,
                target,
                generated_for,
                measurer,
                records,
                budget,
                file,
                resume,
                observer,
                started,
                background,
            )
            return TuningResult(folder, str(target), job.run())
    except (NothingToTuneError, UnreadableStateError) as error:
        raise UsageError(str(error)) from error
    except ConnectionError as error:
        raise TuningStoppedError(str(error)) from error
    except OSError as error:
        raise TuningStoppedError(
            f"the job stopped: {error}; what was measured is kept in {root}, and resuming goes on from there; make "
            f"room, or {_OTHER_FOLDER}"
        ) from error


def _extraction(
    imported: ImportedModel,
    target: Target,
    kernels: Kernels,
    shapes: Mapping[str, Sequence[int]] | None,
    observer: Observer | None = None,
) -> Extraction:
    from tkc.schedules.tuning.tasks import extract

    ranges = {name: (size.minimum, size.maximum) for name, size in imported.signature.sizes.items()}
    try:
        return extract(unscheduled(imported, target, kernels, observer), ranges, shapes)
    except ValueError as error:
        raise UsageError(str(error)) from error


def unscheduled(
    imported: ImportedModel, target: Target, kernels: Kernels, observer: Observer | None = None
) -> IRModule:
    """The model as compilations have it before they schedule it."""
    from tkc.compilation import Compilation
    from tkc.pipeline import fusion_stages, substitution_stages
    from tkc.schedules.target import tvm_target
    from tkc.stages import StageRunner

    stages = [*substitution_stages(target, kernels), *fusion_stages()]
    with tvm_target(target):
        return StageRunner(observer).run_stages(Compilation(imported.module), stages).module


def _endpoint(rpc: str | None, device_key: str | None) -> Endpoint | None:
    if rpc is None and device_key is None:
        return None
    if rpc is None or device_key is None:
        raise UsageError("measuring on other machines needs both the RPC tracker (host:port) and the device key")
    host, _, port = rpc.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{rpc!r} names no RPC tracker; it must be host:port")
    from tkc.schedules.tuning.remote import Endpoint

    return Endpoint(host, int(port), device_key)


def _runner(endpoint: Endpoint | None, target: Target, limits: Limits) -> Runner:
    from tkc.schedules.tuning.measurement import LocalRunner
    from tkc.schedules.tuning.remote import RemoteRunner

    if endpoint is not None:
        return RemoteRunner(endpoint, target, limits)
    return LocalRunner(target, limits, partial(prepare_toolchain, target))


def _root(database: str | os.PathLike[str] | None) -> Path:
    """The folder of records. Raises :class:`UsageError` for one that cannot be written: better now than in an hour."""
    from tkc.schedules.database import user_database

    root = user_database() if database is None else Path(database)
    if root.exists() and not root.is_dir():
        raise UsageError(f"the database {root} is a file; it must be a folder")
    existing = next((folder for folder in (root, *root.absolute().parents) if folder.exists()), root)
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"\0" * _SMALLEST_ROOM)
    except OSError as error:
        raise UsageError(
            f"the database {root} cannot be written: {existing}: {error.strerror}; {_OTHER_FOLDER}"
        ) from error
    return root
