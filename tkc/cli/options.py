"""Arguments and options that several commands take."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Annotated

import typer

from tkc.errors import UsageError
from tkc.kernels.target import CUDA_ARCHITECTURES

ModelArgument = Annotated[Path, typer.Argument(help="A model: .onnx, or .pt2 as torch.export.save writes it.")]
TargetOption = Annotated[
    str,
    typer.Option("--target", help=f"cpu, cuda (this machine's GPU), or cuda:ARCH ({', '.join(CUDA_ARCHITECTURES)})."),
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


SizeNamesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--size-name",
        metavar="SIZE=NAME",
        help="Call a symbolic size of a .pt2 by the name of its Dim, which the file has lost: x_0=batch.",
    ),
]


def parse_size_names(options: list[str] | None) -> dict[str, str]:
    """``["x_0=batch"]`` as ``{"x_0": "batch"}``; :class:`tkc.UsageError` for another form, or a size twice."""
    names: dict[str, str] = {}
    for option in options or []:
        size, _, name = option.partition("=")
        if not size or not name or size in names:
            raise UsageError(f"--size-name {option}: give each size one name, as in x_0=batch")
        names[size] = name
    return names


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
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not math.isfinite(percent):
        raise UsageError(f"{option} {text}: expected a percentage such as 2%")
    return percent / 100
