"""A single model to compile, and its import as the first stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tkc.compiler.lowering import failure_search
from tkc.compiler.options import CompileOptions, calls_libraries, checked_in_graph
from tkc.errors import UnsupportedModelError
from tkc.frontend import import_model
from tkc.kernels import Target

if TYPE_CHECKING:
    from tkc.frontend.model import ImportedModel
    from tkc.stages import StageRunner


@dataclass(frozen=True)
class ModelSource:
    """A model and what its import takes; each is as in :func:`tkc.compile`."""

    model: Any
    example_args: Sequence[Any]
    example_kwargs: Mapping[str, Any] | None
    dynamic_shapes: Any
    size_names: Mapping[str, str] | None
    constants: Mapping[str, Any] | None

    def imported(self, target: Target, settings: CompileOptions, *, checks: bool) -> tuple[StageRunner, ImportedModel]:
        """The model, imported as the first stage of the runner that is to run the others."""
        from tkc.stages import StageRunner

        search = failure_search(self.model, target, settings)
        runner = StageRunner(settings.observer, settings.dump, search, settings.verify)
        return runner, runner.run(
            "import",
            lambda: check_target(
                import_model(
                    self.model,
                    self.example_args,
                    self.example_kwargs,
                    self.dynamic_shapes,
                    checked_in_graph(checks, target),
                    self.size_names,
                    fallback=settings.fallback,
                    library=calls_libraries(settings.kernels, batch_invariant=settings.batch_invariant)
                    and not target.is_cuda,
                    constants=self.constants,
                    exchangeable=settings.exchangeable_weights,
                ),
                target,
            ),
        )


def check_target(imported: ImportedModel, target: Target) -> ImportedModel:
    """The model; :class:`tkc.UnsupportedModelError` for one with values that ``target`` has no code for."""
    if target.is_cuda:
        _check_strings(imported)
        _check_float8(imported)
    return imported


def _check_float8(imported: ImportedModel) -> None:
    """``fnuz`` floats, which CUDA's headers and TVM's code for it lack, may only be passed on as they are."""
    from tvm import relax

    functions = [each for each in imported.module.functions.values() if isinstance(each, relax.Function)]
    for block in (block for function in functions for block in function.body.blocks):
        for binding in block.bindings:
            calls: list[object] = []
            relax.analysis.post_order_visit(binding.value, calls.append)
            values = [each for call in calls if isinstance(call, relax.Call) for each in (call, *call.args)]
            dtypes = [getattr(each.struct_info_, "dtype", "") for each in values]
            if missing := [dtype for dtype in dtypes if dtype.endswith("fnuz")]:
                raise UnsupportedModelError(
                    f"{imported.sources.get(binding.var.name_hint, binding.var.name_hint)} computes with {missing[0]}, "
                    f"for which CUDA has no code. Use {'float8_e4m3fn' if 'e4m3' in missing[0] else 'float8_e5m2'} "
                    "instead, or compile for target='cpu'."
                )


def _check_strings(imported: ImportedModel) -> None:
    signature = imported.signature
    if signature.strings is None:
        return
    named = [spec.name for spec in (*signature.inputs, *signature.outputs) if spec.is_text]
    raise UnsupportedModelError(
        f"The model computes with strings ({', '.join(named[:5]) or 'inside of it'}), and string operators run on the "
        "CPU; compile it for target='cpu', or split it into the part with strings and the part for the GPU."
    )
