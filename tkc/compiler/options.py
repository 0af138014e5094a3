"""What shapes a compilation besides the model and the target, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from tkc.builder import BuilderSettings, KernelLibrary
from tkc.databases import Database, database_roots
from tkc.errors import UsageError
from tkc.kernels import Target

if TYPE_CHECKING:
    from tkc.frontend.indices import CheckedInGraph


Kernels = Literal["auto", "all", "none"]
Observer = Callable[[str], None]
KernelProgress = Callable[[KernelLibrary, bool], None]


def check_kernels(kernels: str) -> None:
    """Raise :class:`UsageError` unless ``kernels`` is one of :data:`Kernels`."""
    if kernels not in get_args(Kernels):
        raise UsageError(f"kernels={kernels!r} means nothing; choose one of {', '.join(get_args(Kernels))}")


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What shapes a compilation besides the model and the target; each is as in :func:`tkc.compile`."""

    kernels: Kernels
    fallback: bool
    database: Database
    batch_invariant: bool
    exchangeable_weights: bool = False
    dump: str | Path | None
    verify: bool | None
    observer: Observer | None
    kernel_progress: KernelProgress | None
    builder: BuilderSettings

    def __post_init__(self) -> None:
        check_kernels(self.kernels)
        database_roots(self.database)


def calls_libraries(kernels: Kernels, *, batch_invariant: bool = False) -> bool:
    """Whether PyTorch's libraries are called where they are faster than generated code."""
    return kernels == "auto" and not batch_invariant


def checked_in_graph(checks: bool, target: Target) -> CheckedInGraph:
    """Which indices a model for ``target`` checks itself, by the option ``checks`` of :func:`tkc.compile`."""
    return "all" if checks else "inputs" if target.is_cuda else "writes"
