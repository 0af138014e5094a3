"""The source model itself, run as its own framework runs it: what a compiled model is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tkc.errors import UsageError


def run_source(model: Path, inputs: Sequence[Any]) -> list[Any]:
    """The flattened outputs of a ``.pt2`` (by PyTorch) or ``.onnx`` model (by ONNX's reference evaluator) on the CPU.

    ``inputs`` are the flattened tensor inputs in the signature's order. Strings are arrays.
    """
    if not model.is_file():
        raise UsageError(f"there is no model file {model}")
    if model.suffix == ".pt2":
        return _run_exported(torch.export.load(model), inputs)
    if model.suffix == ".onnx":
        return _run_onnx(model, inputs)
    raise UsageError(f"{model.name} is neither .pt2 nor .onnx, so there is nothing to compare with")


def _run_exported(program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    from tkc.frontend.torch.signature import exported_signature

    remaining = iter(inputs)
    signature = exported_signature(program)
    leaves = [leaf.value if hasattr(leaf, "value") else next(remaining) for leaf in signature.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    with torch.no_grad():
        result = program.module()(*args, **kwargs)
    known = {position for position, _ in (*signature.constant_outputs, *signature.size_outputs)}
    computed = [leaf for position, leaf in enumerate(pytree.tree_leaves(result)) if position not in known]
    dtypes = (getattr(torch, spec.held) for spec in signature.outputs)
    return [
        leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, dtype=dtype)
        for leaf, dtype in zip(computed, dtypes, strict=True)
    ]


def _run_onnx(model: Path, inputs: Sequence[Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(model))
    feeds = {
        name: value.numpy() if isinstance(value, torch.Tensor) else value.astype(object)
        for name, value in zip(evaluator.input_names, inputs, strict=True)
    }
    outputs = map(np.asarray, evaluator.run(None, feeds))
    return [output if output.dtype.kind in "OUS" else torch.from_numpy(output) for output in outputs]
