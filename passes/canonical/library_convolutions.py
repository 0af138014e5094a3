"""Has PyTorch's library convolve on the CPU, on images whose channels stand last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import CONVOLVE, CONVOLVE_INTEGERS
from tkc.passes.graph.bindings import Slice, dtype, has_known_shape, permuted_axes, shape, static
from tkc.passes.graph.channel_sources import channel_sources
from tkc.passes.graph.channels_last import (
    LastChannels,
    channels_last,
    channels_second,
    is_convolution,
    is_transposed_convolution,
)
from tkc.passes.graph.integer_codes import Codes, codes_of, constants
from tkc.passes.graph.library_calls import counted
from tkc.passes.graph.product_call import mean_call, product_call
from tkc.passes.graph.rewriting import rewritten
from tkc.passes.graph.updates import constant_parameters

LEAST_PRODUCTS = 1 << 19
LEAST_PRODUCTS_OF_PIXELS = 1 << 24
LEAST_PRODUCTS_OF_SYMBOLIC_PIXELS = 1 << 21
LEAST_PRODUCTS_OF_TRANSPOSED = 1 << 15
"""Multiplications of a convolution, of one of single pixels, of one of as many pixels as a call has, and of a
transposed one, under which generated code is faster than a call, with the 25 µs that it takes besides. Measured on two
cores (``docs/notebook/2026-11-25.md``). A symbolic batch counts as 1, other symbolic sizes as 64."""

LEAST_CHANNELS_OF_A_PART = 8

_MOST_AXES = 4  # of images whose codes the library convolves


@tvm.transform.module_pass(opt_level=0, name="LibraryConvolutions")
class LibraryConvolutions:
    """Replaces convolutions of float32, and of 8-bit codes, of a module for the CPU by calls of PyTorch's.

    Images are ``[batch, ..., channels]`` for it, and so is what is computed between two convolutions
    (:mod:`tkc.passes.graph.channels_last`). Weights that cannot change are packed once
    (``tkc/runtime/convolutions.py``). Those of codes less their zero points are of int32 in the graph, or of float32
    where it holds every sum (``tkc/runtime/integer_products.py``).
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with calls."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.images = LastChannels(self.lookup_binding, self.builder_.emit)
        self._constants: set[relax.Var] = set()

    def visit_function_(self, function: relax.Function) -> relax.Function:
        self._constants = constant_parameters(function)
        return super().visit_function_(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if (integers := self._of_integers(call)) is not None:
            last = integers
        elif self._is_product(call):
            last = self._product(call)
        elif (mean := self._mean(call)) is not None:
            last = mean
        else:
            last = self._called(call) if _is_worth_a_call(call) else self.images.of(call)
        return call if last is None else self.images.made(last)

    def _of_integers(self, call: relax.Call) -> relax.Expr | None:
        """The convolution of codes by the library; ``None`` for others, and for those of few products."""
        if not is_convolution(call) or dtype(call) not in ("int32", "float32") or len(shape(call)) > _MOST_AXES:
            return None
        image, weight = self._image_codes(call.args[0]), codes_of(call.args[1], self.lookup_binding, axis=0)
        if image is None or weight is None or _products(call) < LEAST_PRODUCTS:
            return None
        if not constants([weight.tensor, weight.zero], self._constants) or not _is_one(image):
            return None
        zeros = [None if isinstance(each.zero, relax.Expr) else each.zero for each in (image, weight)]
        description = {
            "zeros": zeros,
            "strides": [int(step) for step in call.attrs.strides],
            "padding": [int(width) for width in call.attrs.padding],
            "dilation": [int(step) for step in call.attrs.dilation],
            "groups": int(call.attrs.groups),
            "result": dtype(call),
        }
        tensors = [each.zero for each in (image, weight) if isinstance(each.zero, relax.Expr)]
        info = relax.TensorStructInfo([shape(call)[axis] for axis in channels_last(len(shape(call)))], dtype(call))
        text = relax.StringImm(json.dumps(description))
        return relax.call_pure_packed(CONVOLVE_INTEGERS, text, image.tensor, weight.tensor, *tensors, sinfo_args=[info])

    def _image_codes(self, image: relax.Expr) -> Codes | None:
        """The codes of ``image``, with one zero point, their channels last."""
        made = self.images.call(image, "relax.permute_dims")
        if made is not None and permuted_axes(made) == channels_second(image.struct_info.ndim):
            return codes_of(made.args[0], self.lookup_binding, axis=0)
        found = codes_of(image, self.lookup_binding, axis=0)
        return found and Codes(self.images.last(found.tensor), found.zero)

    def _is_product(self, call: relax.Call) -> bool:
        """Whether the runtime convolves itself: with a weight that it packs, of all channels or of each by itself."""
        if not is_convolution(call) or any(dtype(each) != "float32" for each in (*call.args, call)):
            return False
        image, weight = call.args
        if not (isinstance(weight, relax.Constant) or weight in self._constants):
            return False
        channels, *sizes = [static(size) for size in (shape(image)[1], *shape(weight))]
        if channels is None or None in sizes or len(sizes) > 4:
            return False
        groups = int(call.attrs.groups)
        return groups == 1 or groups == channels == sizes[0]

    def _mean(self, call: relax.Call) -> relax.Expr | None:
        """The mean of each channel of an image that is there with its channels last; its axes of one, too."""
        image = self.images.of(call)
        if not isinstance(image, relax.Call) or image.op != Op.get("relax.mean") or not image.attrs.keepdims:
            return None
        last = image.args[0]
        if dtype(last) != "float32" or not has_known_shape(last) or 0 in map(static, shape(last)[1:]):
            return None
        sizes = (shape(last)[0], *[1] * (last.struct_info.ndim - 2), shape(last)[-1])
        return mean_call(last, relax.TensorStructInfo(sizes, "float32"))

    def _product(self, call: relax.Call) -> relax.Expr:
        image, weight = call.args
        sizes, axes = shape(call), len(shape(call)) - 2
        info = relax.TensorStructInfo([sizes[axis] for axis in channels_last(len(sizes))], "float32")
        image, begins = self._unpadded(image)
        steps = zip(call.attrs.strides, call.attrs.padding[:axes], begins, call.attrs.dilation, strict=True)
        depthwise = int(call.attrs.groups) > 1
        sources = [] if depthwise else self._sources(image)
        return product_call(
            sources or self.images.last(image),
            weight,
            info,
            depthwise=depthwise,
            axes=[(int(stride), int(padding) + begin, int(dilation)) for stride, padding, begin, dilation in steps],
        )

    def _sources(self, image: relax.Expr) -> list[Slice]:
        """The tensors, channels last, that ``image`` is a concatenation of, or the one that it is a slice of.

        None where it is neither, or where a part has so few channels that to move on to it takes as long as to sum it.
        """
        parts = channel_sources(image, self._value)
        if not parts or min(part.size for part in parts) < LEAST_CHANNELS_OF_A_PART:
            return []
        if len(parts) == 1 and parts[0].source.same_as(image):
            return []
        return [Slice(self.images.last(part.source), part.begin, part.size) for part in parts]

    def _value(self, expr: relax.Expr) -> relax.Expr | None:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr

    def _unpadded(self, image: relax.Expr) -> tuple[relax.Expr, list[int]]:
        """What ``image`` has zeros around, and how many before each axis: a product reads zeros there anyway."""
        none = [0] * (image.struct_info.ndim - 2)
        padded = self.images.call(image, "relax.nn.pad")
        if padded is None or str(padded.attrs.pad_mode) != "constant" or float(padded.attrs.pad_value) != 0:
            return image, none
        widths = [int(width) for width in padded.attrs.pad_width]
        if any(widths[:4]) or min(widths) < 0:
            return image, none
        return padded.args[0], widths[4::2]

    def _called(self, call: relax.Call) -> relax.Expr:
        image, weight = call.args
        sizes = shape(call)
        rank = len(sizes)
        transposed = is_transposed_convolution(call)
        begins, ends = call.attrs.padding[: rank - 2], call.attrs.padding[rank - 2 :]
        last = self.images.last(image)
        if not _is_even(call.attrs.padding):
            widths = [(0, 0), *zip(begins, ends, strict=True), (0, 0)]
            last = self.builder_.emit(op.nn.pad(last, [int(width) for pair in widths for width in pair]))
            begins = [0] * (rank - 2)
        description = {
            "strides": [int(step) for step in call.attrs.strides],
            "padding": [int(width) for width in begins],
            "dilation": [int(step) for step in call.attrs.dilation],
            "groups": int(call.attrs.groups),
            "transposed": transposed,
            "output_padding": [int(width) for width in call.attrs.output_padding] if transposed else [0] * (rank - 2),
            "is_constant": isinstance(weight, relax.Constant) or weight in self._constants,
        }
        info = relax.TensorStructInfo([sizes[axis] for axis in channels_last(rank)], call.struct_info.dtype)
        return relax.call_pure_packed(
            CONVOLVE, relax.StringImm(json.dumps(description)), last, weight, sinfo_args=[info]
        )


def _is_worth_a_call(call: relax.Call) -> bool:
    transposed = is_transposed_convolution(call)
    if not (transposed or is_convolution(call)) or any(dtype(each) != "float32" for each in (*call.args, call)):
        return False
    if transposed and not _is_even(call.attrs.padding):
        return False
    weight, pixels = list(map(counted, shape(call.args[1]))), shape(call.args[0] if transposed else call)[2:]
    products = _products(call)
    if transposed:
        return products >= LEAST_PRODUCTS_OF_TRANSPOSED
    if prod(weight[2:]) > 1:
        return products >= LEAST_PRODUCTS
    symbolic = None in map(static, pixels)
    return products >= (LEAST_PRODUCTS_OF_SYMBOLIC_PIXELS if symbolic else LEAST_PRODUCTS_OF_PIXELS)


def _products(call: relax.Call) -> int:
    """How many multiplications a convolution is."""
    batch, _, *pixels = shape(call.args[0] if is_transposed_convolution(call) else call)
    return prod(map(counted, (*shape(call.args[1]), *pixels))) * (static(batch) or 1)


def _is_one(codes: Codes) -> bool:
    """Whether one zero point is that of all."""
    return isinstance(codes.zero, int) or all(static(size) == 1 for size in shape(codes.zero))


def _is_even(padding: Sequence[int]) -> bool:
    """Whether as much is padded before each axis as behind it."""
    axes = len(padding) // 2
    return list(padding[:axes]) == list(padding[axes:])
