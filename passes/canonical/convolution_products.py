"""Turns convolutions into matrix products of the windows that they slide over the image, or sums over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import prod

import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.contracts import CHANNELS_LAST, OP_PATTERN, OPAQUE_PATTERN, REDUCTION_PATTERN, WINDOWS
from tkc.kernels import Target
from tkc.kernels.convolution.parameters import ConvolutionParameters, of_two_axes
from tkc.kernels.convolution.spec import Convolution
from tkc.passes.canonical.windows import Windows
from tkc.passes.graph.bindings import dtype, permuted_axes, shape, static
from tkc.passes.graph.channels_last import LastChannels, channels_last, is_convolution
from tkc.passes.graph.rewriting import rewritten

# Rows of a product begin at multiples of 16 bytes, or the copy engine cannot load them.
_ALIGNMENT = 8
_MOST_BYTES = 2 << 30
_LEAST_COLUMNS = 16  # of a group's product: a tile of tensor cores


@tvm.transform.module_pass(opt_level=0, name="ConvolutionProducts")
class ConvolutionProducts:
    """Replaces ``conv(x [batch, channels, ...], w [out, channels, ...])`` by a product over gathered windows.

    For convolutions whose operands are, or were widened from, one of ``dtypes``. The windows are
    ``[batch, counts ..., extents ..., channels]``, copied in whole vectors by one function; a convolution of single
    pixels needs none. Products have their channels last, and so does what is computed from them, up to where an
    operator needs them second: no activation is transposed between two convolutions.

    Those of groups are products of two batches, a matrix a group. Where groups are too small for tensor cores, as those
    of a channel each, windows are summed in place, in float32, over channels that stand last as well.

    Where the channels are not a multiple of 8 (images), windows are read in the order of the weight, and filled up with
    zeros. Windows that tile an image are left to :class:`tkc.passes.canonical.patch_products.PatchProducts` there.

    The windows of a 3×3 convolution take nine times the image's memory. A convolution stays where they would take more
    than 2 GiB: that admits the networks for images at batch 32 (VGG's second convolution takes 1.8 GiB) and an image
    decoder's last layers, and is little beside the memory of the devices that run these. Symbolic sizes count as one.
    There is no limit where kernels for ``target`` are used, and one loads the windows from the image
    (:mod:`tkc.passes.rules.convolution`).
    """

    def __init__(self, dtypes: Collection[str] = ("float16", "bfloat16"), target: Target | None = None) -> None:
        self.dtypes = frozenset(dtypes)
        self._target = target

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with products."""
        return rewritten(module, lambda whole: _Rewriting(whole, self.dtypes, self._target))


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, module: IRModule, dtypes: frozenset[str], target: Target | None) -> None:
        super().__init__(module)
        self.target = target
        self.dtypes = dtypes
        self.images = LastChannels(self.lookup_binding, self.builder_.emit)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        last = self._convolved(call) if self._is_narrow(call) else self.images.of(call)
        return call if last is None else self.images.made(last)

    def _convolved(self, call: relax.Call) -> relax.Expr | None:
        """The convolution ``call`` as ``[batch, ..., out]``; ``None`` where it is better left alone."""
        if int(call.attrs.groups) == 1:
            return self._product(call)
        return self._products_of_groups(call) or self._sums(call)

    def _products_of_groups(self, call: relax.Call) -> relax.Expr | None:
        """A product for each group; ``None`` where they are small, or their windows are too large."""
        image, weight = map(self._narrow, call.args)
        groups, windows = int(call.attrs.groups), Windows.of(call)
        out, own, *_ = (int(size) for size in shape(weight))
        batch, _, *counts = shape(call)
        columns, depth = out // groups, own * prod(windows.extents)
        if own % _ALIGNMENT or columns % _ALIGNMENT or columns < _LEAST_COLUMNS:
            return None
        if _known_product((batch, *counts)) * groups * depth * 2 > _MOST_BYTES:
            return None
        rows = prod((batch, *counts), start=tirx.IntImm("int64", 1))
        gathered = self._emit(self._gathered(windows.of_groups, self._by_groups(self.images.last(image), groups)))
        matrices = self._emit(op.permute_dims(weight, channels_last(weight.struct_info.ndim)))
        product = op.matmul(
            self._emit(op.reshape(gathered, (groups, rows, depth))),
            self._emit(op.permute_dims(self._emit(op.reshape(matrices, (groups, columns, depth))), [0, 2, 1])),
            out_dtype=call.struct_info.dtype,
        )
        side_by_side = op.permute_dims(self._emit(product), [1, 0, 2])
        return op.reshape(self._emit(side_by_side), (batch, *counts, out))

    def _sums(self, call: relax.Call) -> relax.Expr:
        """Sums over each window."""
        image, weight = map(self._narrow, call.args)
        groups, rank = int(call.attrs.groups), weight.struct_info.ndim
        out_last = self._emit(op.permute_dims(weight, [*range(2, rank), 1, 0]))
        return self.builder_.call_te(
            Windows.of(call).sums,
            self.images.last(image),
            out_last,
            groups,
            call.struct_info.dtype,
            primfunc_name_hint="convolution",
            primfunc_attrs={OP_PATTERN: REDUCTION_PATTERN},
        )

    def _product(self, call: relax.Call) -> relax.Expr | None:
        """The convolution ``call`` without groups."""
        image, weight = map(self._narrow, call.args)
        out, channels, *_ = (int(size) for size in shape(weight))
        batch, _, *counts = shape(call)
        windows = Windows.of(call)
        inside = prod(windows.extents)
        columns = channels * inside
        if channels % _ALIGNMENT == 0:
            image = self.images.last(image)
            if inside > 1:
                weight = self._emit(op.permute_dims(weight, channels_last(weight.struct_info.ndim)))
            matrix = op.reshape(weight, (out, columns))
        elif windows.tile(shape(image)[2:]):
            return None
        else:
            columns += -columns % _ALIGNMENT
            matrix = op.reshape(weight, (out, channels * inside))
            if columns != channels * inside:
                matrix = op.nn.pad(self._emit(matrix), [0, 0, 0, columns - channels * inside])
        if not windows.are_pixels or channels % _ALIGNMENT:
            written = _known_product((batch, *counts)) * columns * 2
            if written > _MOST_BYTES and not self._are_loaded(windows, out, channels):
                return None
            last = channels % _ALIGNMENT == 0
            gather = windows.with_channels_last if last else partial(windows.as_rows, width=columns)
            said = {WINDOWS: json.dumps({**asdict(windows), CHANNELS_LAST: last})}
            image = self._emit(self._gathered(gather, image, said))
        rows = self._emit(op.reshape(image, (batch, *counts, columns)))
        transposed = self._emit(op.permute_dims(self._emit(matrix)))
        return op.matmul(rows, transposed, out_dtype=call.struct_info.dtype)

    def _are_loaded(self, windows: Windows, out: int, channels: int) -> bool:
        """Whether the ``convolution`` kernel, which writes no windows down, has them and is used."""
        if self.target is None or channels % _ALIGNMENT or len(windows.extents) > 2:
            return False
        of = of_two_axes(asdict(windows))
        kernel = Convolution()
        parameters = ConvolutionParameters(
            out, channels, of["extents"], "bfloat16", of["strides"], of["dilation"], of["before"], of["after"]
        )
        return not (kernel.unsupported(parameters, self.target) or kernel.beneficial(parameters, self.target))

    def _gathered(
        self, gather: Callable[[te.Tensor], te.Tensor], image: relax.Expr, said: Mapping[str, str] | None = None
    ) -> relax.Expr:
        # FuseOps would fuse the reshape to rows too, whose last axis no vector runs along. It leaves to themselves what
        # it takes for opaque, and the image is then normalized once, not for each window.
        attributes = {OP_PATTERN: OPAQUE_PATTERN, **(said or {})}
        return self.builder_.call_te(gather, image, primfunc_name_hint="windows", primfunc_attrs=attributes)

    def _by_groups(self, image: relax.Expr, groups: int) -> relax.Var:
        """``image [..., channels]`` as ``[..., groups, channels / groups]``, which becomes a view."""
        sizes = (*shape(image)[:-1], groups, int(shape(image)[-1]) // groups)
        # Not an operator of Relax, which would be fused into what computes the image, and keep vectors from it.
        attributes = {OP_PATTERN: OPAQUE_PATTERN}
        return self._emit(self.builder_.call_te(topi.reshape, image, sizes, primfunc_attrs=attributes))

    def _is_narrow(self, call: relax.Call) -> bool:
        """Whether ``call`` is a convolution in one of the dtypes, of known sizes but for the image's."""
        if not is_convolution(call) or None in map(static, shape(call.args[1])):
            return False
        dtypes = {dtype(self._narrow(operand)) for operand in call.args}
        return len(dtypes) == 1 and dtypes <= self.dtypes

    def _narrow(self, operand: relax.Expr) -> relax.Expr:
        """``operand`` before it was widened from one of the dtypes."""
        cast = self.images.call(operand, "relax.astype")
        if cast is not None and dtype(cast.args[0]) in self.dtypes:
            return cast.args[0]
        permuted = self.images.call(operand, "relax.permute_dims")  # a cast of what is there with channels last
        if permuted is not None and (cast := self.images.call(permuted.args[0], "relax.astype")) is not None:
            source = cast.args[0]
            if dtype(source) in self.dtypes:
                return self._emit(op.permute_dims(source, permuted_axes(permuted)))
        return operand

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)


def _known_product(sizes: Sequence[tirx.PrimExpr]) -> int:
    """The product of the sizes that are numbers."""
    return prod(size for size in map(static, sizes) if size is not None)
