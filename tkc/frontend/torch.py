"""PyTorch models as Relax: export, then one walk over the exported graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from tvm import relax

from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.converters import KEPT
from tkc.frontend.converters.emitter import Emitter
from tkc.frontend.converters.symbols import Symbols
from tkc.frontend.dimensions import Dimensions, dimension_names
from tkc.frontend.model import Constant, ImportedModel, TensorSpec


def import_torch(
    model: nn.Module | ExportedProgram | str | PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """The Relax module, weights and signature of a PyTorch model.

    ``model`` is a module, which is exported with the examples and ``dynamic_shapes`` as ``torch.export.export`` takes them (and in the
    mode, training or evaluation, that it is in); or an exported program, or the path of a saved one
    (``.pt2``), which are complete in themselves. Parameters are the model's own tensors, not copies;
    tied ones come once, and unused ones not at all.

    Raises:
        UsageError: examples given with an exported program, a missing file, or a model that is none of these.
        UnsupportedModelError: operators without a converter (all are listed), state that the model changes,
            a file that is no exported program, or a model that ``torch.export`` cannot export.
    """
    if isinstance(model, nn.Module):
        program = _export(model, tuple(example_args), dict(example_kwargs or {}), dynamic_shapes)
        names = dimension_names(model, tuple(example_args), dict(example_kwargs or {}), dynamic_shapes)
    else:
        if example_args or example_kwargs or dynamic_shapes is not None:
            raise UsageError(
                "Example arguments and dynamic shapes were given with a program that is exported already. "
                "Leave them out, or pass the module itself."
            )
        program, names = _program(model), {}
    return _import(_decomposed(program), names, origin=model)


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    try:
        # Without gradients, so that a model's own torch.no_grad() blocks do not become separate subgraphs.
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise UnsupportedModelError(
            f"torch.export cannot export {type(model).__name__}: {error}\n"
            "The example arguments must fit its forward, and its control flow must not depend on data "
            "(see the PyTorch documentation of torch.export)."
        ) from error


def _program(model: ExportedProgram | str | PathLike[str]) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"A PyTorch model is a Module, an ExportedProgram or the path of a .pt2 file, not {type(model)}."
        )
    path = Path(model)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise UnsupportedModelError(
            f"{path} is not a program that this PyTorch ({torch.__version__}) can load: {error}\n"
            "Write it with torch.export.save, by this version or an older one; if the model uses custom operators, "
            "import the package that defines them first."
        ) from error


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program in functional form, over PyTorch's core operators and those that stay whole."""
    table = torch.export.default_decompositions()
    for op in [op for op in table if op.name().partition(".")[0] in KEPT]:
        table.pop(op)
    with torch.no_grad():
        return program.run_decompositions(table)


def _import(program: ExportedProgram, names: Mapping[tuple[int, int], str], origin: Any) -> ImportedModel:
    _check_state(program)
    _check_operators(program.graph)
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    dimensions = Dimensions.of(
        [placeholders[spec.arg.name] if isinstance(spec.arg, TensorArgument) else None for spec in inputs],
        names,
        program.range_constraints,
    )
    builder = relax.BlockBuilder()
    emitter = Emitter(builder, Symbols(dimensions.symbols))
    leaves: list[TensorSpec | Constant] = []
    variables: list[relax.Var] = []
    casts: list[tuple[fx.Node, relax.Var]] = []
    for position, spec in enumerate(inputs):
        ...
