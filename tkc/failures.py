"""What becomes of an exception that TKC did not foresee: an :class:`InternalError` that says where, with a folder.

The folder holds what a bug report needs. There are no weights in it, and no constants of the model.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import logging
import mmap
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.child import ChildDiedError, RaisedInChildError, can_fork, ended, in_child
from tkc.errors import Error, InternalError, UsageError

if TYPE_CHECKING:
    from tvm import IRModule

    from tkc.diagnosis.segments import Segment
    from tkc.frontend.model import ImportedModel

_LOG = logging.getLogger(__name__)

REPORT, TRACEBACK, MODULE, SMALLEST, OUTPUT = "report.json", "traceback.txt", "module.py", "smallest.py", "output.txt"
FILES = (REPORT, TRACEBACK, MODULE, SMALLEST, OUTPUT)
"""The files of a failure's folder, not all of which are there."""

_PACKAGES = ("tkc", "apache-tvm", "apache-tvm-ffi", "tilelang", "torch", "onnx", "numpy", "transformers")
_MOST_NODES = 4
_LONGEST_CAUSE = 500
_SEARCH_SECONDS = 60.0

_OF_THE_MACHINE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "it cannot be written",
    errno.EACCES: "it cannot be accessed",
}


@dataclass
class Circumstances:
    """What is compiled and how; ``about`` goes into the folder as it is.

    ``replay`` compiles another module in the same way up to a stage, and raises what that stage raises. ``build``
    does the work of a stage that takes functions one by one, by its name, for a module of one of them.
    """

    about: dict[str, Any] = field(default_factory=dict)
    imported: ImportedModel | None = None
    replay: Callable[[IRModule, str], None] | None = None
    build: Mapping[str, Callable[[IRModule], object]] = field(default_factory=dict)


@contextmanager
def explained(
    stage: str, circumstances: Circumstances | None = None, module: Any = None, function: str | None = None
) -> Iterator[None]:
    """Raise whatever the block raises as a :class:`tkc.Error`, which names the ``stage`` and where it went wrong.

    ``module`` is what the stage begins with, ``function`` the generated function that it is in. Errors of TKC's own,
    interruption and lack of memory pass as they are. Without ``circumstances`` no folder is written and no node looked
    for.
    """
    try:
        yield
    except InternalError as error:
        if error.folder is None:
            error.stage = error.stage or stage
            error.kind = error.kind or type(error.__cause__ or error).__name__
            _complete(error, error, circumstances, module)
        raise
    except (Error, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            where = f" {error.filename}" if error.filename else f" ({tempfile.gettempdir()}, or the cache)"
            raise UsageError(f"{stage}: a file{where} cannot be written: {_OF_THE_MACHINE[error.errno]}") from error
        if type(error).__name__ == "OutOfMemoryError":  # of PyTorch, which is not imported for its name
            raise
        explanation = InternalError(f"the stage '{stage}' failed: {_cause(error)}")
        explanation.stage, explanation.kind, explanation.function = stage, _kind(error), function
        _complete(explanation, error, circumstances, module)
        raise explanation from error


def _kind(error: BaseException) -> str:
    if isinstance(error, ChildDiedError):
        return ended(error.status)
    return error.kind if isinstance(error, RaisedInChildError) else type(error).__name__


def _cause(error: BaseException) -> str:
    if isinstance(error, ChildDiedError):
        return str(error)
    message = error.message if isinstance(error, RaisedInChildError) else str(error)
    # TVM's messages end in what is wrong, behind a trace of its own.
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if not line.startswith(("File ", "at ", "["))), "")
    return f"{_kind(error)}: {told}"[:_LONGEST_CAUSE].rstrip(": ")


def _complete(
    explanation: InternalError, error: BaseException, circumstances: Circumstances | None, module: Any
) -> None:
    """Look for the node, write the folder, and say both in the message of ``explanation``."""
    if circumstances is None:
        return
    lines = [str(explanation)]
    smallest: Segment | None = None
    try:
        explanation.function = explanation.function or _function(explanation, circumstances, module)
        if explanation.function:
            lines.append(f"  in the function {explanation.function}")
        smallest = _smallest(explanation, circumstances)
        if smallest is not None and circumstances.imported is not None:
            explanation.nodes = _nodes(smallest, circumstances.imported.sources)
            lines += _told(explanation.nodes)
    except Exception:  # what fails may fail in other ways too, and the first failure is the one to report
        _LOG.debug("looking for the node failed", exc_info=True)
    try:
        explanation.folder = _written(explanation, error, circumstances, module, smallest)
        lines.append(
            f"  for a bug report: {explanation.folder} (no weights are in it; "
            f"pack it with: tkc bug-report {explanation.folder} -o report.zip)"
        )
    except OSError as full:
        lines.append(f"  no folder for a bug report could be written: {full}")
    explanation.args = ("\n".join(lines),)


def _told(nodes: tuple[str, ...]) -> list[str]:
    if len(nodes) > _MOST_NODES:
        return [f"  in the {len(nodes)} nodes from {nodes[0]}", f"  to {nodes[-1]}"]
    return [f"  at {node}" for node in nodes]


def _smallest(explanation: InternalError, circumstances: Circumstances) -> Segment | None:
    """The smallest part of the model that fails in the same way, looked for in children of this process."""
    from tkc.diagnosis.segments import narrowed, whole

    imported, replay = circumstances.imported, circumstances.replay
    if imported is None or replay is None or not can_fork():
        return None
    stage, kind = explanation.stage or "", explanation.kind

    def fails(segment: Segment) -> bool:
        try:
            in_child(lambda: replay(segment.alone(), stage), timeout=_SEARCH_SECONDS)
        except InternalError as error:
            return (error.stage, error.kind) == (stage, kind)
        except ChildDiedError as error:
            return ended(error.status) == kind
        except Exception:
            return False
        return False

    found = narrowed(whole(imported.module), fails, _SEARCH_SECONDS)
    return found if found.stop > found.start else None


def _function(explanation: InternalError, circumstances: Circumstances, module: Any) -> str | None:
    """The first of a module's TensorIR functions that fails in the same way by itself, in a child of this process."""
    import tvm
    from tvm import tirx

    build = circumstances.build.get(explanation.stage or "")
    if build is None or not isinstance(module, tvm.IRModule) or not can_fork():
        return None
    functions = [item for item in module.functions_items() if isinstance(item[1], tirx.PrimFunc)]
    with mmap.mmap(-1, mmap.PAGESIZE) as tried:  # shared with the child, which may not live to tell

        def build_each() -> None:
            for position, (variable, function) in enumerate(functions):
                tried[:4] = position.to_bytes(4, "little")
                build(tvm.IRModule({variable: function}))
            raise LookupError

        kind: str | None = None
        try:
            in_child(build_each, timeout=_SEARCH_SECONDS)
        except (ChildDiedError, RaisedInChildError) as error:
            kind = _kind(error)
        return functions[int.from_bytes(tried[:4], "little")][0].name_hint if kind == explanation.kind else None


def _nodes(segment: Segment, sources: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that a segment's variables were bound for.

    A variable that no node is known of was made on the way to the next one.
    """
    names = [variable.name_hint for variable in segment.variables]
    return tuple(dict.fromkeys(sources[name] for name in names if name in sources))


def _written(
    explanation: InternalError,
    error: BaseException,
    circumstances: Circumstances,
    module: Any,
    smallest: Segment | None,
) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tkc-failure-"))
    trace = error.trace if isinstance(error, RaisedInChildError) else "".join(traceback.format_exception(error))
    report = {
        "stage": explanation.stage,
        "error": explanation.kind,
        "message": str(error),
        "nodes": explanation.nodes,
        "function": explanation.function,
        "versions": versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("TKC_")},
        **circumstances.about,
    }
    (folder / REPORT).write_text(json.dumps(report, indent=1, default=str))
    (folder / TRACEBACK).write_text(trace)
    if isinstance(error, ChildDiedError) and error.output:
        (folder / OUTPUT).write_text(error.output)
    texts = {MODULE: lambda: as_text(module), SMALLEST: lambda: None if smallest is None else as_text(smallest.alone())}
    for name, text in texts.items():
        try:
            if (written := text()) is not None:
                (folder / name).write_text(written)
        except OSError:
            raise
        except Exception as unprintable:  # a module that is broken may not print
            (folder / name).write_text(f"# it could not be printed: {type(unprintable).__name__}: {unprintable}\n")
    return folder


def as_text(module: Any) -> str | None:
    """A Relax module as text without the contents of its constants; ``None`` for what is none."""
    return module.script(show_meta=False) if hasattr(module, "script") else None


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that take part."""
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
