"""Scores, and their order as integers, in TileLang."""

from collections.abc import Callable

import tilelang.language as T
from tvm.tirx import PrimExpr

from tkc.kernels.moe_gate.parameters import MoeGateParameters

NOTHING = -(2**31)  # below the key of every number
EXCLUDED_RANK = {"zero": 0.0, "-inf": float("-inf")}
EXCLUDED_KEY = {"zero": 0, "-inf": -0x7F800000}  # the order_key of each
SOFTPLUS_LINEAR = 20.0  # beyond it softplus(x) is x in float32, as torch.nn.functional.softplus has it


def order_key(x: PrimExpr) -> PrimExpr:
    """An int32 that orders as the float32 ``x`` does, with equal zeros and NaN above every number."""
    bits = T.reinterpret(x, "int32")
    return T.if_then_else(T.isnan(x), T.max_value("int32"), T.if_then_else(bits < 0, NOTHING - bits, bits))


def number(key: PrimExpr) -> PrimExpr:
    """The float32 that has this :func:`order_key`."""
    return T.reinterpret(T.if_then_else(key < 0, NOTHING - key, key), "float32")


def score(
    p: MoeGateParameters,
    x: PrimExpr,
    largest: PrimExpr,
    total: PrimExpr,
    exp: Callable[[PrimExpr], PrimExpr] = T.exp,
) -> PrimExpr:
    """The score of logit ``x``; softmax needs the ``largest`` logit and the ``total`` of exponentials."""
    if p.scoring == "softmax":
        return exp(x - largest) / total
    if p.scoring == "sigmoid":
        return 1.0 / (1.0 + exp(-x))
    return T.sqrt(T.if_then_else(x > SOFTPLUS_LINEAR, x, T.log1p(exp(x))))


def total_cancels(p: MoeGateParameters) -> bool:
    """Whether normalizing the weights undoes softmax's division by its total."""
    return p.scoring == "softmax" and p.ranks_logits and p.normalize and p.epsilon == 0.0
