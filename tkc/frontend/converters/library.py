"""Operators that Apache TVM's own importer converts: convolutions, pooling, resampling."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tkc.frontend.converters.emitter import Converter, Emitter


def _imported(name: str) -> Converter:
    """The importer's converter of ``name``, which reads the node itself.

    It is given 16-bit tensors as float32: it makes float32 results of 16-bit products, and sums averages in 16 bits.
    """

    def convert(b: Emitter, *_: Any) -> Any:
        importer = b.once("library", ExportedProgramImporter)
        importer.block_builder = b.builder
        importer.env = b.env | {node: b.wide(b.env[node]) for node in b.node.all_input_nodes if _is_tensor(b.env[node])}
        return importer.convert_map[name](b.node)

    return convert


def _is_tensor(value: Any) -> bool:
    return isinstance(value, relax.Expr) and isinstance(value.struct_info, relax.TensorStructInfo)


_NAMES = (
    "convolution.default",
    "conv1d.default",
    "conv2d.default",
    "_adaptive_avg_pool1d.default",
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
    "adaptive_avg_pool1d.default",
    "avg_pool1d.default",
    "avg_pool2d.default",
    "avg_pool3d.default",
    "max_pool2d_with_indices.default",
    "max_pool3d_with_indices.default",
    "pixel_shuffle.default",
    "upsample_bilinear2d.vec",
    "upsample_nearest2d.vec",
    "upsample_bicubic2d.vec",
    "grid_sampler_2d.default",
)

CONVERTERS: dict[str, Converter] = {f"aten.{name}": _imported(name) for name in _NAMES}
