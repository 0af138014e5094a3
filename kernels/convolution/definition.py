"""The convolution with epilogue in TileLang, for tensor cores and for the CPU."""

from dataclasses import replace
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc, truncdiv, truncmod

from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.convolution.spec import Convolution
from tkc.kernels.hopper.windows import Windows
from tkc.kernels.matmul import persistent
from tkc.kernels.matmul.epilogue import activated, column_scale, normalized
from tkc.kernels.matmul.register_tile import Product, register_tile
from tkc.kernels.matmul.spec import OPTIONAL_TENSORS
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: ConvolutionParameters, configuration: Tiling, target: Target) -> PrimFunc:
    """The kernel over ``image``, ``weight``, ``bias`` and ``residual`` where there are such, and ``out``."""
    p = parameters
    windows = Windows(p.channels, p.depth, p.dtype, p.extents, p.strides, p.dilation, p.before, p.after, p.lines)
    if not target.is_cuda:
        return _cpu(p, windows, replace(configuration, block_n=min(configuration.block_n, p.n)))
    types = tensor_types(Convolution(), p, OPTIONAL_TENSORS)
    operands = SimpleNamespace(**{**vars(types), "a": types.image, "b": types.weight})
    ending = persistent.Ending(p.batch_norm, p.activation_is_last)
    return persistent.define(p.product, configuration, operands, windows, ending)


def _cpu(p: ConvolutionParameters, windows: Windows, c: Tiling) -> PrimFunc:
    types = tensor_types(Convolution(), p, OPTIONAL_TENSORS, storage_dtype)

    def products(image: Buffer, rows: list[PrimExpr], weight: Buffer, column: PrimExpr) -> Product:
        firsts = [windows.first_pixel(image, row) for row in rows]

        def product(i: int, depth: PrimExpr, j: PrimExpr) -> PrimExpr:
            entry, top, left = firsts[i]
            pixel, channel = truncdiv(depth, p.depth), truncmod(depth, p.depth)
            y = top + truncdiv(pixel, p.extents[1]) * p.dilation[0]
            x = left + truncmod(pixel, p.extents[1]) * p.dilation[1]
            height, width = windows.pixels(image)
            inside = T.And(T.And(y >= 0, y < height), T.And(T.And(x >= 0, x < width), channel < p.channels))
            y, x = (T.max(T.min(at, size - 1), 0) for at, size in ((y, height), (x, width)))
            channel = T.min(channel, p.channels - 1)
            read = image[entry, y, x, channel] if p.lines is None else image[entry, y, x * p.lines[0] + channel]
            found = T.Select(inside, to_float32(read, p.dtype), T.float32(0))
            return found * to_float32(weight[column + j, depth], p.dtype)

        return product

    @T.prim_func
    def convolution(
        image: types.image,
        weight: types.weight,
        bias: types.bias,
        mean: types.mean,
        variance: types.variance,
        scale: types.scale,
        shift: types.shift,
        residual: types.residual,
        out: types.out,
    ) -> None:
        m = out.shape[0]
        with T.Kernel(T.ceildiv(p.n, c.block_n), T.ceildiv(m, c.block_m)) as (column_tile, row_tile):
            # The last tiles overlap the ones before, or repeat the last row: that stores equal values twice.
            column = T.min(column_tile * c.block_n, p.n - c.block_n)
            rows = [T.min(row_tile * c.block_m + i, m - 1) for i in range(c.block_m)]
            sums = register_tile(c, p.product.k, products(image, rows, weight, column))
            for row, row_sums in zip(rows, sums, strict=True):
                for j in T.serial(c.block_n):
                    x = row_sums[j, 0] + to_float32(bias[column + j], p.dtype) if p.bias else row_sums[j, 0]
                    if p.batch_norm is not None:
                        center, spread, factor, offset = (
                            to_float32(vector[column + j], p.batch_norm.dtype)
                            for vector in (mean, variance, scale, shift)
                        )
                        x = normalized(x, center, column_scale(p.batch_norm, spread, factor), offset)
                    y = x if p.activation_is_last else activated(x, p.activation, exact=True)
                    y = y + to_float32(residual[row, column + j], p.stored_dtype) if p.residual else y
                    y = activated(y, p.activation, exact=True) if p.activation_is_last else y
                    out[row, column + j] = from_float32(y, p.stored_dtype)

    return convolution
