"""Copies of tensors in a graph."""

from __future__ import annotations

from tvm import relax, te


def copy_of(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Call:
    """A ``call_tir`` that copies the tensor ``value``, by a function that is added to ``builder``'s module.

    It is for what comes after ``RewriteDataflowReshape``, which takes copies for views.
    """
    return builder.call_te(_copy, value, primfunc_name_hint="copy")


def _copy(source: te.Tensor) -> te.Tensor:
    return te.compute(source.shape, lambda *index: source[index], name="copy")
