"""``tkc bench``: the commands that make the figures in docs/benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from tkc.bench.models import MODELS
from tkc.bench.record import Row, record
from tkc.databases import kernel_choices
from tkc.errors import UsageError
from tkc.targets import resolve_target

app = typer.Typer(
    help="Measure kernels, models and compilation, each beside its reference in one run.", no_args_is_help=True
)

DatabaseOption = Annotated[Path | None, typer.Option("--database", help="A folder of tuning records to choose from.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write the record as JSON.")]


@app.command()
def kernels(
    names: Annotated[list[str] | None, typer.Argument(help="Kernels by name; all if left out.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    every_configuration: Annotated[
        bool, typer.Option("--every-configuration", help="Measure each configuration, not only the default.")
    ] = False,
    database: DatabaseOption = None,
    output: OutputOption = None,
) -> None:
    """Kernels over production shapes, against PyTorch, in the configurations that compilations choose."""
    from tkc.bench.kernels import bench_kernels

    resolved = resolve_target(target)
    rows = bench_kernels(names or [], resolved, kernel_choices(database, resolved), every_configuration)
    _finish("kernels", rows, resolved.is_cuda, output)


@app.command()
def model(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    tokens: Annotated[
        list[int] | None, typer.Option(help="Tokens of each sequence; may be given several times.")
    ] = None,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    kernels: Annotated[
        list[str] | None, typer.Option(help="Substitution settings to compare; the first is ours.")
    ] = None,
    references: Annotated[
        list[str] | None, typer.Option("--reference", help="PyTorch's contenders: eager, compile, max-autotune.")
    ] = None,
    database: DatabaseOption = None,
    output: OutputOption = None,
) -> None:
    """A whole model against PyTorch, and against itself without kernels."""
    from tkc.bench.model import bench_model

    on_gpu = resolve_target(target).is_cuda
    device, dtype = (torch.device("cuda"), torch.bfloat16) if on_gpu else (torch.device("cpu"), torch.float32)
    rows = bench_model(
        name,
        tokens or [2048],
        layers,
        batch,
        device,
        dtype,
        kernels or ["auto", "none"],
        references or ["eager"],
        database,
    )
    _finish(f"model {name}", rows, on_gpu, output)


@app.command()
def compilation(
    layers: Annotated[int, typer.Option(min=1)] = 32,
    target: Annotated[str, typer.Option()] = "cuda:sm_90a",
    output: OutputOption = None,
) -> None:
    """Time and memory of compiling a deep model, cold and warm."""
    from tkc.bench.compilation import bench_compilation

    _finish("compilation", bench_compilation(layers, target), False, output)


@app.command()
def overhead(target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu", output: OutputOption = None) -> None:
    """The host time of one call."""
    from tkc.bench.compilation import bench_call_overhead

    on_gpu = resolve_target(target).is_cuda
    _finish("call overhead", bench_call_overhead(torch.device("cuda" if on_gpu else "cpu")), on_gpu, output)


@app.command()
def tuning(
    layers: Annotated[int, typer.Option(min=1)] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="Length of the one sequence.")] = 128,
    trials: Annotated[int, typer.Option(min=1, help="Candidates that each may measure.")] = 500,
    output: OutputOption = None,
) -> None:
    """BERT-base tuned by us and by stock MetaSchedule with equal trials, on the CPU."""
    from tkc.bench.tuning import bench_tuning

    _finish("tuning", bench_tuning(layers, tokens, trials), False, output)


def _finish(benchmark: str, rows: list[Row], on_gpu: bool, output: Path | None) -> None:
    if output is not None and output.suffix != ".json":
        raise UsageError(f"--output {output}: records are JSON files")
    result = record(benchmark, rows, torch.device("cuda" if on_gpu else "cpu"))
    Console(width=200).print(result)
    if output is not None:
        result.write(output)
