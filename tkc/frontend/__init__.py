"""Readers of models: each returns an :class:`~tkc.frontend.model.ImportedModel`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.errors import UsageError
from tkc.frontend.given import check_given, described, refusal

if TYPE_CHECKING:
    from tkc.frontend.indices import CheckedInGraph
    from tkc.frontend.model import ImportedModel


def import_model(
    model: Any,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    checked_in_graph: CheckedInGraph = "none",
    size_names: Mapping[str, str] | None = None,
    *,
    fallback: bool = False,
    library: bool = False,
    read_state: frozenset[str] = frozenset(),
    constants: Mapping[str, Any] | None = None,
    exchangeable: bool = False,
) -> ImportedModel:
    """Read ``model``: an ``nn.Module``, an ``ExportedProgram``, a ``.pt2`` or ``.onnx`` path, or an ONNX
    ``ModelProto``; one that is imported already is returned as it is.

    Example inputs and ``dynamic_shapes`` (as ``torch.export.export`` takes them) are for an ``nn.Module``; the other
    kinds carry their own signature, and giving them is a :class:`UsageError`. Examples of an ONNX model's inputs say
    how many tensors a sequence has. ``checked_in_graph`` says which indices the module itself counts the bad ones of
    (see :class:`Signature`). ``size_names`` is for programs: with ``{"x_0": "batch"}`` the first axis of ``x`` has the
    name of its ``Dim`` again, which a ``.pt2`` file has lost.
    ``fallback`` has a PyTorch model call PyTorch's own operators where TKC has no converter, with ``library`` also
    those that PyTorch computes faster on the CPU than generated code would. ``read_state`` names buffers of a PyTorch
    model that may change between calls, though it does not change them.
    ``constants`` binds inputs of an ONNX model, by their names. With ``exchangeable``, small weights are parameters
    as large ones are, and not constants of the module.
    """
    import torch

    from tkc.frontend.model import ImportedModel

    if isinstance(model, ImportedModel):
        return model
    check_given(model)
    is_module = isinstance(model, torch.nn.Module)
    examples = (tuple(example_args), dict(example_kwargs or {}))
    is_onnx = type(model).__name__ == "ModelProto" or str(model).endswith(".onnx")
    if constants and not is_onnx:
        raise UsageError(f"constants is for ONNX models; {described(model)} binds them when it is exported")
    if dynamic_shapes is not None and is_onnx:
        raise UsageError("dynamic_shapes is for an nn.Module; an ONNX model names its symbolic sizes itself")
    is_path = isinstance(model, (str, os.PathLike))
    if not (is_module or is_onnx or is_path or isinstance(model, torch.export.ExportedProgram)):
        raise refusal(model)
    if not is_module and not is_onnx and (example_args or example_kwargs or dynamic_shapes is not None):
        raise UsageError(
            f"example inputs and dynamic_shapes are for an nn.Module; {described(model)} has its own signature"
        )
    if is_module or isinstance(model, torch.export.ExportedProgram):
        from tkc.frontend.torch.importer import import_torch

        return import_torch(
            model,
            tuple(example_args),
            dict(example_kwargs or {}),
            dynamic_shapes,
            checked_in_graph,
            size_names,
            fallback=fallback,
            library=library,
            read_state=read_state,
            exchangeable=exchangeable,
        )
    if is_path:
        path = Path(model)
        if path.suffix == ".pt2":
            from tkc.frontend.torch.importer import import_torch

            return import_torch(
                path,
                checked_in_graph=checked_in_graph,
                size_names=size_names,
                fallback=fallback,
                library=library,
                read_state=read_state,
                exchangeable=exchangeable,
            )
        _refuse_size_names(size_names, path.name)
        if path.suffix == ".onnx":
            from tkc.frontend.onnx.importer import import_onnx

            return import_onnx(
                path, checked_in_graph, constants, *examples, exchangeable=exchangeable, fallback=fallback
            )
        raise UsageError(
            f"{path.name} is neither .pt2 (torch.export.save) nor .onnx; rename it or export the model again"
        )
    _refuse_size_names(size_names, "a ModelProto")
    from tkc.frontend.onnx.importer import import_onnx

    return import_onnx(model, checked_in_graph, constants, *examples, exchangeable=exchangeable, fallback=fallback)


def _refuse_size_names(size_names: Mapping[str, str] | None, model: str) -> None:
    if size_names:
        raise UsageError(f"size_names is for .pt2 files; {model} names its sizes itself")
