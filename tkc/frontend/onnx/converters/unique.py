"""ONNX's ``Unique``, whose results have as many elements as the data says."""

from __future__ import annotations

from tvm import relax, tirx

from tkc.frontend.identifiers import identifier
from tkc.frontend.onnx.converters.shared import Converted, Converter
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError

_WHY = "has as many results as the data says, for which TKC has no code"


def _unique(node: Node) -> Converted:
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
    arguments = [{"tensor": 0}, axis, bool(node.attribute("sorted", 1))]
    found = node.torch_calls.emit(
        node.builder, node.proto, "tkc::unique", [x], arguments, {}, relax.TupleStructInfo(of_any_size), _WHY
    )
    node.algebra.declare(count, minimum=0)
    results = [node.emit(relax.TupleGetItem(found, i)) for i in range(len(node.proto.output))]
    return relax.Tuple(
        [
            node.builder.match_cast(result, relax.TensorStructInfo(shape, dtype))
            for result, shape, dtype in zip(results, shapes, dtypes, strict=False)
        ]
    )


CONVERTERS: dict[str, Converter] = {"Unique": _unique}
