"""Artifacts read back: an executable, or a program of several entries."""

from __future__ import annotations

import os

from tkc.runtime.artifact import reading
from tkc.runtime.artifact.contents import MAIN
from tkc.runtime.artifact.reading import what_cannot_be
from tkc.runtime.executable import Executable, executable_of
from tkc.runtime.machines import checked_concurrency
from tkc.runtime.program import program_of


def load(path: str | os.PathLike[str], *, max_concurrency: int | None = None) -> Executable:
    """Read the artifact folder ``path`` back as an executable, on the GPU if it is for one.

    ``max_concurrency`` is as in :func:`tkc.compile`. Raises :class:`ArtifactError` for a folder that is no artifact,
    has a missing or changed file, is for another version, target or device, or needs an operator that is not here. Load
    only what you trust: an artifact is machine code.
    """
    checked_concurrency(max_concurrency)
    contents = reading.read(path)
    with what_cannot_be(path):
        if contents.is_program:
            return program_of(contents, max_concurrency)
        return executable_of(contents, MAIN, max_concurrency)
