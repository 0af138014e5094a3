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
            lambda: check_strings(
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


def check_strings(imported: ImportedModel, target: Target) -> ImportedModel:
    """The model; :class:`tkc.UnsupportedModelError` for one that computes with strings, and a target without these."""
    signature = imported.signature
    if signature.strings is None or not target.is_cuda:
        return imported
    named = [spec.name for spec in (*signature.inputs, *signature.outputs) if spec.is_text]
    raise UnsupportedModelError(
        f"The model computes with strings ({', '.join(named[:5]) or 'inside of it'}), and string operators run on the "
        "CPU; compile it for target='cpu', or split it into the part with strings and the part for the GPU."
    )
