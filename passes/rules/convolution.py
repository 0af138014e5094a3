"""Convolution of 16-bit images, and its epilogue, to the ``convolution`` kernel.

What :mod:`tkc.passes.canonical.convolution_products` made a product of gathered windows, where the kernel can load
these from the image itself. Its epilogue is the matmul's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd, prod

from tvm import relax
from tvm.relax import op

from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.matmul.parameters import BatchNorm
from tkc.kernels.matmul.tiling import TMA_ALIGNMENT
from tkc.passes.graph.bindings import dtype, shape, static
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import as_matrix, as_vector, kernel_call, product
from tkc.passes.recognizers.convolution import GatheredWindows, gathered_windows
from tkc.passes.recognizers.matmul_epilogue import ROOTS, epilogue_of, matmul_with_epilogue, normalized_product
from tkc.passes.rules.rule import Rule, Site, operators

_SIXTEEN_BITS = ("float16", "bfloat16")

_ALIGNMENT = TMA_ALIGNMENT // 2
"""Of what TMA loads, in elements."""

_MOST_ZEROS = 3
"""How many times as deep the product may become by zeros beside the channels: so many loads take as long as to gather
windows, write and load them."""


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    normalized = normalized_product(graph, var) if dtype(var) in _SIXTEEN_BITS else None
    found = matmul_with_epilogue(graph, var) if normalized is None else epilogue_of(graph, normalized.fused, var)
    if not isinstance(found, Found) or found.parameters.weight_layout != "nk":
        return None
    windows = gathered_windows(graph, found.inputs["a"])
    if windows is None and normalized is None:
        return None
    p = found.parameters
    if not {p.dtype, p.stored_dtype} <= set(_SIXTEEN_BITS):
        return Refusal(f"it makes {p.stored_dtype} of {p.dtype}, and the kernel loads and stores 16 bits")
    operands = _operands(windows, found.inputs)
    if isinstance(operands, Refusal):
        return operands
    geometry, image, weight = operands
    norm = None if normalized is None else normalized.norm
    parameters = replace(
        geometry,
        dtype=p.dtype,
        out_dtype=p.out_dtype,
        bias=p.bias,
        batch_norm=None if norm is None else BatchNorm(norm.dtype, norm.epsilon),
        activation=p.activation,
        activation_is_last=normalized is not None and normalized.is_last,
        residual=p.residual,
    )
    inputs = {**found.inputs, "image": image, "weight": weight}
    if norm is not None:
        inputs |= dict(zip(BatchNorm.VECTORS, norm.vectors, strict=True))
    rows = product(shape(found.inputs["a"])[:-1])
    used = {name: inputs[name] for name in _LAYOUTS if name in inputs}
    return Found(parameters, used, found.replaces, found.consumed, {"m": rows})


def _operands(windows: GatheredWindows | None, inputs: Mapping[str, relax.Expr]) -> _Operands | Refusal:
    """The geometry, the image and the weight; rows that are no windows are pixels of one line."""
    if windows is not None:
        return (_of_pixels if windows.channels_last else _of_lines)(windows, inputs["weight"])
    rows = inputs["a"]
    n, channels = (int(size) for size in shape(inputs["weight"]))
    line = op.reshape(rows, (1, 1, product(shape(rows)[:-1]), channels))
    return ConvolutionParameters(n, channels, (1, 1), "bfloat16"), line, inputs["weight"]


_Operands = tuple[ConvolutionParameters, relax.Expr, relax.Expr]


def _of_pixels(windows: GatheredWindows, weight: relax.Expr) -> _Operands | Refusal:
    """The kernel's geometry, image and weight where each pixel can be loaded by itself."""
    n, channels = int(shape(weight)[0]), int(windows.sizes[-1])
    p = ConvolutionParameters(
        n,
        channels,
        windows.extents,
        "bfloat16",
        windows.strides,
        windows.dilation,
        windows.before,
        windows.after,
    )
    if p.depth == channels:
        return p, windows.image, weight
    pixels = prod(p.extents)
    padded = op.nn.pad(op.reshape(weight, (n, pixels, channels)), [0, 0, 0, 0, 0, p.depth - channels])
    return p, windows.image, op.reshape(padded, (n, pixels * p.depth))


def _of_lines(windows: GatheredWindows, weight: relax.Expr) -> _Operands | Refusal:
    """The same where a pixel has too few channels, and a window's line is loaded as one pixel."""
    (vertical, horizontal), (_, stride) = windows.extents, windows.strides
    image = windows.image
    own, width = static(windows.sizes[1]), static(windows.sizes[3])
    if own is None or width is None:
        return Refusal("its image has few channels, and lines whose length only calls know")
    if windows.dilation[1] != 1:
        return Refusal("its image has few channels, and the pixels of a window's line are no neighbors")
    n, columns = (int(size) for size in shape(weight))
    step = _ALIGNMENT // gcd(_ALIGNMENT, stride)
    channels = -(-own // step) * step
    before, after = windows.before[1], windows.after[1]
    count = (width + before + after - horizontal) // stride + 1
    filled = width + before + after
    filled += -filled % (_ALIGNMENT // gcd(_ALIGNMENT, channels))
    p = ConvolutionParameters(
        n,
        horizontal * channels,
        (vertical, 1),
        "bfloat16",
        (windows.strides[0], 1),
        (windows.dilation[0], 1),
        (windows.before[0], 0),
        (windows.after[0], 0),
        lines=(stride * channels, count),
    )
    if p.product.k > _MOST_ZEROS * columns:
        return Refusal(f"a window's lines have {own} channels, and as much again in zeros would be loaded")
    last = op.permute_dims(image, [0, 2, 3, 1])
    lines = op.nn.pad(last, [0, 0, 0, 0, before, filled - width - before, 0, channels - own])
    lines = op.reshape(lines, (windows.sizes[0], windows.sizes[2], filled * channels))
    used = own * vertical * horizontal
    if used != columns:
        weight = op.strided_slice(weight, [1], [0], [used], assume_inbound=True)
    by_pixels = op.permute_dims(op.reshape(weight, (n, own, vertical, horizontal)), [0, 2, 3, 1])
    by_lines = op.reshape(
        op.nn.pad(by_pixels, [0, 0, 0, 0, 0, 0, 0, channels - own]), (n, vertical, horizontal * channels)
    )
    padded = op.nn.pad(by_lines, [0, 0, 0, 0, 0, p.depth - p.channels])
    return p, lines, op.reshape(padded, (n, vertical * p.depth))


_LAYOUTS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "image": lambda image: image,
    "weight": lambda weight: weight,
    "bias": as_vector,
    **dict.fromkeys(BatchNorm.VECTORS, lambda vector: vector),
    "residual": as_matrix,
}


def _call(found: Found) -> KernelCall:
    return kernel_call(found, [_LAYOUTS[name](tensor) for name, tensor in found.inputs.items()])


CONVOLUTION = Rule(
    name="convolution",
    kernel="convolution",
    roots=operators(*ROOTS),
    recognize=_recognize,
    call=_call,
    before=("matmul",),
)
