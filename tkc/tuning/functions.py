"""What ``tkc.tune`` does: kernels that a model calls are measured, then schedules of its functions searched."""

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
from typing import TYPE_CHECKING, Any, Literal, get_args

from tkc.compiler.code import prepare_toolchain
from tkc.compiler.options import Kernels, calls_libraries, check_kernels, checked_in_graph
from tkc.databases import tuning_choices
from tkc.errors import TargetError, TuningStoppedError, UsageError
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.runtime.local_gpu import runs_here
from tkc.targets import resolve_target

if TYPE_CHECKING:
    from tvm import IRModule

    from tkc.called_cases import CalledCase
    from tkc.frontend.model import ImportedModel
    from tkc.kernels.choices import RecordedChoices
    from tkc.schedules.tuning.background import Background
    from tkc.schedules.tuning.budget import Budget
    from tkc.schedules.tuning.measurement import Limits, Runner
    from tkc.schedules.tuning.progress import Progress
    from tkc.schedules.tuning.remote import Endpoint
    from tkc.schedules.tuning.state import StateFile
    from tkc.schedules.tuning.tasks import Extraction
    from tkc.stages import Observer

MeasureKernels = Literal["new", "again", "none"]
"""Which of the kernels that a model calls are measured: those without a record of their own, all, or none."""

_OTHER_FOLDER = "name another folder (--database, or the environment variable TKC_DATABASE_DIR)"
# The part of the minutes that kernels get where there are functions, too: most of a model's time is theirs.
_KERNELS_SHARE = 0.75
_AT_A_TIME = 1  # kernels that are built at a time, for each core
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

    @property
    def kernel_gain(self) -> float:
        """How much faster the kernels that the model calls are together than in the configurations of before."""
        return self.progress.kernel_gain

    @property
    def total_gain(self) -> float:
        """How much faster kernels and functions are together, of those that were measured."""
        return self.progress.total_gain

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; times in seconds."""
        return {
            "folder": str(self.folder),
            "target": self.target,
            "gain": self.gain,
            "kernel_gain": self.kernel_gain,
            "total_gain": self.total_gain,
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
    measure_kernels: MeasureKernels,
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
    if measure_kernels not in get_args(MeasureKernels):
        raise UsageError(
            f"measure_kernels={measure_kernels!r} means nothing; choose one of {', '.join(get_args(MeasureKernels))}"
        )
    root = _root(database)
    begin = _Beginning(started, observer)
    background = Background()
    until = budget.deadline(started)
    checked = checked_in_graph(checks, resolved)
    read = partial(
        import_model,
        model,
        example_args,
        example_kwargs,
        dynamic_shapes,
        checked,
        size_names,
        fallback=True,
        library=calls_libraries(kernels) and not resolved.is_cuda,
        constants=constants,
    )
    try:
        # Tracing a module depends on the modes that the caller's thread is in; a file does not.
        if not isinstance(model, str | os.PathLike):
            prepare_toolchain(resolved)
            begin("importing the model")
            imported = read()
        else:
            begin("loading the compiler")
            background.run(partial(prepare_toolchain, resolved), until)
            begin("importing the model")
            imported = background.run(read, until)
        choices = tuning_choices(root, resolved, libraries=kernels != "all")
        extract = partial(_extraction, imported, resolved, kernels, choices, shapes, begin)
        extraction, called = background.run(extract, until)
        begin("measuring")
        job = _Job(resolved, root, choices, budget, endpoint, resume, observer, started, background)
        return job.run(extraction, called, measure_kernels)
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


@dataclass(frozen=True)
class _Job:
    """One call's job: kernels first, then functions."""

    target: Target
    root: Path
    choices: RecordedChoices
    budget: Budget
    endpoint: Endpoint | None
    resume: bool
    observer: Callable[[Progress], None] | None
    started: float
    background: Background

    def run(
        self, extraction: Extraction, called: Sequence[CalledCase], measure_kernels: MeasureKernels
    ) -> TuningResult:
        """The result of both. Raises :class:`UsageError` where there is nothing to tune."""
        from tkc.schedules.database import target_folder
        from tkc.schedules.tuning.ledger import NothingToTuneError
        from tkc.schedules.tuning.state import JobState, StateFile, UnreadableStateError

        folder, prepared = target_folder(self.root, self.target), time.monotonic() - self.started
        try:
            with closing(StateFile(folder / "jobs", extraction.tasks)) as file:
                state = file.load() if self.resume else JobState()
                try:
                    kernels = self._kernels(extraction, called, measure_kernels, state.seconds)
                except BaseException:
                    state.seconds += time.monotonic() - self.started
                    file.save(state)
                    raise
                return TuningResult(folder, str(self.target), self._functions(extraction, file, kernels, prepared))
        except (NothingToTuneError, UnreadableStateError) as error:
            raise UsageError(str(error)) from error
        except ConnectionError as error:
            raise TuningStoppedError(str(error)) from error
        except OSError as error:
            raise TuningStoppedError(
                f"the job stopped: {error}; what was measured is kept in {self.root}, and resuming goes on from there; "
                f"make room, or {_OTHER_FOLDER}"
            ) from error

    def _kernels(
        self, extraction: Extraction, called: Sequence[CalledCase], measure: MeasureKernels, spent: float
    ) -> Progress:
        """What measuring the kernels came to, as a job's progress that says nothing of functions."""
        from tkc.schedules.database import target_folder, this_device
        from tkc.tuning.called_kernels import KernelJob

        progress = self._progress()
        if not called or measure == "none":
            return progress
        if self.endpoint is not None:
            reason = "the kernels that the model calls are not measured over RPC"
            return dataclasses.replace(progress, kernels_note=f"{reason}; tune there, without an RPC tracker")
        job: KernelJob | None = None

        def notify(activity: str) -> None:
            if self.observer is not None:
                gains = () if job is None else job.gains
                self.observer(dataclasses.replace(self._progress(activity), kernels=gains))

        folder = target_folder(self.root, self.target)
        again = measure == "again"
        device = this_device(self.target)
        job = KernelJob(called, self.choices, self.target, device, folder, self.background, notify, again=again)
        deadline = self.budget.deadline(self.started, spent)
        now = time.monotonic()
        share = _KERNELS_SHARE if extraction.tasks else 1.0
        until = None if deadline is None else now + share * max(deadline - now, 0.0)
        note = job.run(until, _AT_A_TIME * (os.cpu_count() or 1))
        return dataclasses.replace(self._progress(), kernels=job.gains, kernels_note=note, skipped=tuple(job.skipped))

    def _functions(self, extraction: Extraction, file: StateFile, kernels: Progress, prepared: float) -> Progress:
        """The functions' progress at the end, and that of ``kernels``; the import took ``prepared`` seconds."""
        from tkc.schedules.target import tvm_target
        from tkc.schedules.tuning.background import TimeIsUpError
        from tkc.schedules.tuning.job import TuningJob
        from tkc.schedules.tuning.ledger import NothingToTuneError
        from tkc.schedules.tuning.measurement import Limits, Measurer
        from tkc.schedules.tuning.stored_records import StoredRecords
        from tkc.schedules.tuning.tasks import PREBUILT

        def both(progress: Progress) -> Progress:
            # What was measured is no function that is left out.
            found = progress.skipped if not kernels.kernels else (x for x in progress.skipped if x.reason != PREBUILT)
            skipped = (*found, *kernels.skipped)
            return dataclasses.replace(
                progress, kernels=kernels.kernels, kernels_note=kernels.kernels_note, skipped=skipped
            )

        def observer(progress: Progress) -> None:
            if self.observer is not None:
                self.observer(both(progress))

        generated_for, limits = tvm_target(self.target), Limits()
        prepare = partial(prepare_toolchain, self.target)
        records = StoredRecords(self.root, self.target, None if self.endpoint is None else self.endpoint.key)
        runner = _runner(self.endpoint, self.target, limits)
        try:
            with Measurer(self.target, generated_for, runner, limits, prepare) as measurer:
                job = TuningJob(
                    *(extraction, self.target, generated_for, measurer, records, self.budget, file),
                    *(self.resume, observer, self.started, self.background, prepared),
                )
                return both(job.run())
        except (NothingToTuneError, TimeIsUpError) as error:
            if not kernels.kernels:
                raise
            reason = str(error) if extraction.tasks else "there are no other functions to tune"
            stopped = self.budget.over if isinstance(error, TimeIsUpError) else f"the kernels are measured; {reason}"
            last = dataclasses.replace(self._progress("done"), skipped=extraction.skipped, stopped=stopped)
            observer(last)
            done = both(last)
            return done

    def _progress(self, activity: str = "measuring kernels") -> Progress:
        from tkc.schedules.tuning.progress import Progress

        return Progress(activity, (), 0, time.monotonic() - self.started, ())


def _extraction(
    imported: ImportedModel,
    target: Target,
    kernels: Kernels,
    choices: RecordedChoices,
    shapes: Mapping[str, Sequence[int]] | None,
    observer: Observer | None = None,
) -> tuple[Extraction, list[CalledCase]]:
    """The functions to tune, and the kernels that are called, in the configurations that ``choices`` make."""
    from tkc.called_cases import called_cases
    from tkc.passes.graph.products import products
    from tkc.schedules.tuning.tasks import extract

    ranges = {name: (size.minimum, size.maximum) for name, size in imported.signature.sizes.items()}
    try:
        module = unscheduled(imported, target, kernels, choices, observer)
        extraction = extract(module, ranges, shapes)
        if not extraction.tasks and not extraction.skipped and products(module):
            raise ValueError(
                "the model has nothing to tune: the runtime computes its convolutions and linear layers itself, "
                'faster than tuned functions do; kernels="none" has functions generated for them'
            )
        return extraction, called_cases(module, target, ranges, shapes)
    except ValueError as error:
        raise UsageError(str(error)) from error


def unscheduled(
    imported: ImportedModel,
    target: Target,
    kernels: Kernels,
    choices: RecordedChoices,
    observer: Observer | None = None,
) -> IRModule:
    """The model as compilations have it before they schedule it."""
    from tkc.compilation import Compilation
    from tkc.pipeline import fusion_stages, substitution_stages
    from tkc.schedules.target import tvm_target
    from tkc.stages import StageRunner

    stages = [*substitution_stages(target, kernels, choices), *fusion_stages(libraries=calls_libraries(kernels))]
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
