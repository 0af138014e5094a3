"""Arguments and options that several commands take."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from tkc import api
from tkc.cli.signatures import option

ModelArgument = Annotated[Path, typer.Argument(help="A model: .onnx, or .pt2 as torch.export.save writes it.")]
OptionalModelArgument = Annotated[
    Path | None, typer.Argument(help="A model: .onnx, or .pt2 as torch.export.save writes it. Or --entry for several.")
]
TargetOption = option(api.compile, "target")
KernelsOption = option(api.compile, "kernels")


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
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="FILE.npz or FILE.safetensors with all inputs by name, or NAME=FILE.npy. Random if left out.",
    ),
]
EntryOption = Annotated[
    str | None, typer.Option("--entry", metavar="NAME", help="The entry to run, of an artifact with several.")
]
SizesOption = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help="A symbolic size of random inputs.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of random inputs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
