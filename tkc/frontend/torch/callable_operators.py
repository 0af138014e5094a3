"""Which operators of a PyTorch program a compiled model can call in PyTorch, in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.frontend.torch.mutation import functional_name

READS_ELEMENT = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that read a number out of a tensor."""


def can_be_called(node: fx.Node) -> bool:
    """Whether the node's operator can be called in place: it takes what can be described, and returns tensors of real
    numbers. What it writes into is copied, as in functional form (:func:`written_by`)."""
    called = written_by(node) or functional_operator(node)
    if called is None or (called._schema.is_mutable and not _can_be_copied(node)):
        return False
    results = node.meta.get("val")
    leaves = results if isinstance(results, list | tuple) else [results]
    if not any(map(_is_real_tensor, leaves)) or not all(leaf is None or _is_real_tensor(leaf) for leaf in leaves):
        return False  # without a result nothing says when it is called: it tests for errors, or prints
    inputs = [given.meta.get("val") for given in node.all_input_nodes]
    return all(_is_real_tensor(part) or not isinstance(part, torch.Tensor) for part in inputs)


def written_by(node: fx.Node) -> OpOverload | None:
    """The operator whose writes into its arguments the node returns as new tensors: ``auto_functionalized_v2``, which
    PyTorch's functional form has for operators of other libraries."""
    if node.target is not torch.ops.higher_order.auto_functionalized_v2:
        return None
    operator = node.args[0]
    return operator if isinstance(operator, OpOverload) else None


def _can_be_copied(node: fx.Node) -> bool:
    """Whether what the operator writes into are whole tensors or views that can be made of copies of them."""
    if written_by(node) is None:
        return False
    bases: Any = node.kwargs["_all_bases"]
    # Strides are those of PyTorch's tensors, which in compiled models are contiguous.
    strided = any(name.endswith("_storage_offset") for name in node.kwargs)
    return not strided or all(base.meta["val"].is_contiguous() for base in bases)


def reads_float(node: fx.Node) -> bool:
    """Whether the node reads a float out of a tensor."""
    return isinstance(node.meta.get("val"), torch.SymFloat) and str(node.target) in READS_ELEMENT


def _is_real_tensor(value: Any) -> bool:
    # What the graph holds is dense and of the default device; other kinds TVM has no tensors of.
    return isinstance(value, torch.Tensor) and not value.is_complex() and value.layout == torch.strided


def functional_operator(node: fx.Node) -> OpOverload | None:
    """The operator that computes what the node's does, and writes into nothing; ``None`` where PyTorch has none."""
    if not isinstance(node.target, OpOverload):
        return None
    name = functional_name(node)
    if name == str(node.target):
        return node.target
    namespace, base, overload = name.split(".", 2)
    found = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
    return found if isinstance(found, OpOverload) else None
