"""The store of compiled graphs: what a second process finds, and does not compile again.

An entry is an artifact under the hash of all that shapes it. Weights are inputs of a graph, so it holds none.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import fx
from torch.export import ExportedProgram

import tkc
from tkc.builder import cache_folder
from tkc.builder.cache import GRAPHS, touch, writing_to
from tkc.builder.stored import keep_limit
from tkc.databases import database_roots
from tkc.errors import ArtifactError, CacheError
from tkc.frontend.registered import registered
from tkc.kernels import Target
from tkc.runtime.cpu_features import cpu_features
from tkc.runtime.executable import Executable
from tkc.runtime.loading import load

_LOG = logging.getLogger(__name__)

_SHAPING = ("kernels", "fallback", "batch_invariant", "checks")
"""Options that shape what is compiled."""
_WATCHED = ("dump", "observer", "kernel_progress", "verify")
"""Options that show or check a compilation, which is then done."""
_VERSIONS = ("torch", "apache-tvm", "apache-tvm-ffi", "tilelang")
_SOURCES = {".py", ".cc", ".h", ".cu", ".json"}


def stored(
    program: ExportedProgram, target: Target, options: Mapping[str, Any], compile_program: Callable[[], Executable]
) -> Executable:
    """The executable of ``program``: the stored one, or what ``compile_program`` makes, which is then stored.

    Another process that compiles the same graph is waited for. An entry that is damaged is dropped with a warning. A
    folder that cannot be written to is no error: a warning says so.
    """
    if any(options.get(name) is not None for name in _WATCHED):
        return compile_program()
    folder = cache_folder() / GRAPHS
    key = graph_key(program, target, options)
    entry = folder / key[:2] / key
    if (found := _read(entry, options)) is not None:
        return found
    try:
        with writing_to(entry.parent), FileLock(folder / f"{key[:32]}.lock"):
            if (found := _read(entry, options)) is not None:
                return found
            made = compile_program()
            _write(made, entry)
        keep_limit()
        return made
    except CacheError as error:
        _LOG.warning("a compiled graph is not stored: %s", error)
        return compile_program()


def _read(entry: Path, options: Mapping[str, Any]) -> Executable | None:
    if not entry.exists():
        return None
    try:
        touch(entry)
        return load(entry, max_concurrency=options.get("max_concurrency"))
    except ArtifactError as error:
        if not entry.exists():  # another process removed it meanwhile
            return None
        _LOG.warning("the stored graph %s is damaged and is compiled again: %s", entry.name[:12], error)
        shutil.rmtree(entry, ignore_errors=True)
        return None


def _write(executable: Executable, entry: Path) -> None:
    try:
        executable.save(entry)
    except ArtifactError as error:
        _LOG.warning("a compiled graph is not stored: %s", error)


def graph_key(program: ExportedProgram, target: Target, options: Mapping[str, Any]) -> str:
    """The hash of a graph, its constants, the bounds of its sizes, the target, the options and the tools.

    Two graphs have one key if they differ in no operator, argument, shape, stride, dtype, device or updated input.
    """
    database = options.get("database")
    content = [
        list(_described(program.graph_module)),
        [[spec.kind.name, spec.arg.name, spec.target] for spec in program.graph_signature.output_specs],
        {name: _hash_of_tensor(value) for name, value in program.constants.items() if isinstance(value, torch.Tensor)},
        {str(symbol): str(bounds) for symbol, bounds in program.range_constraints.items()},
        str(target),
        [] if target.is_cuda else sorted(cpu_features()),
        {name: options.get(name) for name in _SHAPING},
        [_files(root) for root in database_roots(database)],
        # TKC itself may be on the path without being installed.
        {"tkc": tkc.__version__, **{name: importlib.metadata.version(name) for name in _VERSIONS}},
        _sources(),
        registered(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _described(module: fx.GraphModule) -> Iterator[list[str]]:
    """Each node as text, also those of the graphs that it calls."""
    for node in module.graph.nodes:
        yield [node.op, node.name, str(node.target), repr(node.args), repr(node.kwargs), _value(node.meta.get("val"))]
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            held = {**dict(child.named_parameters(recurse=False)), **dict(child.named_buffers(recurse=False))}
            yield [name, *(f"{held_name} {_hash_of_tensor(value)}" for held_name, value in sorted(held.items()))]
            yield from _described(child)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, torch.Tensor):
        strides = tuple(value.stride()) if value.layout == torch.strided else None
        return f"{value.dtype} {tuple(value.shape)} {strides} {value.device} {value.is_conj()}"
    return f"{type(value).__name__} {value}"


def _hash_of_tensor(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    content = plain.flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + content).hexdigest()


@functools.cache
def _sources() -> str:
    """The hash of TKC's own files, of which two of one version may differ while it is developed."""
    digest = hashlib.sha256()
    for package in (tkc, *map(importlib.import_module, ("tkc.passes", "tkc.kernels", "tkc.schedules"))):
        (root,) = map(Path, package.__path__)
        for path in sorted(root.rglob("*")):
            if path.suffix in _SOURCES:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files(root: Path) -> list[list[Any]]:
    """What tells whether a database has changed: its records, by name, size and time."""
    if not root.is_dir():
        return []
    found = ((path, path.stat()) for path in sorted(root.rglob("*.json")))
    return [[os.fspath(path), stat.st_size, stat.st_mtime_ns] for path, stat in found]
