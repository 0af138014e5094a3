"""``tkc bench``: the commands that make the figures in docs/benchmarks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from rich.console import Console
from rich.markup import escape

from tkc.bench.comparison import comparison
from tkc.bench.decoding import DECODE_STEPS
from tkc.bench.language_models import LANGUAGE_MODELS
from tkc.bench.models import MODELS
from tkc.bench.plots import draw
from tkc.compiler.options import Kernels
from tkc.databases import kernel_choices
from tkc.errors import UsageError
from tkc.measure.record import Record, Row, package_version, record
from tkc.targets import resolve_target

app = typer.Typer(help="Measure kernels, models and compilation beside others.", no_args_is_help=True)
_out = Console(width=200)

DatabaseOption = Annotated[Path | None, typer.Option("--database", help="A folder of tuning records to choose from.")]


def _json_path(path: Path | None) -> Path | None:
    if path is not None and path.suffix != ".json":
        raise UsageError(f"--output {path}: records are JSON files")
    return path


OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", callback=_json_path, help="Write the record as JSON, and its pictures beside it."),
]

ReferencesOption = Annotated[
    list[str] | None, typer.Option("--reference", help="PyTorch's contenders: eager, compile, max-autotune.")
]
DtypeOption = Annotated[
    str | None, typer.Option(help="Of weights and activations; bfloat16 on a GPU, float32 on a CPU if left out.")
]


ThroughOption = Annotated[
    bool, typer.Option("--torch-compile", help="Also measure torch.compile(backend='tkc'), by turns.")
]


def _read_record(path: str) -> Record:
    return Record.read(Path(path))


# Read before anything is measured: a wrong file must not cost a run.
AgainstOption = Annotated[
    Record | None,
    typer.Option("--against", metavar="FILE", parser=_read_record, help="Compare with this earlier record."),
]


@app.command()
def kernels(
    names: Annotated[list[str] | None, typer.Argument(help="Kernels by name; all if left out.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    every_configuration: Annotated[
        bool, typer.Option("--every-configuration", help="Measure each configuration, not only the default.")
    ] = False,
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            help="PyTorch's contenders: eager, compile, max-autotune (these two also where eager has nothing alike).",
        ),
    ] = None,
    tile_kernels: Annotated[
        str | None,
        typer.Option(
            "--tile-kernels",
            metavar="PYTHON",
            help="Measure DeepSeek's TileKernels, too: the interpreter of an environment that has them.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Only rows whose operands are of this dtype.")] = None,
    database: DatabaseOption = None,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """Kernels over production shapes, beside PyTorch's.

    In the configurations that compilations choose, against the best of all contenders.
    """
    from tkc.bench.kernels import bench_kernels
    from tkc.bench.tile_kernels_client import TileKernels

    resolved = resolve_target(target)
    choices = kernel_choices(database, resolved)
    with contextlib.ExitStack() as stack:
        theirs: TileKernels | None = None
        if tile_kernels is not None:
            theirs = stack.enter_context(TileKernels(tile_kernels, _device(resolved.is_cuda)))
        others = references or ["eager"]
        rows = bench_kernels(names or [], resolved, choices, every_configuration, others, theirs, dtype)
        versions = {f"{name} beside": version for name, version in theirs.versions.items()} if theirs else {}
        _finish("kernels", rows, resolved.is_cuda, output, against, versions)


@app.command()
def model(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join((*MODELS, *DECODE_STEPS))}.")],
    tokens: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of each sequence (of a decode step: cached ones); may be given several times."),
    ] = None,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    kernels: Annotated[
        list[str] | None, typer.Option(help="Substitution settings to compare; the first is ours.")
    ] = None,
    references: ReferencesOption = None,
    dtype: DtypeOption = None,
    database: DatabaseOption = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Also measure what batch_invariant=True costs, by turns.")
    ] = False,
    through: ThroughOption = False,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """A whole model, with and without kernels, beside PyTorch."""
    from tkc.bench.model import bench_model

    on_gpu = resolve_target(target).is_cuda
    rows = bench_model(
        name,
        tokens or [2048],
        layers,
        batch,
        _device(on_gpu),
        _dtype(dtype, on_gpu),
        cast("list[Kernels]", kernels or ["auto", "none"]),  # compile() refuses others
        references or ["eager"],
        database,
        batch_invariant,
        through,
    )
    _finish(f"model {name}", rows, on_gpu, output, against)


@app.command()
def architectures(
    names: Annotated[list[str] | None, typer.Argument(help="Types of transformers' models; all if left out.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    references: ReferencesOption = None,
    dtype: DtypeOption = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many compile at once; one at a time is measured.")] = 1,
    through: ThroughOption = False,
    database: DatabaseOption = None,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """Two layers of each architecture, beside PyTorch.

    Nothing was tuned for these.
    """
    from tkc.bench.architectures import bench_architectures

    on_gpu = resolve_target(target).is_cuda
    others = references or ["eager"]
    rows = bench_architectures(names or [], _device(on_gpu), _dtype(dtype, on_gpu), others, database, jobs, through)
    _finish("architectures", rows, on_gpu, output, against)


@app.command()
def cpu(
    names: Annotated[list[str] | None, typer.Argument(help="Models by name; all if left out.")] = None,
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference", help="eager, inductor, frozen (Inductor's freezing), onnxruntime; all if left out."
        ),
    ] = None,
    onnx: Annotated[list[Path] | None, typer.Option("--onnx", help="An ONNX file, beside ONNX Runtime.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of calls of each contender.")] = 2.0,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """Models as CPUs serve them, beside eager, Inductor and ONNX Runtime.

    One request at a time, in float32; the least CPU time of many calls.

    OMP_NUM_THREADS and TVM_NUM_THREADS give the threads.
    """
    from tkc.bench.cpu import REFERENCES, bench_cpu

    rows = bench_cpu(names or [], references or list(REFERENCES), seconds, onnx or [])
    _finish("cpu", rows, False, output, against, {"onnxruntime": package_version("onnxruntime")})


@app.command()
def compilation(
    layers: Annotated[int, typer.Option(min=1)] = 32,
    target: Annotated[str, typer.Option()] = "cuda:sm_90a",
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """Time and memory of compiling a deep model, cold and warm."""
    from tkc.bench.compilation import bench_compilation

    _finish("compilation", bench_compilation(layers, target), False, output, against)


@app.command()
def overhead(
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """The host time of one call."""
    from tkc.bench.compilation import bench_call_overhead

    on_gpu = resolve_target(target).is_cuda
    _finish("call overhead", bench_call_overhead(_device(on_gpu)), on_gpu, output, against)


@app.command()
def generation(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(LANGUAGE_MODELS)}.")] = "llama-3.1-8b",
    contenders: Annotated[
        list[str] | None,
        typer.Option(
            "--contender",
            help="tkc (torch.compile), tkc-decode, program, eager, eager-dynamic, compile, max-autotune; if left out "
            "tkc, program, eager and compile.",
        ),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences; 1 and 8 if left out.")] = None,
    tokens: Annotated[list[int] | None, typer.Option(min=1, help="Of each prompt; 128 and 1,024 if left out.")] = None,
    new: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 64,
    layers: Annotated[int | None, typer.Option(min=1, help="All of the model's if left out.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    dtype: DtypeOption = None,
    small: Annotated[bool, typer.Option("--small", help="A small model of the same type, for two CPU cores.")] = False,
    turns: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    database: DatabaseOption = None,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """A whole language model's generation.

    By transformers' generate with and without TKC, and by TKC's own program.
    """
    from tkc.bench.generation import bench_generation

    on_gpu = resolve_target(target).is_cuda
    rows = bench_generation(
        model,
        contenders or ["tkc", "program", "eager", "compile"],
        batch or [1, 8],
        tokens or ([32] if small else [128, 1024]),
        new,
        layers,
        _device(on_gpu),
        _dtype(dtype, on_gpu),
        small,
        turns,
        database,
    )
    _finish(f"generation {model}", rows, on_gpu, output, against)


@app.command()
def warm_start(
    models: Annotated[
        str | None, typer.Option(help="Which of llama, qwen3-moe, bert, vit, generate, with commas between them.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="4 if left out; of generate, all of Llama-3.1-8B.")] = None,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    references: Annotated[
        list[str] | None,
        typer.Option("--reference", help="compile or max-autotune; if left out both, on a CPU the first."),
    ] = None,
    dtype: DtypeOption = None,
    small: Annotated[bool, typer.Option("--small", help="Small models of the same types, for two CPU cores.")] = False,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for all sizes: torch.compile(dynamic=True).")] = (
        False
    ),
    limit: Annotated[float | None, typer.Option(min=1, help="Seconds after which a process is given up.")] = None,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """The first call under torch.compile, beside Inductor's.

    In a process that finds empty caches, and in a second one that finds what the first left.
    """
    from tkc.bench.warm_start import bench_warm_start

    on_gpu = resolve_target(target).is_cuda
    rows = bench_warm_start(
        _listed(models),
        layers,
        _device(on_gpu),
        _dtype(dtype, on_gpu),
        references or (["compile", "max-autotune"] if on_gpu else ["compile"]),
        small,
        True if dynamic else None,
        limit,
    )
    _finish("warm start", rows, on_gpu, output, against)


@app.command()
def tuning(
    layers: Annotated[int, typer.Option(min=1)] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="Length of the one sequence.")] = 128,
    trials: Annotated[int, typer.Option(min=1, help="Candidates that each may measure.")] = 500,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """BERT-base tuned by TKC and by stock MetaSchedule.

    With equal trials, on the CPU.
    """
    from tkc.bench.tuning import bench_tuning

    _finish("tuning", bench_tuning(layers, tokens, trials), False, output, against)


@app.command()
def reuse(
    tokens: Annotated[int, typer.Option(min=1, help="Length of the one sequence.")] = 128,
    database: DatabaseOption = None,
    output: OutputOption = None,
    against: AgainstOption = None,
) -> None:
    """What the records of a database are worth.

    For BERT-base, and for a model that shares its layers, without a trial.
    """
    from tkc.bench.reuse import bench_reuse

    _finish("reuse", bench_reuse(tokens, database), False, output, against)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A record that --output wrote.")],
    against: AgainstOption = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Write the pictures there, named as the record.")
    ] = None,
) -> None:
    """Show a record again, beside an earlier one or as pictures."""
    found = Record.read(file)
    _print(found, against)
    for drawn in [] if plots is None else draw(found, plots, file.stem):
        _out.print(f"wrote {drawn}", markup=False, highlight=False, soft_wrap=True)


def _finish(
    benchmark: str,
    rows: Iterable[Row],
    on_gpu: bool,
    output: Path | None,
    earlier: Record | None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Measure what ``rows`` yields, and show it. What an interruption leaves is in a file beside ``output``."""
    result = record(benchmark, (), _device(on_gpu), versions)
    partial = None if output is None else output.with_suffix(".partial.json")
    try:
        with Console(stderr=True).status(f"{benchmark}: beginning") as status:
            for row in rows:
                result = replace(result, rows=(*result.rows, row))
                status.update(f"{benchmark}: {len(result.rows)} rows, the last {escape(row.name)}")
                if partial is not None:
                    result.write(partial)
    except BaseException:
        if partial is not None and result.rows:
            print(f"{partial} holds what was measured, rows: {len(result.rows)}", file=sys.stderr)
        raise
    _print(result, earlier)
    if output is not None and partial is not None:
        result.write(output)
        partial.unlink(missing_ok=True)
        draw(result, output.parent, output.stem)


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _dtype(name: str | None, on_gpu: bool) -> torch.dtype:
    dtypes: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
    if (chosen := name or ("bfloat16" if on_gpu else "float32")) not in dtypes:
        raise UsageError(f"--dtype {name}: choose one of {', '.join(dtypes)}")
    return dtypes[chosen]


def _device(on_gpu: bool) -> torch.device:
    return torch.device("cuda" if on_gpu else "cpu")


def _print(result: Record, earlier: Record | None) -> None:
    _out.print(result)
    if earlier is not None:
        _out.print(comparison(earlier, result))
