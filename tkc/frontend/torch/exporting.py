"""PyTorch modules as exported programs."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.export_refusals import operator_refusal, script_refusal
from tkc.frontend.torch.flex_attention import forget_captured
from tkc.frontend.torch.recurrent import recurrent_operators_of_any_length
from tkc.frontend.torch.state import unchanged_tensors

DERIVATIVES = (
    "The model takes derivatives within itself (torch.func.grad, vjp, jacrev or such), which torch.export does not "
    "write out. Compile what torch.fx.experimental.proxy_tensor.make_fx(model)(*example_args) returns, or call the "
    'model through torch.compile(backend="tkc").'
)
"""What is said of a model that PyTorch cannot export or trace anew because of such."""


def of_their_own(examples: Any) -> Any:
    """``examples`` in which no two tensors share memory: the tracer would take two inputs for one, in every call."""
    tensors = [leaf for leaf in pytree.tree_leaves(examples) if _is_plain(leaf)]
    shared = [tensor for tensor in tensors if sum(map(partial(_share_memory, tensor), tensors)) > 1]
    if not shared:
        return examples

    def apart(leaf: Any) -> Any:
        return leaf.detach().clone() if any(leaf is tensor for tensor in shared) else leaf

    return pytree.tree_map(apart, examples)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    """``model`` as ``torch.export`` exports it; :class:`UnsupportedModelError` if it cannot."""
    forget_captured()
    try:
        # Without gradients, so that a model's own torch.no_grad() blocks do not become separate subgraphs.
        with torch.no_grad(), unchanged_tensors(), recurrent_operators_of_any_length():
            return torch.export.export(
                model,
                args,
                kwargs,
                dynamic_shapes=dynamic_shapes,
                strict=False,
                # CUDA's attention kernels compare strides of symbolic sizes: true for all of them, but PyTorch's
                # prover gives up and would refuse the model.
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        if _comes_from_derivatives(error):
            raise UnsupportedModelError(f"{DERIVATIVES} ({str(error).splitlines()[0]})") from error
        cause = f"torch.export cannot export {type(model).__name__}"
        if reason := script_refusal(model) or operator_refusal(error):
            raise UnsupportedModelError(f"{cause}: {reason}") from error
        raise UnsupportedModelError(
            f"{cause}: {error}\n"
            "The example arguments must fit its forward, and its control flow must not depend on data "
            "(see the PyTorch documentation of torch.export)."
        ) from error


def _comes_from_derivatives(error: BaseException) -> bool:
    """Whether ``torch.func`` was computing derivatives when PyTorch raised ``error`` on its own."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any("eager_transforms" in file for file in files) and "/torch/" in files[-1]
