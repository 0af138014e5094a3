"""The commands and their options; what they do stands in the modules beside this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tkc import api
from tkc.cli import bench, cache, db, tune
from tkc.cli.options import (
    EntryOption,
    ImportOption,
    InputOption,
    JsonOption,
    KernelsOption,
    ModelArgument,
    OptionalModelArgument,
    SeedOption,
    SizesOption,
    TargetOption,
)
from tkc.cli.progress import StageProgress
from tkc.cli.signatures import with_options_of
from tkc.errors import UsageError

if TYPE_CHECKING:
    from tkc.runtime.report import Report

app = typer.Typer(
    name="tkc",
    help="Compile whole PyTorch and ONNX models into one executable with TileLang kernels inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")
app.add_typer(db.app, name="db")
app.add_typer(tune.app, name="tune")
_out = Console(soft_wrap=False)
_err = Console(stderr=True)


@app.command()
@with_options_of(api.compile)
def compile(
    output: Annotated[Path, typer.Option("--output", "-o", help="The artifact folder to write.")],
    model: OptionalModelArgument = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the artifact that is at --output.")] = False,
    modules: ImportOption = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Compile MODEL and write the artifact."""
    import tkc
    from tkc.runtime.artifact.writing import check_destination

    check_destination(output, force)

    with StageProgress(_err) as progress:
        executable = tkc.compile(
            model,
            **options,
            observer=progress.stage,
            kernel_progress=progress.kernel,
        )
        progress.stage("write artifact")
        path = executable.save(output, overwrite=force)
    _show_report(executable.report, {"artifact": str(path), "report": executable.report.to_json()}, as_json)
    if not as_json:
        _wrote(path)


@app.command()
@with_options_of(api.explain)
def explain(
    model: OptionalModelArgument = None,
    modules: ImportOption = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Show what compiling MODEL would do, without building it.

    Which kernels replace what, what is refused and why, and what schedules the rest.
    """
    import tkc

    with StageProgress(_err) as progress:
        report = tkc.explain(model, **options, observer=progress.stage)
    _show_report(report, report.to_json(), as_json)


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="An artifact folder that tkc compile wrote, or a .onnx or .pt2 file.")],
    entry: EntryOption = None,
    inputs: InputOption = None,
    sizes: SizesOption = None,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs: .npz or .safetensors.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="The source model (.pt2, .onnx) to compare outputs with.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Largest allowed error, relative to each output's scale.")] = 1e-4,
    modules: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run MODEL and show its outputs."""
    from tkc.cli.run import run_model

    result = run_model(model, entry, inputs or [], sizes or [], seed, output, compare, tolerance)
    _show(result, result.to_json(), as_json)
    if not result.agrees:
        raise typer.Exit(1)


@app.command()
def profile(
    model: Annotated[Path, typer.Argument(help="An artifact folder that tkc compile wrote, or a .onnx or .pt2 file.")],
    entry: EntryOption = None,
    inputs: InputOption = None,
    sizes: SizesOption = None,
    seed: SeedOption = 0,
    repeat: Annotated[int, typer.Option(help="Calls of which each time is the median.")] = 20,
    output: Annotated[
        Path | None, typer.Option("--output", "--html", "-o", help="Write it as one page (.html) or as .json.")
    ] = None,
    modules: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time MODEL by its own nodes."""
    from tkc.cli.profile import profile_model

    result = profile_model(model, entry, inputs or [], sizes or [], seed, repeat, output)
    _show(result, result.to_dict(), as_json)
    if output is not None and not as_json:
        _wrote(output)


@app.command()
def inspect(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder.")],
    as_json: JsonOption = False,
) -> None:
    """Check an artifact's files and show what it holds.

    None of its code is loaded.
    """
    from tkc.cli.inspect import artifact_table
    from tkc.runtime.artifact.reading import open_artifact

    opened = open_artifact(artifact)
    _show(artifact_table(opened), opened.manifest.model_dump(mode="json"), as_json)


@app.command("bug-report")
def bug_report(
    source: Annotated[Path, typer.Argument(help="The folder that an internal error named, or a model: .pt2, .onnx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.")],
    target: TargetOption = "cpu",
    kernels: KernelsOption = "auto",
    modules: ImportOption = None,
) -> None:
    """Pack what a bug report needs, without weights. A model is compiled to see how it fails."""
    from tkc.diagnosis.bug_report import write_bug_report

    _out.print(write_bug_report(source, output, target, kernels), markup=False, highlight=False)
    _wrote(output)


@app.command()
@with_options_of(api.debug)
def debug(
    model: ModelArgument,
    inputs: InputOption = None,
    modules: ImportOption = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Find the first node where a compiled MODEL goes wrong.

    MODEL is compiled for the CPU and compared with its source node by node.
    """
    import tkc
    from tkc.cli.run import read_named

    if inputs and model.suffix != ".onnx":
        raise UsageError("--input is for ONNX models; a .pt2 file has example inputs of its own")
    comparison = tkc.debug(model, example_kwargs=read_named(inputs or []), **options)
    _show(comparison, comparison.to_json(), as_json)
    if not comparison.agrees:
        raise typer.Exit(1)


@app.command()
def demo() -> None:
    """Compile and run a mixture-of-experts transformer.

    It is compared with PyTorch, and the report shows what replaced what.
    """
    from tkc.cli.demo import run_demo

    run_demo()


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check compilers, GPU, versions and caches.

    It says what each missing piece costs.
    """
    from tkc.cli.doctor import diagnose, findings_table

    findings = diagnose()
    _show(findings_table(findings), [finding.to_json() for finding in findings], as_json)


def _show(rendered: Any, data: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(data, indent=1))
    else:
        _out.print(rendered)


def _show_report(report: Report, data: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(data, indent=1))
        return
    from tkc.runtime.report import print_report

    print_report(report, _out)


def _wrote(path: Path) -> None:
    _out.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
