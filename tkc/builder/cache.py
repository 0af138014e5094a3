"""The store of built kernel libraries: found by content, written atomically, checked when read, locked while built."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import platformdirs
from filelock import FileLock

from tkc.builder import toolchain
from tkc.builder.kernel_sources import sources_digest
from tkc.errors import CacheError, KernelBuildError
from tkc.kernels import KernelRequest, Target
from tkc.kernels.kernel_library import KernelLibrary, file_sha256

_LOG = logging.getLogger(__name__)
_SETTING = "TKC_CACHE_DIR"
_RECORD = "record.json"
_SMALL_LIBRARY = 1 << 20  # bytes

KERNELS: Literal["kernels"] = "kernels"
GRAPHS: Literal["graphs"] = "graphs"
CODE: Literal["code"] = "code"
"""The folders of kernel libraries, of compiled graphs and of generated functions' machine code in the cache."""


def cache_folder() -> Path:
    """Where TKC keeps what it can make again: ``$TKC_CACHE_DIR``, else the user's cache folder."""
    return Path(os.environ.get(_SETTING) or platformdirs.user_cache_dir("tkc"))


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """What is done in it writes to ``folder`` of the cache, which is made if need be, by itself or through a compiler.

    Raises :class:`CacheError` where something fails because that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, NotImplementedError) as error:  # the latter is FileLock's, where files cannot be locked
        if isinstance(error, OSError) and not _concerns(error, folder):
            raise
        raise _unusable(folder, _cause(error)) from error
    except (RuntimeError, subprocess.CalledProcessError, KernelBuildError) as error:
        if (reason := _disk_problem(folder, error)) is None:
            raise
        raise _unusable(folder, reason) from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """What is done in it reads ``folder`` of the cache; :class:`CacheError` where that cannot be read."""
    try:
        if folder.exists() and not folder.is_dir():
            raise _unusable(folder, os.strerror(errno.ENOTDIR))
        yield
    except OSError as error:
        raise _unusable(folder, _cause(error)) from error


def touch(path: Path) -> None:
    """Note that an entry of the cache was used now; what was used longest ago is the first to go."""
    with suppress(OSError):  # of a cache that is only read nothing goes
        found = path.stat()
        # Of a file, when it was read; of a folder, which whoever lists it reads, when it was changed.
        os.utime(path, None if path.is_dir() else (time.time(), found.st_mtime))


def last_used(found: os.stat_result) -> float:
    """When :func:`touch` was called for an entry, or when it was made, in seconds."""
    return found.st_mtime if stat.S_ISDIR(found.st_mode) else max(found.st_atime, found.st_mtime)


def _unusable(folder: Path, reason: str) -> CacheError:
    return CacheError(
        f"the cache folder {folder} cannot be used: {reason}; make room or give access there, or name another folder "
        f"in the environment variable {_SETTING}"
    )


def _cause(error: OSError | NotImplementedError) -> str:
    if isinstance(error, FileExistsError):  # what mkdir says of a file in a folder's place
        return os.strerror(errno.ENOTDIR)
    return getattr(error, "strerror", None) or str(error)


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether ``error`` is about ``folder``, what it is in or what is in it; not about a compiler, say."""
    places = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
    return not places or any(place.is_relative_to(folder) or folder.is_relative_to(place) for place in places)


def _disk_problem(folder: Path, error: Exception) -> str | None:
    """Why a compiler that failed with ``error`` may not have been able to write to ``folder``; ``None`` if it was."""
    told = f"{error} {getattr(error, 'stderr', '')}"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        if os.strerror(number) in told:
            return os.strerror(number)
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * _SMALL_LIBRARY)
    except OSError as problem:
        return _cause(problem)
    return None


class KernelCache:
    """Kernel libraries under one folder, one entry a key."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / KERNELS

    def key(self, request: KernelRequest) -> str:
        """The hash of all that shapes the library: the request, the kernel's and the builder's sources, the tools."""
        content = json.dumps([request.to_json(), sources_digest(request.spec), _tools(request.target)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def find(self, request: KernelRequest) -> KernelLibrary | None:
        """The stored library, or ``None`` if there is none or the stored one is damaged (it is then dropped)."""
        key = self.key(request)
        entry = self._entry(key)
        path = entry / f"{request.symbol}.so"
        if self.folder.exists() and not self.folder.is_dir():
            raise _unusable(self.folder, os.strerror(errno.ENOTDIR))
        try:
            expected = json.loads((entry / _RECORD).read_text())["sha256"]
            if file_sha256(path) == expected:
                touch(entry)
                return KernelLibrary(request.to_json(), path, key, expected)
            reason = "its library has other content than was stored"
        except FileNotFoundError:
            if not entry.exists():
                return None
            reason = "a file of it is missing"
        except (ValueError, KeyError, TypeError):
            reason = "its record cannot be read"
        except OSError as error:
            raise _unusable(self.folder, _cause(error)) from error
        _LOG.warning(
            "kernel cache entry %s for %s is damaged (%s) and is built again", key[:12], request.kernel, reason
        )
        shutil.rmtree(entry, ignore_errors=True)
        return None

    @contextmanager
    def building(self, request: KernelRequest) -> Iterator[Path]:
        """Hold the key's lock and give a scratch folder to build in; another process with the same key waits here."""
        with writing_to(self.folder), FileLock(self.folder / f"{self.key(request)[:32]}.lock"):
            scratch = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder))
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def store(self, request: KernelRequest, library: Path) -> KernelLibrary:
        """Keep a library built inside :meth:`building`; the entry appears whole or not at all."""
        key = self.key(request)
        digest = file_sha256(library)
        target = self._entry(key)
        with writing_to(self.folder):
            entry = Path(tempfile.mkdtemp(prefix="storing-", dir=self.folder))
            try:
                shutil.copyfile(library, entry / library.name)
                (entry / _RECORD).write_text(json.dumps({"sha256": digest, "request": request.to_json()}, indent=1))
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                entry.rename(target)
            except BaseException:
                shutil.rmtree(entry, ignore_errors=True)
                raise
        return KernelLibrary(request.to_json(), target / library.name, key, digest)

    def libraries(self) -> list[Path]:
        """Every library that is stored; not those that others build meanwhile, whose folders come and go."""
        return list(self.folder.glob("??/*/*.so"))

    def entry(self, library: KernelLibrary) -> Path:
        """Where a library is stored."""
        return self._entry(library.key)

    def _entry(self, key: str) -> Path:
        return self.folder / key[:2] / key


def owned(library: KernelLibrary, into: Path) -> KernelLibrary | None:
    """``library`` as a file of the folder ``into``, which stays when its entry is removed; ``None`` if it just was.

    It is the same file under one more name, or a copy.
    """
    into.mkdir(parents=True, exist_ok=True)
    own = into / library.path.name
    if not own.exists():
        try:
            os.link(library.path, own)
        except FileNotFoundError:
            return None
        except OSError:  # another disk
            try:
                shutil.copyfile(library.path, own)
            except FileNotFoundError:
                return None
    return replace(library, path=own)


@cache
def _tools(target: Target) -> tuple[str, ...]:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tilelang", "apache-tvm-ffi")]
    cxx = toolchain.cxx()
    versions.append(toolchain.version(cxx))
    if target.is_cuda:
        return (*versions, toolchain.version(toolchain.nvcc()))
    # CPU kernels use this machine's instructions; the macros they define identify those exactly.
    macros = subprocess.run(
        [cxx, "-march=native", "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, check=True
    )
    return (*versions, hashlib.sha256(macros.stdout).hexdigest())
