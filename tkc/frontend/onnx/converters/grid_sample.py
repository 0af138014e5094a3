"""GridSample: an image at the points of a grid."""

from __future__ import annotations

from tvm import relax

from tkc.frontend.grid_sampling import Mode, Padding, emit_sampled
from tkc.frontend.onnx.converters.shared import EXACT, Converted, Converter, require_pixels
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError

_MODES = {
    **dict.fromkeys(("linear", "bilinear"), Mode.LINEAR),
    "nearest": Mode.NEAREST,
    **dict.fromkeys(("cubic", "bicubic"), Mode.CUBIC),
}
_PADDINGS = {"zeros": Padding.ZEROS, "border": Padding.BORDER, "reflection": Padding.REFLECTION}


def _grid_sample(node: Node) -> Converted:
    """The elements at a grid's points, in float32 of narrower floats. NaN in the grid is as PyTorch has it."""
    dtype, name, outside = node.dtype(0), node.attribute("mode", "linear"), node.attribute("padding_mode", "zeros")
    if "float" not in dtype:
        raise ConversionError(f"samples an image of {dtype}; cast it to float32")
    if name not in _MODES or outside not in _PADDINGS:
        raise ConversionError(
            f"has mode {name!r} and padding_mode {outside!r}, which ONNX does not define; correct the model"
        )
    node.require_shape(1, [node.shape(0)[0], *node.shape(1)[1:-1], node.rank(0) - 2])
    require_pixels(node)
    inner, aligned = dtype if dtype in EXACT else "float32", bool(node.attribute("align_corners", 0))
    image, grid = (node.emit(relax.op.astype(node.tensor(i), inner)) for i in range(2))
    result = emit_sampled(node.builder, image, grid, _MODES[name], _PADDINGS[outside], aligned)
    return relax.op.astype(result, dtype)


CONVERTERS: dict[str, Converter] = {"GridSample": _grid_sample}
