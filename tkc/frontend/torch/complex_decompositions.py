"""How each operator that makes or takes complex numbers becomes operators on real and imaginary parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.complex_operators import OF_EACH_PART, complex_makers, of_each_part, on_parts
from tkc.frontend.torch.decompositions import decompositions
from tkc.frontend.torch.pair_calls import on_pairs

aten = torch.ops.aten

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def is_linear_algebra(operator: torch._ops.OpOverload) -> bool:
    """Whether ``operator`` is one of ``torch.linalg`` that is more than arithmetic."""
    return operator.name().startswith("aten::linalg_") and "norm" not in operator.name()


@contextmanager
def complex_decompositions(*, fallback: bool) -> Iterator[dict[torch._ops.OpOverload, Callable[..., Any]]]:
    """Decompositions of the operators that make complex tensors of real ones, and meanwhile of those that read them.

    What they make is PyTorch's tensor of a real and an imaginary part, so that each operator that reads one while a
    program is traced becomes operators on these parts: by PyTorch's own rule, by one of :func:`on_parts`, or, with
    ``fallback``, as a call of the operator on pairs. Raises :class:`UnsupportedModelError` for one that has none.
    """
    from torch._subclasses.complex_tensor import ComplexTensor  # which registers some hundred operators
    from torch._subclasses.complex_tensor._ops import common

    from tkc.runtime import fourier  # noqa: F401, which registers the operators that the transforms call

    own, of_arithmetic = on_parts(ComplexTensor), decompositions()
    theirs = common.lookup_complex

    def called(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        if not fallback:
            raise UnsupportedModelError(
                f"TKC cannot compile {operator} of complex tensors. Write it on real and imaginary parts, or let "
                "fallback=True call it in PyTorch."
            )
        return lambda *args, **kwargs: on_pairs(operator, ComplexTensor, args, kwargs)

    def lookup(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
        found = own.get(operator) or own.get(operator.overloadpacket) or theirs(operator, *args, **kwargs)
        name = operator.name()
        if found is None and not OF_EACH_PART.isdisjoint((operator, operator.overloadpacket)):
            return of_each_part(operator, ComplexTensor)
        if found is None and operator in _OF_ARITHMETIC:
            return of_arithmetic[operator]
        if found is None and is_linear_algebra(operator) and fallback:
            return called(operator)
        if found is None and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
            # Not by operator.decompose, which leaves whole what the graph of real numbers keeps.
            found = functools.partial(operator._op_dk, _COMPOSITE)
        gives_tensors = any("Tensor" in str(result.type) for result in operator._schema.returns)
        return called(operator) if found is None and gives_tensors else found

    common.lookup_complex = lookup  # type: ignore[assignment]  # the same parameters by another name
    try:
        # What makes complex results of real matrices; of complex ones, the lookup is asked.
        eigen = (aten.linalg_eig.default, aten.linalg_eigvals.default, aten._linalg_eigvals.default)
        makers = {
            operator: lambda x, operator=operator: NotImplemented if x.is_complex() else called(operator)(x)
            for operator in eigen
        }
        yield {**complex_makers(ComplexTensor), **makers}
    finally:
        common.lookup_complex = theirs


_OF_ARITHMETIC = frozenset({aten.addbmm.default, aten.addmv.default, aten._trilinear.default, aten.dist.default})
"""Operators whose decomposition (``decompositions.py``) holds for complex numbers, too."""
