"""Packs what a bug report needs into one file, without weights."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path

from tkc.child import ChildDiedError, can_fork, in_child
from tkc.errors import InternalError, UsageError
from tkc.failures import FILES, MODULE, OUTPUT, REPORT, as_text, versions

_MOST_BYTES = 64 << 20
"""Of one file in a report: longer ones are cut."""


def write_bug_report(source: Path, output: Path, target: str = "cpu", kernels: str = "auto") -> str:
    """Write the zip file ``output`` about ``source``; what it shows, as a sentence.

    ``source`` is the folder that an internal error named, or a model file, which is then compiled to see how it fails.
    Raises :class:`tkc.UsageError` if it is neither, or ``output`` exists.
    """
    if output.exists():
        raise UsageError(f"{output} exists; choose another name or remove it")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}")
    if source.is_dir():
        if not (source / REPORT).is_file():
            raise UsageError(f"{source} has no {REPORT}; give the folder that an internal error named, or a model file")
        _pack(source, output)
        return "packed the failure"
    with tempfile.TemporaryDirectory(prefix="tkc-") as scratch:
        folder, verdict = _tried(source, target, kernels, Path(scratch))
        _pack(folder, output)
    return verdict


def _tried(model: Path, target: str, kernels: str, scratch: Path) -> tuple[Path, str]:
    """A folder about the compilation of ``model``, and how it went."""

    def compile_it() -> None:
        _compile(model, target, kernels, scratch)

    report = {"model": model.name, "target": target, "kernels": kernels, "versions": versions()}
    try:
        in_child(compile_it) if can_fork() else compile_it()
    except InternalError as error:
        return error.folder or scratch, f"compiling it fails: {error}"
    except ChildDiedError as error:
        (scratch / OUTPUT).write_text(error.output)
        (scratch / REPORT).write_text(json.dumps({**report, "message": str(error)}, indent=1))
        return scratch, f"compiling it fails: {error}"
    (scratch / REPORT).write_text(json.dumps({**report, "message": "it compiles"}, indent=1))
    return scratch, "it compiles; the report holds its graph (if its results are wrong, see tkc debug)"


def _compile(model: Path, target: str, kernels: str, scratch: Path) -> None:
    import tkc
    from tkc.frontend import import_model

    tkc.compile(model, target=target, kernels=kernels)  # type: ignore[arg-type]  # checked there
    if (text := as_text(import_model(model, fallback=True).module)) is not None:
        (scratch / MODULE).write_text(text)


def _pack(folder: Path, output: Path) -> None:
    try:
        with zipfile.ZipFile(output, "x", zipfile.ZIP_DEFLATED) as archive:
            for name in FILES:
                file = folder / name
                if file.is_file() and not file.is_symlink():
                    with file.open("rb") as content:
                        archive.writestr(name, content.read(_MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error}") from error
