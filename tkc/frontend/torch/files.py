"""Reads the files that ``torch.export.save`` writes."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import torch
from torch.export import ExportedProgram

from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.torch.guards import keep_written_guards
from tkc.frontend.torch.untrusted.archive import check_members
from tkc.frontend.torch.untrusted.guards import harmless_guards

_LONGEST_CAUSE = 400  # characters; PyTorch's errors may print whole programs


def load_program(model: str | PathLike[str]) -> ExportedProgram:
    """The program in the file ``model``.

    Raises :class:`UsageError` where there is no such file, :class:`UnsupportedModelError` for one that cannot be read.
    """
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"A PyTorch model is a Module, an ExportedProgram or the path of a .pt2 file, not {type(model)}."
        )
    path = Path(model)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    _check_archive(path)
    check_members(path)
    with _logged_causes() as causes:
        try:
            program = torch.export.load(path)
        except Exception as error:
            cause = str(_innermost(causes[0] if causes else error)).partition("\n")[0]
            raise UnsupportedModelError(
                f"{path} is not a program that this PyTorch ({torch.__version__}) can load: {cause[:_LONGEST_CAUSE]}\n"
                "Write it with torch.export.save, by this version or an older one. If the model uses custom operators "
                "or classes, import the modules that register them first (on the command line: --import MODULE)."
            ) from error
    keep_written_guards(program, harmless_guards)
    return program


def _check_archive(path: Path) -> None:
    """Raise :class:`UnsupportedModelError` for an archive that PyTorch did not write: it may be made to do harm.

    Members are stored as they are, each once, and take no more than the file; none is named as if it were outside, and
    none is machine code, which PyTorch would load.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"{path} is not a program that torch.export.save wrote: {error}. Export the model again."
        ) from error
    names = [member.filename for member in members]
    wrong = next(filter(None, map(_harm, members)), None)
    if wrong is None and len(set(names)) != len(names):
        wrong = "two of its members have one name"
    if wrong is None and sum(member.file_size for member in members) > path.stat().st_size:
        wrong = "its members are larger than itself"
    if wrong is not None:
        raise UnsupportedModelError(f"{path} is not a program that torch.export.save wrote: {wrong}.")


def _harm(member: zipfile.ZipInfo) -> str | None:
    """What is wrong with a member of an archive, if anything."""
    name = member.filename
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        return f"its member {name[:100]!r} is outside of it"
    if member.compress_type != zipfile.ZIP_STORED:
        return f"its member {name[:100]!r} is compressed"
    if "/aotinductor/" in name:
        return f"its member {name[:100]!r} is compiled code; give the exported program itself"
    return None


@contextmanager
def _logged_causes() -> Iterator[list[BaseException]]:
    """What ``torch.export`` finds wrong in a file, which it logs at length and then hides behind another error."""
    causes: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            causes.append(record.exc_info[1])
        return False

    logger = logging.getLogger("torch.export")
    logger.addFilter(collect)
    try:
        yield causes
    finally:
        logger.removeFilter(collect)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
