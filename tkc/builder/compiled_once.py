"""What all libraries share of their host code: compiled by whichever process first needs it, then linked."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tkc.builder import toolchain
from tkc.builder.cache import cache_folder, touch, writing_to
from tkc.builder.host_code import compile_host_code


def compiled_once(
    source: Path, includes: Sequence[Path] = (), tools: Sequence[str] = (), options: Sequence[str] = ("-O2",)
) -> Path:
    """``source``, with the headers beside it whose names begin with its own, as an object file in the cache.

    ``tools`` are compilers besides the C++ compiler whose versions matter to it, ``options`` the compiler's. Raises
    ``RuntimeError`` with the compiler's words if it fails, :class:`CacheError` if the cache cannot be written.
    """
    made_from = [each.read_text() for each in (source, *sorted(source.parent.glob(f"{source.stem}*.h")))]
    made_from += [toolchain.version(tool) for tool in (toolchain.cxx(), *tools)]
    made_from += [importlib.metadata.version("apache-tvm-ffi"), *options]
    folder = cache_folder() / source.stem
    stored = folder / f"{hashlib.sha256(repr(made_from).encode()).hexdigest()[:32]}.o"
    if not stored.exists():
        with writing_to(folder), FileLock(stored.with_suffix(".lock")):
            if not stored.exists():
                _compile(source, includes, options, stored)
    touch(stored)
    return stored


def _compile(source: Path, includes: Sequence[Path], options: Sequence[str], stored: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=stored.parent) as scratch:
        built = Path(scratch) / stored.name
        compile_host_code([*options, "-c", str(source)], built, includes)
        built.rename(stored)
