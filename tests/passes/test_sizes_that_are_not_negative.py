"""Sizes are not negative, which makes the forms of one that TVM infers the same."""

from __future__ import annotations

from tvm import tirx
from tvm_ffi import structural_equal

from tkc.passes.lowering.simple_sizes import simplest


def test_a_maximum_with_zero_is_the_size() -> None:
    """As a slice has it; other maxima stay."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    zero = tirx.const(0, "int64")
    (size,) = simplest([tirx.max(n, tirx.max(n, tirx.max(n, zero)))]) or [None]
    assert size is not None and size.same_as(n)
    (other,) = simplest([tirx.max(n, tirx.max(m, zero))]) or [None]
    assert other is not None and structural_equal(other, tirx.max(n, m))
    assert simplest([n, m]) is None
