"""The store of what nvcc makes of generated CUDA: found by content, written atomically, checked when read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tkc.builder import toolchain
from tkc.builder.cache import CODE, cache_folder, touch, writing_to
from tkc.builder.stored import keep_limit
from tkc.errors import CacheError

_LOG = logging.getLogger(__name__)
_BINARY, _DIGEST = "kernels.fatbin", "sha256"
# What nvcc reads of its environment besides its arguments.
_SETTINGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


def code_key(source: str, arguments: Sequence[str]) -> str:
    """The hash of all that shapes the machine code of CUDA ``source``: nvcc's arguments, its settings, the tools."""
    tools = [toolchain.version(tool) for tool in (toolchain.nvcc(), toolchain.cxx())]
    settings = [os.environ.get(name) for name in _SETTINGS]
    return hashlib.sha256(json.dumps([source, list(arguments), settings, tools]).encode()).hexdigest()


def stored_code(key: str) -> bytes | None:
    """The machine code that is stored, or ``None`` if there is none that is whole and can be read."""
    entry = _entry(key)
    try:
        binary = (entry / _BINARY).read_bytes()
        whole = hashlib.sha256(binary).hexdigest() == (entry / _DIGEST).read_text()
    except (OSError, ValueError):
        return None
    if not whole:
        _LOG.warning("cache entry %s of machine code is damaged, and is made again", key[:12])
        return None
    touch(entry)
    return binary


def store_code(key: str, binary: bytes) -> None:
    """Keep ``binary``; the entry appears whole or not at all. A folder that cannot be written is only warned of."""
    folder, entry = cache_folder() / CODE, _entry(key)
    try:
        with writing_to(folder), FileLock(folder / f"{key[:32]}.lock"):
            scratch = Path(tempfile.mkdtemp(prefix="storing-", dir=folder))
            try:
                (scratch / _BINARY).write_bytes(binary)
                (scratch / _DIGEST).write_text(hashlib.sha256(binary).hexdigest())
                shutil.rmtree(entry, ignore_errors=True)
                entry.parent.mkdir(exist_ok=True)
                scratch.rename(entry)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except CacheError as error:
        _LOG.warning("machine code is not kept: %s", error)
        return
    keep_limit()


def _entry(key: str) -> Path:
    return cache_folder() / CODE / key[:2] / key
