"""Arguments and options that several commands take."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from tkc.errors import UsageError

ModelArgument = Annotated[Path, typer.Argument(help="A model: .onnx, or .pt2 as torch.export.save writes it.")]
TargetOption = Annotated[
    str, typer.Option("--target", help="cpu, cuda (this machine's GPU), or cuda:ARCH (sm_80, sm_89, sm_90a, sm_120).")
]
KernelsOption = Annotated[
    str,
    typer.Option("--kernels", help="auto: where a kernel exists and pays; all: wherever one exists; none: nowhere."),
]
ChecksOption = Annotated[
    bool,
    typer.Option(
        "--checks", help="Also check the indices that the model computes, at once; see checks= of tkc.compile."
    ),
]


def _import_modules(names: list[str] | None) -> None:
    for name in names or []:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise typer.BadParameter(f"{name} cannot be imported: {error}") from None


ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import_modules,
        help="Import this first: a .pt2 file may need the module that registers its custom operators or classes.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def parse_percent(option: str, text: str) -> float:
    """``2%`` as 0.02; :class:`tkc.UsageError` for anything but a percentage."""
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"{option} {text}: expected a percentage such as 2%") from None
