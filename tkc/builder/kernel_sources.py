"""Which source files shape a kernel: what its definition and its spec import, and what compiles it.

Found in the syntax of the files, so that nothing is imported: definitions need TileLang, which one process alone loads.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import tkc.kernels
from tkc.kernels import KernelSpec

# What of the builder shapes no library. Whatever is new does, until it is named here.
_SHAPELESS = {
    "__init__.py",
    "cache.py",
    "client.py",
    "cuda_driver_stub.py",
    "device_memory.cc",
    "fork_server.py",
    "generated_cuda.py",
    "kernel_sources.py",
    "machine_code.py",
    "parallel.cc",
    "runtime_objects.py",
    "stored.py",
    "toolchain.py",
    "worker.py",
}

_TRIES = 5

_PACKAGE = "tkc.kernels"
# What says of kernels which there are, how they are asked for, and what they are compared with: it shapes none.
_NOT_FOLLOWED = {"registry", "requests", "records", "cases", "all_cases", "library", "reference"}


def sources_digest(spec: KernelSpec[Any, Any]) -> str:
    """The hash of all sources that shape the kernels of ``spec``: those of :func:`kernel_sources` and the builder."""
    return _digest(spec.definition_module, type(spec).__module__)


def kernel_sources(spec: KernelSpec[Any, Any]) -> frozenset[str]:
    """The modules that the definition and the spec of a kernel import, within ``tkc.kernels``, and these two."""
    return _closure((spec.definition_module, type(spec).__module__))


@cache
def _digest(*roots: str) -> str:
    digest = hashlib.sha256()
    builder = [p for p in Path(__file__).parent.iterdir() if p.is_file() and p.name not in _SHAPELESS]
    needed = {name for path in builder if path.suffix == ".py" for name in _imported(path)}
    kernels = {name: _file(name) for name in _closure((*roots, *needed))}
    named = kernels | {path.name: path for path in builder}
    for name, path in sorted(named.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _closure(roots: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imported(_file(name))
    return frozenset(found)


def _file(module: str) -> Path:
    (folder,) = map(Path, tkc.kernels.__path__)
    return folder.joinpath(*module.removeprefix(f"{_PACKAGE}.").split(".")).with_suffix(".py")


@cache
def _imported(path: Path) -> tuple[str, ...]:
    """The modules of ``tkc.kernels`` that a file imports anywhere, but for those that shape no kernel."""
    names = _modules(_parsed(path))
    return tuple(dict.fromkeys(name for name in names if name.rpartition(".")[2] not in _NOT_FOLLOWED))


def _parsed(path: Path) -> ast.Module:
    """The syntax of a file. CPython 3.11 counts how deep all threads are that parse, and fails what has been parsed
    where another thread began or ended meanwhile."""
    for _ in range(_TRIES - 1):
        with suppress(SystemError):
            return ast.parse(path.read_text())
    return ast.parse(path.read_text())


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(f"{_PACKAGE}."))
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.startswith(f"{_PACKAGE}.") and _file(node.module).exists():
                yield node.module
            elif node.module.startswith(_PACKAGE):
                for alias in node.names:
                    yield from _named(f"{node.module}.{alias.name}", alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"relative imports are not followed (line {node.lineno}); write the module's full name")


def _named(module: str, name: str) -> Iterator[str]:
    """The module that a package's name means: one of its files, or where the package itself takes the name from."""
    if _file(module).exists():
        yield module
        return
    (folder,) = map(Path, tkc.kernels.__path__)
    for node in _parsed(folder / "__init__.py").body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            assert node.module is not None
            yield node.module
            return
    raise ValueError(f"{module} is no module of {_PACKAGE}, nor does that package import {name}")
