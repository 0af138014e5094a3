"""Operators by domain: their names, the converters that Apache TVM has, and nodes as errors name them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from tkc.frontend.onnx.untrusted import short

STANDARD_DOMAINS = ("", "ai.onnx")
MICROSOFT_DOMAIN = "com.microsoft"
ML_DOMAIN = "ai.onnx.ml"
TEXT_DOMAIN = "tkc.text"
"""That of functions of strings, once strings are codes (``tkc/frontend/onnx/text.py``)."""

# Names in Apache TVM's converter table, which knows no domains, that are ONNX Runtime's operators.
_MICROSOFT_CONVERTERS = frozenset(
    {
        "AllClassNMS",
        "Attention",
        "BiasGelu",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)


def stock_converters(domain: str) -> Mapping[str, type[onnx_frontend.OnnxOpConverter]]:
    """Apache TVM's converters of one operator domain."""
    table = onnx_frontend._get_convert_map()
    if domain == MICROSOFT_DOMAIN:
        return {name: table[name] for name in _MICROSOFT_CONVERTERS}
    if domain in STANDARD_DOMAINS:
        return {name: converter for name, converter in table.items() if name not in _MICROSOFT_CONVERTERS}
    return {}


def plain_domain(domain: str) -> str:
    """The domain by the one name by which tables have it: the standard's has two."""
    return "" if domain in STANDARD_DOMAINS else domain


def describe(node: onnx.NodeProto) -> str:
    """A node's operator, domain and name, as errors give them."""
    is_plain = node.domain in STANDARD_DOMAINS or node.domain == TEXT_DOMAIN
    operator = node.op_type if is_plain else f"{node.domain}.{node.op_type}"
    name = node.name or next(filter(None, node.output), "")
    return f"ONNX node {short(name)} ({short(operator)[1:-1]})"
