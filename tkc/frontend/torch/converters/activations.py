"""Activations."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.converters.functions import elementwise, unary
from tkc.frontend.torch.converters.tables import overloads
from tkc.passes.lowering import number_functions


def gelu(b: Emitter, x: relax.Expr, approximate: str) -> relax.Expr:
    """GELU by the error function, or by ``tanh``."""
    return op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x)


def softplus(b: Emitter, x: relax.Expr, beta: float, threshold: float) -> relax.Expr:
    """``log(1 + exp(beta * x)) / beta``."""
    return op.nn.softplus(x, float(beta), float(threshold))


def leaky_relu(b: Emitter, x: relax.Expr, slope: float) -> relax.Expr:
    """``x`` where positive, else ``slope * x``."""
    return op.nn.leakyrelu(x, float(slope))


def elu(b: Emitter, x: relax.Expr, alpha: float, scale: float, input_scale: float) -> relax.Expr:
    """``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``."""
    x = b.wide(x)
    dtype = x.struct_info.dtype
    inner = elementwise(b, "expm1", number_functions.expm1, b.emit(op.multiply(x, b.tensor(input_scale, dtype))))
    negative = op.multiply(inner, b.tensor(alpha * scale, dtype))
    positive = op.multiply(x, b.tensor(scale, dtype))
    return op.where(op.greater(x, b.tensor(0, dtype)), positive, negative)


def softshrink(b: Emitter, x: relax.Expr, bound: float) -> relax.Expr:
    """``x`` nearer to zero by ``bound``, and zero (or NaN) within it."""
    x = b.wide(x)
    dtype = x.struct_info.dtype
    high, low, zero = b.tensor(bound, dtype), b.tensor(-bound, dtype), b.tensor(0, dtype)
    within = op.multiply(x, zero)  # NaN stays
    below = op.where(op.less(x, low), op.add(x, high), within)
    return op.where(op.greater(x, high), op.subtract(x, high), below)


def dropout(b: Emitter, x: relax.Expr, probability: float, train: bool) -> relax.Expr:
    """``x`` itself, outside training."""
    if train and probability:
        raise b.unsupported("dropout is active. Call eval() on the model before exporting it.")
    return x


CONVERTERS: dict[str, Converter] = overloads(
    {
        "relu": unary(op.nn.relu),
        "sigmoid": unary(op.sigmoid),
        "silu": unary(op.nn.silu),
        "gelu": gelu,
        "softplus": softplus,
        "leaky_relu": leaky_relu,
        "elu": elu,
        "softshrink": softshrink,
        "dropout": dropout,
    },
    "default",
)
