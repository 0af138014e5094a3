"""What becomes of an exception that TKC did not foresee: an :class:`InternalError` that says where, with a folder.

The folder holds what a bug report needs. There are no weights in it, and no constants of the model.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import logging
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tkc.child import ChildDiedError, RaisedInChildError, ended
from tkc.errors import Error, InternalError, UsageError

_LOG = logging.getLogger(__name__)

REPORT, TRACEBACK, MODULE, SMALLEST, OUTPUT = "report.json", "traceback.txt", "module.py", "smallest.py", "output.txt"
FILES = (REPORT, TRACEBACK, MODULE, SMALLEST, OUTPUT)
"""The files of a failure's folder, not all of which are there."""

_PACKAGES = ("tkc", "apache-tvm", "apache-tvm-ffi", "tilelang", "torch", "onnx", "numpy", "transformers")
_MOST_NODES = 4
_LONGEST_CAUSE = 500

_OF_THE_MACHINE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "it cannot be written",
    errno.EACCES: "it cannot be accessed",
}


@dataclass(frozen=True)
class Place:
    """Where a failure was found to be: the generated function, the model's nodes, the smallest part that shows it."""

    function: str | None = None
    nodes: tuple[str, ...] = ()
    smallest: Any = None


@dataclass
class Circumstances:
    """What a failure is explained with; ``about`` goes into its folder as it is."""

    about: dict[str, Any] = field(default_factory=dict)

    def locate(self, failure: InternalError, module: Any) -> Place:
        """Where ``failure`` is; ``module`` is what its stage began with. Here nothing more is known than it says."""
        return Place(failure.function)


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
        explanation.stage, explanation.kind, explanation.function = stage, kind_of(error), function
        _complete(explanation, error, circumstances, module)
        raise explanation from error


def kind_of(error: BaseException) -> str:
    """The name of an exception's class, or how the child that it came from ended."""
    if isinstance(error, ChildDiedError):
        return ended(error.status)
    return error.kind if isinstance(error, RaisedInChildError) else type(error).__name__


_OF_TRACES = ("File ", "at ", "[")


def _cause(error: BaseException) -> str:
    if isinstance(error, ChildDiedError):
        return str(error)
    message = error.message if isinstance(error, RaisedInChildError) else str(error)
    # TVM's messages end in what is wrong, behind a trace of its own.
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # An ``OSError``'s words begin with "[Errno 2]", and TVM's trace has lines that begin with "[bt]" or the time.
    told = next((line for line in reversed(lines) if line.startswith("[Errno") or not line.startswith(_OF_TRACES)), "")
    return f"{kind_of(error)}: {told}"[:_LONGEST_CAUSE].rstrip(": ")


def _complete(
    explanation: InternalError, error: BaseException, circumstances: Circumstances | None, module: Any
) -> None:
    """Look for the node, write the folder, and say both in the message of ``explanation``."""
    if circumstances is None:
        return
    lines = [str(explanation)]
    place = Place(explanation.function)
    try:
        place = circumstances.locate(explanation, module)
    except Exception:  # what fails may fail in other ways too, and the first failure is the one to report
        _LOG.debug("looking for the node failed", exc_info=True)
    explanation.function = place.function
    if place.function:
        lines.append(f"  in the function {place.function}")
    if place.nodes:  # otherwise whoever raised it may have named them already
        explanation.nodes = place.nodes
        lines += _told(place.nodes)
    try:
        explanation.folder = _written(explanation, error, circumstances, module, place.smallest)
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


def _written(
    explanation: InternalError,
    error: BaseException,
    circumstances: Circumstances,
    module: Any,
    smallest: Any,
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
    for name, part in ((MODULE, module), (SMALLEST, smallest)):
        try:
            if (written := as_text(part)) is not None:
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
