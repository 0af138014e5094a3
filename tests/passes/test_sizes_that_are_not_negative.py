"""Sizes are not negative, which makes the forms of one that TVM infers the same."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.tirx.stmt_functor import post_order_visit
from tvm_ffi import structural_equal

from tkc.passes.lowering.simple_functions import with_simple_functions
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


def test_a_part_of_a_size_is_no_larger_than_it() -> None:
    """A slice from the middle on, written as the parts before, in and behind it, has the size that it had."""
    n, m = tirx.SizeVar("n", "int64"), tirx.SizeVar("m", "int64")
    zero, half, third = tirx.const(0, "int64"), n // 2, n // 3
    assert simplest([tirx.max(zero, half - n) + tirx.min(half, n) + n - half])[0].same_as(n)  # type: ignore[index]
    for size, expected in (
        (tirx.min(third, n), third),
        (tirx.min(n - third, n), n - third),
        (tirx.max(n * 2 - half, n), n * 2 - half),
        (tirx.max(m // 4 + n, n), m // 4 + n),
    ):
        (found,) = simplest([size]) or [None]
        assert found is not None and structural_equal(found, expected)
    signed = tirx.Var("n_signed", "int64")
    for size in (tirx.min(half, m), tirx.min(signed // 2, signed), tirx.max(n - 1, zero)):
        (found,) = simplest([size]) or [size]
        assert isinstance(found, tirx.Min | tirx.Max)


def test_a_slice_is_legalized_to_its_size() -> None:
    """Of which TVM infers ``max(n, 0)``, in the function and in what reads it."""
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorStructInfo([4, n * 2], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            part = builder.emit(relax.op.strided_slice(x, [1], [tirx.min(n, n * 2)], [n * 2], assume_inbound=True))
            result = builder.emit_output(relax.op.nn.softmax(part))
        builder.emit_func_output(result)
    module = relax.transform.LegalizeOps(with_simple_functions({}))(builder.get())
    bindings = module["main"].body.blocks[0].bindings
    assert all(structural_equal(binding.var.struct_info.shape.values[1], n) for binding in bindings)
    for binding in bindings:
        function = module[binding.value.args[0]]
        extents: list[tirx.PrimExpr] = []

        def note(node: Any, extents: list[tirx.PrimExpr] = extents) -> None:
            if isinstance(node, tirx.For):
                extents.append(node.extent)

        post_order_visit(function.body, note)
        sizes = [*extents, *(size for buffer in function.buffer_map.values() for size in buffer.shape)]
        assert not any(isinstance(size, tirx.Max) for size in sizes)
