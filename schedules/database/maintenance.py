"""What keeps databases in order: merging, pruning, verifying, and counting what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.database import Workload

from tkc.kernels.target import Target
from tkc.schedules.blocks import nodes
from tkc.schedules.database.provenance import Provenance
from tkc.schedules.database.store import (
    WORKLOADS,
    Problem,
    RecordStore,
    StoredRecord,
    record_line,
    tuning_record,
)
from tkc.schedules.database.workloads import exact_key
from tkc.schedules.database_folders import target_folder, target_of


@dataclass(frozen=True)
class WorkloadSummary:
    """One function's records: how many, of how many candidates that failed, at how many sets of arguments, the best."""

    name: str
    key: str
    records: int
    failed: int
    best_seconds: float | None
    arguments: int
    devices: tuple[str, ...]


def stores(root: Path) -> dict[Target, RecordStore]:
    """The targets that the database ``root`` has records of."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    named = ((target_of(folder), folder) for folder in folders if (folder / WORKLOADS).is_file())
    return {target: RecordStore(folder) for target, folder in named if target is not None}


def foreign_folders(root: Path) -> list[Path]:
    """Folders with records whose name is no target's, which nothing will look into."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [folder for folder in folders if (folder / WORKLOADS).is_file() and target_of(folder) is None]


def summaries(store: RecordStore) -> list[WorkloadSummary]:
    """Each workload that has records, the slowest first, since there is most to gain."""
    workloads, known = store.workloads(), store.provenance()
    by_place: dict[int, list[StoredRecord]] = {}
    for record in store.stored():
        by_place.setdefault(record.workload, []).append(record)
    found = [
        _summary(workload, by_place[place], known)
        for place, workload in enumerate(workloads)
        if workload is not None and place in by_place
    ]
    return sorted(found, key=lambda summary: -(summary.best_seconds or 0.0))


def merge(sources: Iterable[RecordStore], into: RecordStore, least_gain: float = 0.0) -> int:
    """Add the records of ``sources`` that ``into`` lacks; how many these were.

    With a ``least_gain``, only those of functions that some schedule makes faster than the default rules by that part.

    The order of the sources, and merging one twice, make no difference to what is in it afterwards. Two records are
    one if their workloads, schedules, times, targets and arguments are.
    """
    added = 0
    with into.changing():
        present = {(record.workload, _content(record)) for record in into.stored()}
        for source in sources:
            known = source.provenance()
            places: dict[int, int] = {}
            gaining = _gaining(source, least_gain) if least_gain else None
            for workload, record in _readable(source):
                if gaining is not None and record.workload not in gaining:
                    continue
                if record.workload not in places:
                    places[record.workload] = into.workload_index(workload.mod)
                place = places[record.workload]
                if (place, _content(record)) in present:
                    continue
                present.add((place, _content(record)))
                into.append(record_line(place, record.content), known.get(record.identity))
                added += 1
    return added


def prune(store: RecordStore, keep: int, failures: bool) -> int:
    """Keep the ``keep`` fastest records of each workload at each set of arguments on each device; how many went.

    What the default rules' schedule took stays too: by it compilations know what a variant for one size gains. Records
    of failures stay unless ``failures``: they are what stops a job from trying the same again. Lines that cannot be
    read go, too.
    """
    with store.changing():
        known = store.provenance()
        groups: dict[tuple[int, str, str, bool], list[StoredRecord]] = {}
        kept: list[StoredRecord] = []
        total = 0
        for record in store.stored():
            total += 1
            if not record.run_seconds:
                kept += [] if failures else [record]
                continue
            device = known[record.identity].device if record.identity in known else ""
            key = (record.workload, record.arguments, device, record.by_rules)
            groups.setdefault(key, []).append(record)
        for group in groups.values():
            kept += sorted(group, key=lambda record: median(record.run_seconds))[:keep]
        order = {record.line: position for position, record in enumerate(store.stored())}
        store.replace_records(sorted(kept, key=lambda record: order[record.line]))
    return total - len(kept)


def verify(store: RecordStore, target: Target) -> list[Problem]:
    """Every line that cannot be used, and every record whose schedule no longer applies to its function."""
    from tkc.schedules.target import tvm_target

    problems = store.problems()
    generated_for = tvm_target(target)
    for number, (workload, record) in enumerate(_readable(store), 1):
        if str(record.content[2].get("kind")) != str(generated_for.kind.name):
            problems.append(Problem(store.folder.name, number, f"it was measured for {record.content[2].get('kind')}"))
        elif record.run_seconds and not _applies(record, workload):
            problems.append(Problem(store.folder.name, number, "its schedule no longer applies to its function"))
    return problems


def export(root: Path, into: Path, keep: int, least_gain: float = 0.0) -> int:
    """A database at ``into`` with the ``keep`` fastest records of what :func:`merge` takes from ``root``; how many
    records that are.
    """
    count = 0
    for target, store in stores(root).items():
        copy = RecordStore(target_folder(into, target))
        merge([store], copy, least_gain)
        prune(copy, keep, failures=True)
        count += sum(1 for _ in copy.stored())
    return count


def _gaining(store: RecordStore, least: float) -> set[int]:
    """The workloads of which, at some arguments, the best schedule gains at least that over the default rules'."""
    best: dict[tuple[int, str], dict[bool, float]] = {}
    for record in store.stored():
        if record.run_seconds:
            times = best.setdefault((record.workload, record.arguments), {})
            seconds = median(record.run_seconds)
            times[record.by_rules] = min(seconds, times.get(record.by_rules, seconds))
    return {
        place for (place, _), times in best.items() if len(times) == 2 and times[True] >= times[False] * (1 + least)
    }


def _readable(store: RecordStore) -> Iterator[tuple[Workload, StoredRecord]]:
    workloads = store.workloads()
    for record in store.stored():
        workload = workloads[record.workload] if record.workload < len(workloads) else None
        if workload is not None:
            yield workload, record


def _content(record: StoredRecord) -> str:
    return record_line(0, record.content)


def _applies(record: StoredRecord, workload: Workload) -> bool:
    parsed = tuning_record(record, workload)
    if parsed is None:
        return False
    try:
        parsed.trace.apply_to_schedule(s_tir.Schedule(workload.mod), remove_postproc=False)
    except Exception:  # TVM raises whatever the first instruction that does not fit stumbles over
        return False
    return True


def _summary(workload: Workload, records: list[StoredRecord], known: dict[str, Provenance]) -> WorkloadSummary:
    measured = [record for record in records if record.run_seconds]
    devices = {known[record.identity].device for record in measured if record.identity in known}
    blocks = [block.name_hint for block in nodes(workload.mod["main"].body) if isinstance(block, tirx.SBlock)]
    return WorkloadSummary(
        name=" ".join(reversed([name for name in blocks if name != "root"])) or "main",
        key=exact_key(workload.mod),
        records=len(records),
        failed=len(records) - len(measured),
        best_seconds=min((median(record.run_seconds) for record in measured), default=None),
        arguments=len({record.arguments for record in records}),
        devices=tuple(sorted(devices)),
    )
