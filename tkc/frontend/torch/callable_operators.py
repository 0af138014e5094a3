"""Which operators of a PyTorch program a compiled model can call in PyTorch, in place."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload

from tkc.frontend.torch.mutation import functional_name

_OF_PYTORCH = frozenset({"aten", "prims", "prim", "quantized", "mkldnn", "inductor", "higher_order", "tkc"})

_PARTS_OF_SPARSE = frozenset({"values", "indices", "nnz", "crow_indices", "col_indices", "ccol_indices", "row_indices"})

_SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})

READS_ELEMENT = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that read a number out of a tensor."""


def can_be_called(node: fx.Node) -> bool:
    """Whether the node's operator can be called in place: it takes what can be described, and returns tensors of real
    numbers, or integers. What it writes into is copied, as in functional form (:func:`written_by`)."""
    called = written_by(node) or functional_operator(node)
    if called is None or (called._schema.is_mutable and not _can_be_copied(node)) or counts_values(node):
        return False
    results = node.meta.get("val")
    if is_sparse(results) and node.op == "call_function":
        return functional_operator(node) is not None and all(map(_can_be_operand, node.all_input_nodes))
    leaves = results if isinstance(results, list | tuple) else [results]
    if not any(map(_is_result, leaves)) or not all(leaf is None or _is_result(leaf) for leaf in leaves):
        return False  # without a result nothing says when it is called: it tests for errors, or prints
    return all(map(_can_be_operand, node.all_input_nodes))


def _can_be_operand(node: fx.Node) -> bool:
    """Whether what the node has can be handed to an operator: real tensors, numbers, and sparse tensors of weights, or
    of operators that can be called, which are made where they are read."""
    value = node.meta.get("val")
    if is_sparse(value) and not value.is_complex():
        return node.op != "call_function" or can_be_called(node)
    return _is_real_tensor(value) or not isinstance(value, torch.Tensor)


def counts_values(node: fx.Node) -> bool:
    """Whether the node's result is as large as the number of a sparse tensor's values, which PyTorch exports as 0."""
    if not any(is_sparse(given.meta.get("val")) for given in node.all_input_nodes):
        return False
    return str(node.target).split(".")[1].lstrip("_").removesuffix("_copy") in _PARTS_OF_SPARSE


def is_sparse(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a sparse tensor, of which generated code has none."""
    return isinstance(value, torch.Tensor) and value.layout in _SPARSE


def makes_or_takes_sparse(node: fx.Node) -> bool:
    """Whether the node's operator returns a sparse tensor, or takes one that another returns. Weights are dense."""
    made = [node, *(given for given in node.all_input_nodes if given.op == "call_function")]
    return any(is_sparse(each.meta.get("val")) for each in made)


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


def is_random(node: fx.Node) -> bool:
    """Whether the node's operator draws random numbers."""
    return isinstance(node.target, OpOverload) and draws_numbers(node.target)


def draws_numbers(called: Any) -> bool:
    """Whether an operator draws random numbers, as its tags say; what is no overload of one has none."""
    return torch.Tag.nondeterministic_seeded in getattr(called, "tags", ())


def of_another_library(called: OpOverload) -> bool:
    """Whether the operator is neither PyTorch's nor TKC's: what it returns, its author's fake function says."""
    return called.namespace not in _OF_PYTORCH


def returns_number(node: fx.Node) -> bool:
    """Whether the node calls an operator of another library that returns an integer, which only the call knows."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt) and isinstance(node.target, OpOverload) and of_another_library(node.target)


def _is_result(value: Any) -> bool:
    return _is_real_tensor(value) or isinstance(value, torch.SymInt)


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
