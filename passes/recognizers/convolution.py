"""The windows of a convolution, where a matrix product reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tvm import relax, tirx

from tkc.contracts import CHANNELS_LAST, WINDOWS
from tkc.kernels.convolution.parameters import of_two_axes
from tkc.passes.graph.bindings import Graph, shape

Pair = tuple[int, int]


@dataclass(frozen=True)
class GatheredWindows:
    """The windows of ``image``, gathered as rows.

    The image is ``[batch, height, width, channels]``, and a row ``[vertical, horizontal, channels]``. Where they are
    not ``channels_last``, these are ``[batch, channels, height, width]`` and ``[channels, vertical, horizontal]``, with
    zeros behind. ``sizes`` are the image's, whose height is 1 where it has one axis. The numbers of a pair are of the
    two axes of pixels.
    """

    image: relax.Expr
    sizes: tuple[tirx.PrimExpr, ...]
    channels_last: bool
    extents: Pair
    strides: Pair
    dilation: Pair
    before: Pair
    after: Pair


def gathered_windows(graph: Graph, rows: relax.Expr) -> GatheredWindows | None:
    """The windows that ``rows [..., columns]`` are; ``None`` for others, and for those of more than two axes."""
    reshaped = graph.call(rows, "relax.reshape")
    call = graph.call(rows if reshaped is None else reshaped.args[0], "relax.call_tir")
    if call is None or WINDOWS not in (attributes := graph.module[call.args[0]].attrs or {}):
        return None
    said = json.loads(str(attributes[WINDOWS]))
    (image,) = call.args[1]
    axes, last = len(said["extents"]), bool(said[CHANNELS_LAST])
    if axes > 2:
        return None
    sizes = list(shape(image))
    if axes == 1:
        sizes.insert(1 if last else 2, tirx.IntImm("int64", 1))
        image = relax.op.reshape(image, sizes)
    return GatheredWindows(image, tuple(sizes), last, **of_two_axes(said))
