"""Heads of attention in ONNX Runtime's operators: how many, split and joined, and attributes that are refused."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError, shape_of


def split_heads(node: Node, tensor: relax.Expr, heads: int) -> relax.Expr:
    """``(batch, length, heads * width)`` as ``(batch, heads, length, width)``."""
    batch, length, hidden = shape_of(tensor, node.algebra)
    split = node.emit(relax.op.reshape(tensor, [batch, length, heads, node.algebra.simplify(hidden // heads)]))
    return node.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def join_heads(node: Node, tensor: relax.Expr) -> relax.Expr:
    """``(batch, heads, length, width)`` as ``(batch, length, heads * width)``."""
    batch, heads, length, width = shape_of(tensor, node.algebra)
    moved = node.emit(relax.op.permute_dims(tensor, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(moved, [batch, length, node.algebra.simplify(heads * width)]))


def fixed_width(node: Node, tensor: relax.Expr) -> int:
    """The width of a head of ``tensor``, which is refused where it is symbolic."""
    width = shape_of(tensor, node.algebra)[3]
    if not isinstance(width, int):
        raise ConversionError("needs heads of a fixed width; export the model with fixed sizes there")
    return width


def number_of_heads(node: Node, name: str = "num_heads") -> int:
    """What the attribute ``name`` says, which must be positive."""
    count: int = node.attribute(name, 0)
    if count < 1:
        raise ConversionError(f"has {name} {count}; correct the model")
    return count


def refuse(
    node: Node, inputs: dict[int, str], attributes: Sequence[str] = (), outputs: dict[int, str] | None = None
) -> None:
    """Refuse what is not supported, each by its name."""
    found = [name for position, name in inputs.items() if node.has(position)]
    found += [name for name in attributes if node.attribute(name, 0) not in (0, -1)]
    found += [name for position, name in (outputs or {}).items() if node.wants(position)]
    if found:
        raise ConversionError(f"has {', '.join(found)}, which TKC does not support; export the model without")
