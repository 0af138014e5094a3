"""Between a graph's tensors and a kernel's: rows by columns on the way in, the old shape and dtype on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from tvm import arith, relax, tirx

from tkc.passes.graph.bindings import dtype, shape
from tkc.passes.graph.found import Found, KernelCall, Restore


def product(sizes: Sequence[tirx.PrimExpr]) -> tirx.PrimExpr:
    """The product of sizes, in its simplest form; 1 of none."""
    return arith.Analyzer().simplify(reduce(mul, sizes, tirx.IntImm("int64", 1)))


def as_matrix(expr: relax.Expr) -> relax.Expr:
    """``expr [..., columns]`` as ``[rows, columns]``; itself if it has two dimensions already."""
    dims = shape(expr)
    return expr if len(dims) == 2 else relax.op.reshape(expr, (product(dims[:-1]), dims[-1]))


def as_vector(expr: relax.Expr) -> relax.Expr:
    """``expr [1, ..., columns]`` as ``[columns]``."""
    return expr if expr.struct_info.ndim == 1 else relax.op.reshape(expr, (shape(expr)[-1],))


def as_dtype(expr: relax.Expr, name: str) -> relax.Expr:
    """``expr`` in the dtype ``name``; itself if it is that already."""
    return expr if dtype(expr) == name else relax.op.astype(expr, name)


def restored(index: int, var: relax.Var) -> Restore:
    """Output ``index`` of a kernel, in the shape and dtype of ``var``, which it replaces."""

    def restore(outputs: Sequence[relax.Expr]) -> relax.Expr:
        value, analyzer, dims = outputs[index], arith.Analyzer(), shape(var)
        found = shape(value)
        if len(found) != len(dims) or not all(map(analyzer.can_prove_equal, found, dims)):
            value = relax.op.reshape(value, dims)
        return value if dtype(outputs[index]) == dtype(var) else relax.op.astype(value, dtype(var))

    return restore


def kernel_call(found: Found, inputs: Sequence[relax.Expr] | None = None) -> KernelCall:
    """The call for ``found`` of ``inputs`` (by default its own); variables get outputs in their own shape and dtype."""
    replaces = {var: restored(index, var) for var, index in found.replaces.items()}
    return KernelCall(
        found.parameters, tuple(found.inputs.values() if inputs is None else inputs), replaces, found.sizes
    )
