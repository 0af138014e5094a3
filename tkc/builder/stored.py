"""What the cache folder holds: listed, removed by age and kind, and kept under a limit, beside those who use it.

An entry is removed under the lock that who makes it holds, and by one rename: others find it whole or not at all.
Compiled models have copies of what they run (hard links, where these can be), so that none needs its entry later.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from filelock import FileLock, Timeout

from tkc.builder.cache import CODE, GRAPHS, KERNELS, cache_folder, last_used, reading, writing_to
from tkc.errors import CacheError

_LOG = logging.getLogger(__name__)

Kind = Literal["kernels", "graphs", "code", "objects", "unfinished"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kernel libraries; compiled graphs of ``torch.compile``; machine code of functions that were generated for a GPU; host
code that libraries share; and what was left behind by a process that ended while it built."""

_EVICTED: tuple[Kind, ...] = ("unfinished", "kernels", "graphs", "code")
_KEY, _SHORT_KEY = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}\.o")
_SCRATCH = re.compile(r"(building|storing|removing)-\w+|\.[0-9a-f]{64}-\w+")
_SOURCES = frozenset(path.stem for path in Path(__file__).parent.glob("*.cc"))
_STUB = ("libcuda-stub", "libcuda.so.1")
_LIMIT = "limit.json"

LEAST_AGE: dict[Kind, float] = {"kernels": 0, "graphs": 0, "code": 0, "objects": 3600, "unfinished": 86400}
"""Seconds for which nothing may have used an entry that is removed: objects are linked after they were looked up, and
what is being built is not touched again until it is done."""


@dataclass(frozen=True)
class CacheEntry:
    """One thing in the cache, a folder or a file: its size in bytes, and when it was last used, in seconds."""

    kind: Kind
    name: str
    path: Path
    bytes: int
    used: float


def cache_entries(folder: Path | None = None) -> list[CacheEntry]:
    """All that the cache holds, by kind and name. Raises :class:`CacheError` if the folder cannot be read."""
    folder = folder or cache_folder()
    with reading(folder):
        return sorted(_found(folder), key=lambda entry: (KINDS.index(entry.kind), entry.name, str(entry.path)))


def _found(folder: Path) -> Iterator[CacheEntry]:
    for kind in (KERNELS, GRAPHS, CODE):
        for path in _children(folder / kind):
            if _SCRATCH.fullmatch(path.name):
                yield from _entry("unfinished", f"{kind}/{path.name}", path)
            elif len(path.name) == 2:
                for inner in _children(path):
                    if _KEY.fullmatch(inner.name) and inner.name.startswith(path.name):
                        yield from _entry(kind, _name(kind, inner), inner)
                    elif _SCRATCH.fullmatch(inner.name):
                        yield from _entry("unfinished", f"{kind}/{inner.name}", inner)
    for source in _SOURCES:
        for path in _children(folder / source):
            if _SHORT_KEY.fullmatch(path.name):
                yield from _entry("objects", f"{source}/{path.name}", path)
            elif _SCRATCH.fullmatch(path.name):
                yield from _entry("unfinished", f"{source}/{path.name}", path)
    yield from _entry("objects", "/".join(_STUB), folder.joinpath(*_STUB))


def _children(folder: Path) -> list[Path]:
    """What is in a folder; nothing for one that is not there, or that a link leads to."""
    try:
        return [] if folder.is_symlink() else list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _entry(kind: Kind, name: str, path: Path) -> Iterator[CacheEntry]:
    """The entry at ``path``; none for a link, and where there is nothing, or another thing than entries are."""
    try:
        own = path.lstat()
        is_file = kind == "objects"
        if stat.S_ISREG(own.st_mode) if is_file else stat.S_ISDIR(own.st_mode):
            yield CacheEntry(kind, name, path, own.st_size if is_file else _size(path), last_used(own))
    except FileNotFoundError:  # somebody removed it meanwhile
        return


def _size(folder: Path) -> int:
    total = 0
    for inside, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(inside, file)).st_size
    return total


def _name(kind: str, path: Path) -> str:
    """What a library or a graph is called."""
    library = next(path.glob("*.so"), None) if kind == KERNELS else None
    return path.name[:12] if library is None else f"{library.stem} {path.name[:12]}"


def removed(entry: CacheEntry, folder: Path | None = None) -> bool:
    """Remove an entry; whether that was done: not if somebody makes or has used it since it was listed."""
    folder = folder or cache_folder()
    if time.time() - entry.used < LEAST_AGE[entry.kind]:
        return False
    room = folder / entry.path.relative_to(folder).parts[0]
    with writing_to(room):
        try:
            with FileLock(_lock(room, entry), timeout=0) if entry.kind != "unfinished" else contextlib.nullcontext():
                if last_used(entry.path.lstat()) != entry.used:
                    return False
                trash = tempfile.mkdtemp(prefix="removing-", dir=room)
                try:
                    entry.path.rename(Path(trash) / entry.path.name)
                finally:
                    # What cannot be taken away at once is what a later call finds unfinished.
                    shutil.rmtree(trash, ignore_errors=True)
        except (Timeout, FileNotFoundError):
            return False
    return True


def _lock(room: Path, entry: CacheEntry) -> Path:
    """The lock that who makes the entry holds."""
    return entry.path.with_suffix(".lock") if entry.kind == "objects" else room / f"{entry.path.name[:32]}.lock"


def read_limit(folder: Path | None = None) -> int | None:
    """The bytes that the cache may have, if that is limited. Raises :class:`CacheError` for a limit that is none."""
    path = (folder or cache_folder()) / _LIMIT
    with reading(path.parent):
        try:
            limit = json.loads(path.read_text())["bytes"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            limit = None
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise CacheError(f"{path} holds no limit; `tkc cache limit 10GB` (or `none`) writes it anew")
    return limit


def write_limit(limit: int | None, folder: Path | None = None) -> None:
    """Limit the cache to as many bytes from now on, or no longer; :class:`CacheError` if that cannot be written."""
    path = (folder or cache_folder()) / _LIMIT
    with writing_to(path.parent):
        if limit is None:
            path.unlink(missing_ok=True)
            return
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".limit-", delete=False) as file:
            json.dump({"bytes": limit}, file)
        Path(file.name).replace(path)


def keep_limit(kept: Collection[Path] = (), folder: Path | None = None) -> list[CacheEntry]:
    """Remove what was used longest ago until the cache is as small as it may be, but none of ``kept``; what that was.

    Is called when something was written. A folder that cannot be used is no error then: a warning says so.
    """
    folder = folder or cache_folder()
    gone: list[CacheEntry] = []
    try:
        limit = read_limit(folder)
        if limit is None:
            return gone
        with writing_to(folder), FileLock(folder / "limit.lock"):
            entries = cache_entries(folder)
            total = sum(entry.bytes for entry in entries)
            evicted = [entry for entry in entries if entry.kind in _EVICTED and entry.path not in kept]
            for entry in sorted(evicted, key=lambda entry: (_EVICTED.index(entry.kind) > 0, entry.used)):
                if total <= limit:
                    break
                if removed(entry, folder):
                    gone.append(entry)
                    total -= entry.bytes
    except CacheError as error:
        _LOG.warning("the cache is not kept under its limit: %s", error)
    return gone
