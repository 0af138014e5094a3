"""ONNX's ``Unique``, whose results have as many elements as the data says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm import relax, tirx

from tkc.frontend.identifiers import identifier
from tkc.frontend.onnx.converters.shared import Converted, Converter
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError

Call: TypeAlias = "Callable[[relax.Expr, int | None, bool, relax.StructInfo], relax.Expr]"
"""What computes a Unique: of a tensor, the axis, whether results are sorted, and their types."""

_WHY = "has as many results as the data says, for which TKC has no code"


def unique_of(node: Node, call: Call) -> Converted:
    """The results of a Unique that ``call`` computes of its input, the axis and whether they are sorted."""
    x, axis = node.tensor(0), node.attribute("axis")
    if x.struct_info.dtype == "bfloat16":
        raise ConversionError("takes bfloat16, which NumPy cannot compare; cast it to float32")
    sizes = node.shape(0)
    count = tirx.Var(identifier(f"{node.proto.output[0]}_values", ()), "int64")
    shapes = [[count], [count], [node.algebra.product(sizes)], [count]]
    if axis is not None:
        if not -len(sizes) <= axis < len(sizes):
            raise ConversionError(f"has the axis {axis} of a tensor of {len(sizes)} dimensions; correct the model")
        axis %= len(sizes)
        shapes[0] = [*sizes[:axis], count, *sizes[axis + 1 :]]
        shapes[2] = [sizes[axis]]
    dtypes = (x.struct_info.dtype, "int64", "int64", "int64")
    of_any_size = [
        relax.TensorStructInfo(dtype=dtype, ndim=len(sizes)) for dtype, sizes in zip(dtypes, shapes, strict=True)
    ]
    found = call(x, axis, bool(node.attribute("sorted", 1)), relax.TupleStructInfo(of_any_size))
    node.algebra.declare(count, minimum=0)
    results = [node.emit(relax.TupleGetItem(found, i)) for i in range(len(node.proto.output))]
    return relax.Tuple(
        [
            node.builder.match_cast(result, relax.TensorStructInfo(shape, dtype))
            for result, shape, dtype in zip(results, shapes, dtypes, strict=False)
        ]
    )


def _unique(node: Node) -> Converted:
    def call(x: relax.Expr, axis: int | None, in_order: bool, info: relax.StructInfo) -> relax.Expr:
        arguments = [{"tensor": 0}, axis, in_order]
        return node.torch_calls.emit(node.builder, node.proto, "tkc::unique", [x], arguments, {}, info, _WHY)

    return unique_of(node, call)


CONVERTERS: dict[str, Converter] = {"Unique": _unique}
