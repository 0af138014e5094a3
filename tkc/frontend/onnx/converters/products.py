"""Products of matrices and of tensors, as Apache TVM converts them once their sizes fit."""

from __future__ import annotations

import itertools

from tkc.frontend.onnx.converters.shared import Converted, Converter, is_number
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size


def gemm(node: Node) -> Converted:
    """A product of matrices, of sizes that fit, and a tensor that is added."""
    summed = node.shape(0)[0 if node.attribute("transA", 0) else 1]
    node.require_equal(summed, node.shape(1)[1 if node.attribute("transB", 0) else 0])
    return node.stock()


def _einsum(node: Node) -> Converted:
    sizes: dict[str, Size] = {}
    broadcast: list[list[Size]] = []
    equation = node.attribute("equation")
    equation = equation.decode() if isinstance(equation, bytes) else equation
    for position, term in enumerate(equation.replace(" ", "").split("->")[0].split(",")):
        first, _, last = term.partition("...")
        shape = node.shape(position)
        end = len(shape) - len(last)
        broadcast.append(shape[len(first) : end][::-1])
        for label, size in zip(first + last, shape[: len(first)] + shape[end:], strict=False):
            other = sizes.setdefault(label, size)
            if not (is_number(size, 1) or is_number(other, 1)):  # which are broadcast
                node.require_equal(size, other)
    for those in itertools.zip_longest(*broadcast, fillvalue=1):
        node.algebra.broadcast(those)
    return node.stock()


CONVERTERS: dict[str, Converter] = {"Einsum": _einsum, "Gemm": gemm}
