"""Turns convolutions whose windows tile the image, as those that embed patches, into matrix products."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.bindings import has_known_shape, shape, static
from tkc.passes.graph.rewriting import rewritten

_SIXTEEN_BITS = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="PatchProducts")
class PatchProducts:
    """Replaces a 2-d convolution by a product of its patches with its weight, where each pixel is in one window.

    That is where strides are the window's sizes and divide the image's, with no padding, dilation or groups. Operands
    that were only widened to float32 are multiplied as they were, with float32 sums.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with products."""
        return rewritten(module, _Rewriting)


@mutator
class _Rewriting(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        is_convolution = isinstance(call.op, Op) and call.op.name == "relax.nn.conv2d"
        return self._product(call) if is_convolution and _tiles(call) else call

    def _product(self, call: relax.Call) -> relax.Expr:
        """The product over ``[batch, patches, channels * window]``, its result as ``[batch, out, rows, columns]``."""
        image, weight = self._narrow(*call.args)
        batch, channels, *size = shape(image)
        out, _, height, width = (int(dim) for dim in shape(weight))
        rows, columns = int(size[0]) // height, int(size[1]) // width
        patches = self._emit(op.reshape(image, (batch, channels, rows, height, columns, width)))
        patches = self._emit(op.permute_dims(patches, [0, 2, 4, 1, 3, 5]))
        window = int(channels) * height * width
        patches = self._emit(op.reshape(patches, (batch, rows * columns, window)))
        flat = self._emit(op.permute_dims(self._emit(op.reshape(weight, (out, window)))))
        product = self._emit(op.matmul(patches, flat, out_dtype=call.struct_info.dtype))
        return op.reshape(self._emit(op.permute_dims(product, [0, 2, 1])), (batch, out, rows, columns))

    def _narrow(self, *operands: relax.Expr) -> list[relax.Expr]:
        """The operands before they were widened, if all were from one dtype of 16 bits."""
        sources = [self._before_cast(operand) for operand in operands]
        dtypes = {source.struct_info.dtype for source in sources}
        return sources if len(dtypes) == 1 and dtypes <= set(_SIXTEEN_BITS) else list(operands)

    def _before_cast(self, expr: relax.Expr) -> relax.Expr:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name == "relax.astype":
            return value.args[0]
        return expr

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)


def _tiles(call: relax.Call) -> bool:
    """Whether every pixel is in exactly one window, and the sizes that say so are known."""
    attrs = call.attrs
    plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "OIHW", "NCHW")
    if not plain or int(attrs.groups) != 1 or not all(map(has_known_shape, call.args)):
        return False
    if any(int(pad) for pad in attrs.padding) or any(int(step) != 1 for step in attrs.dilation):
        return False
    channels, *size = shape(call.args[0])[1:]
    window = shape(call.args[1])[2:]
    known = [static(dim) for dim in (channels, *size, *shape(call.args[1]))]
    if None in known or [int(stride) for stride in attrs.strides] != [int(dim) for dim in window]:
        return False
    return all(int(dim) % int(extent) == 0 for dim, extent in zip(size, window, strict=True))
