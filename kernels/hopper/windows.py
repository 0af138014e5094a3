"""TMA loads of the windows that a convolution slides over an image, as rows of a matrix product.

A load takes as many windows as a tile has rows, in the order of the output, across its rows and its images, and of each
window one pixel. What lies outside the image is zero. (CUDA driver API, ``cuTensorMapEncodeIm2col``; PTX ISA, "Tensor
im2col modes".)
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx
from tvm.tirx import Buffer, PrimExpr, truncdiv, truncmod

from tkc.kernels.hopper.registers import WARPGROUP

_TYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLES = {64: 2, 128: 3}  # CUtensorMapSwizzle, by the bytes of a row in shared memory
_ITEM_BYTES = 2
_NO_INTERLEAVE = 0
_PROMOTED_TO_128_BYTES = 2
_ZEROS_OUTSIDE = 0
_EVICTED_NORMALLY = 0


@dataclass(frozen=True)
class Windows:
    """Of images ``[batch, height, width, channels]``, or of ``lines`` ``[batch, height, elements]``.

    The numbers of each pair are of the vertical, then of the horizontal axis, as in
    :class:`tkc.kernels.convolution.parameters.ConvolutionParameters`. ``depth`` is what is loaded of each pixel.
    """

    channels: int
    depth: int
    dtype: str
    extents: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    lines: tuple[int, int] | None = None

    def pixels(self, image: Buffer) -> tuple[PrimExpr, PrimExpr]:
        """How many there are along the axes of an image."""
        return image.shape[1], image.shape[2] if self.lines is None else tirx.IntImm("int32", self.lines[1])

    def counts(self, image: Buffer) -> tuple[PrimExpr, PrimExpr]:
        """How many windows there are along the axes of an image."""
        axes = zip(self.pixels(image), self.extents, self.strides, self.dilation, self.before, self.after, strict=True)
        rows, columns = (
            truncdiv(size + before + after - dilation * (extent - 1) - 1, stride) + 1
            for size, extent, stride, dilation, before, after in axes
        )
        return rows, columns

    def first_pixel(self, image: Buffer, row: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The batch's entry, and vertically and horizontally the first pixel, of the window of that number."""
        rows, columns = self.counts(image)
        line, column = truncdiv(row, columns), truncmod(row, columns)
        entry, line = truncdiv(line, rows), truncmod(line, rows)
        return entry, line * self.strides[0] - self.before[0], column * self.strides[1] - self.before[1]

    def tensor_map(self, image: Buffer, windows: int, channels: int) -> PrimExpr:
        """Of loads of one pixel of so many ``windows``, and of so many of its ``channels``."""
        batch, height, width = (T.cast(size, "int64") for size in image.shape[:3])
        step, columns = (self.channels, width) if self.lines is None else self.lines
        line = width * self.channels if self.lines is None else width
        sizes = (self.channels, columns, height, batch)
        steps = [size * _ITEM_BYTES for size in (1, step, line, height * line)]
        lower = [-zeros for zeros in reversed(self.before)]
        spans = [dilation * (extent - 1) for dilation, extent in zip(self.dilation, self.extents, strict=True)]
        upper = [zeros - span for zeros, span in zip(reversed(self.after), reversed(spans), strict=True)]
        return T.call_intrin(
            "handle",
            tirx.op.Op.get("tl.create_tma_im2col_descriptor"),
            _TYPES[self.dtype],
            len(sizes),
            image.data,
            *(T.cast(size, "int64") for size in (*sizes, *steps)),
            *(1, self.strides[1], self.strides[0], 1),
            *lower,
            *upper,
            windows,
            channels,
            _NO_INTERLEAVE,
            _SWIZZLES[channels * _ITEM_BYTES],
            _PROMOTED_TO_128_BYTES,
            _ZEROS_OUTSIDE,
        )


@T.macro
def load_windows(
    w: Windows,
    image: Buffer,
    tile: Buffer,
    stage: PrimExpr,
    full: Buffer,
    first: tuple[PrimExpr, PrimExpr, PrimExpr],
    step: PrimExpr,
) -> None:
    """Producer: the ``step``-th slice of the windows from the ``first`` one on, to ``tile[stage]``.

    ``tile`` is ``[stages, windows, channels]``. Slices are ordered as the weight: by pixels of the window, then by
    channels. All threads of a warpgroup call this, and one loads; ``full[stage]`` counts the bytes.
    """
    windows, channels = (int(size) for size in tile.shape[1:])
    slices = -(-w.depth // channels)
    pixel, part = truncdiv(step, slices), truncmod(step, slices)
    entry, top, left = first
    if T.shuffle_elect(WARPGROUP):
        T.mbarrier_expect_tx(full[stage], windows * channels * _ITEM_BYTES)
        T.evaluate(
            T.call_intrin(
                "handle",
                tirx.op.Op.get("tl.tma_load_im2col"),
                w.tensor_map(image, windows, channels),
                full[stage],
                T.address_of(tile[stage, 0, 0]),
                part * channels,
                left,
                top,
                entry,
                truncmod(pixel, w.extents[1]) * w.dilation[1],
                truncdiv(pixel, w.extents[1]) * w.dilation[0],
                _EVICTED_NORMALLY,
            )
        )
