"""An imported model through its stages: kernels substituted, then every function scheduled."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.compiler import code
from tkc.compiler.options import CompileOptions, calls_libraries
from tkc.databases import database_roots, kernel_choices
from tkc.kernels import Target

if TYPE_CHECKING:
    from tvm import IRModule

    from tkc.compilation import Compilation
    from tkc.diagnosis.search import Search
    from tkc.schedules.database import Lookup
    from tkc.stages import StageRunner


def substituted_model(runner: StageRunner, imported: IRModule, target: Target, settings: CompileOptions) -> Compilation:
    """The imported model after substitution."""
    from tkc.compilation import Compilation
    from tkc.pipeline import substitution_stages

    choices = kernel_choices(settings.database, target, settings.batch_invariant, libraries=settings.kernels != "all")
    done = runner.run_stages(
        Compilation(imported),
        substitution_stages(target, settings.kernels, choices, batch_invariant=settings.batch_invariant),
    )
    others = (choices.other_devices(kernel.spec, kernel.parameters, target) for kernel in done.kernels or ())
    return dataclasses.replace(
        done,
        kernels_measured_on=tuple(sorted({device for other in others for device in other})),
        choices=choices,
    )


def scheduled_model(runner: StageRunner, front: Compilation, target: Target, settings: CompileOptions) -> Compilation:
    """The model after substitution as a program of scheduled functions."""
    from tkc.pipeline import generation_stages
    from tkc.schedules.target import tvm_target

    generated_for = tvm_target(target)
    with generated_for:
        # Schedules that tuning found may give a row other bits among fewer rows, even where there is one for all sizes:
        # of random ones for products on the CPU a third did. By default, so do the rules' for products of few rows.
        lookup = None if settings.batch_invariant else _lookup(settings, target)
        stages = generation_stages(
            target,
            generated_for,
            lookup,
            batch_invariant=settings.batch_invariant,
            libraries=calls_libraries(settings.kernels, batch_invariant=settings.batch_invariant),
        )
        return runner.run_stages(front, stages)


def _lookup(settings: CompileOptions, target: Target) -> Lookup:
    """Where tuning records are looked up, the given or the user's database first."""
    from tkc.schedules.database import Lookup

    return Lookup(database_roots(settings.database), target)


def failure_search(model: Any, target: Target, settings: CompileOptions) -> Search:
    """What a failure of this compilation is explained with."""
    from tkc.diagnosis.search import Search

    return Search(
        {
            "model": str(model) if isinstance(model, (str, os.PathLike)) else type(model).__qualname__,
            "target": str(target),
            "kernels": settings.kernels,
            "database": settings.database,
            "fallback": settings.fallback,
            "batch_invariant": settings.batch_invariant,
        },
        replay=lambda module, stage: _replay(module, stage, target, settings),
        build={code.GENERATE_CODE: lambda module: code.vm_executable(module, target)},
    )


def _replay(module: IRModule, stage: str, target: Target, settings: CompileOptions) -> None:
    """Compile the imported ``module`` to the end of ``stage``, in this process, and raise what that raises."""
    from tkc.stages import StageRunner

    runner = StageRunner(verify=settings.verify)
    front = substituted_model(runner, module, target, settings)
    if stage in [done.name for done in runner.stages]:
        return
    generated = scheduled_model(runner, front, target, settings)
    if stage == code.GENERATE_CODE:
        with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
            runner.run(stage, lambda: code.write_code(generated.module, target, Path(folder) / "model.so"))
