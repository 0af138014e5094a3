"""Operators of PyTorch's that an imported model calls in place, as ``tkc/runtime/operators.py`` runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax

from tkc.contracts import CALL_OPERATOR
from tkc.frontend.model import OperatorCall
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.values import ConversionError

if TYPE_CHECKING:
    from tkc.frontend.onnx.sizes import Size


RANDOM = frozenset({"Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
"""Operators that no constant is made of."""


class TorchCalls:
    """Emits the calls, and notes which nodes make them."""

    def __init__(self, allowed: bool = True) -> None:
        """Where calls are not ``allowed``, :meth:`emit` refuses the node."""
        self._allowed = allowed
        self._nodes: dict[tuple[str, str], list[str]] = {}

    def emit(
        self,
        builder: relax.BlockBuilder,
        node: onnx.NodeProto,
        operator: str,
        operands: Sequence[relax.Expr | Size],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        result: relax.StructInfo,
        why: str,
    ) -> relax.Expr:
        """What ``operator`` (``aten::randn``) returns, of the type ``result``: a tensor, or several.

        ``arguments`` and ``named`` are described as in :mod:`tkc.runtime.operators`, over ``operands``: tensors and
        sizes. ``why`` says, of the node, why TKC does not compute it.
        """
        if not self._allowed:
            raise ConversionError(f"{why}, and fallback=False allows no calls of PyTorch; compile with fallback=True")
        given = [each if isinstance(each, relax.Expr) else relax.PrimValue(each) for each in operands]
        description = {
            "operator": operator,
            "arguments": list(arguments),
            "named": dict(named),
            "results": "tensors",
            "call": node.output[0],  # equal calls give different numbers
        }
        self._nodes.setdefault((operator, why), []).append(describe(node))
        text = relax.StringImm(json.dumps(description))
        return builder.emit(relax.call_pure_packed(CALL_OPERATOR, text, *given, sinfo_args=[result]))

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        """What the model calls, by operator."""
        return tuple(
            OperatorCall(operator, len(set(nodes)), tuple(dict.fromkeys(nodes)), why)
            for (operator, why), nodes in self._nodes.items()
        )
