"""Matmuls with a weight, and the bias, activation and residual that one kernel computes in their epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import relax

from tkc.passes.graph.bindings import Graph, dtype, is_floating, known_dims, shape, static
from tkc.passes.graph.kernel_floats import is_kernel_float
from tkc.passes.graph.readers import sole_reader
from tkc.passes.recognizers.activations import Activation, activated


@dataclass(frozen=True)
class Fused:
    """``activation(a @ weight + bias) + residual``; ``weight [n, k]`` if transposed, else ``[k, n]``.

    ``product`` holds ``a @ weight``.

    Whatever the graph rounds or casts in between, the kernel keeps in float32: the result is at least as precise.
    """

    product: relax.Var
    a: relax.Expr
    weight: relax.Expr
    transposed: bool
    bias: relax.Expr | None = None
    activation: Activation | None = None
    residual: relax.Expr | None = None


def unfit(graph: Graph, product: relax.Call) -> str | None:
    """Why no kernel takes this matrix product; ``None`` where one does, or has a reason of its own."""
    a, b = product.args
    if any(known_dims(x.struct_info) is None for x in (a, b, product)):
        return "the shapes of its operands are not known"
    if a.struct_info.ndim < 2 or b.struct_info.ndim < 2:
        return "it is a product with a vector"
    if not has_one_weight(graph, product):
        return None
    weight, _ = _weight(graph, b)
    if None in map(static, shape(weight)):
        return "the size of its second operand is only known at run time"
    if dtype(a) != dtype(weight) or not is_kernel_float(dtype(a)):
        return f"it multiplies {dtype(a)} by {dtype(weight)}"
    return None


def has_one_weight(graph: Graph, product: relax.Call) -> bool:
    """Whether a product's right operand is one matrix for all rows, and no batch of matrices."""
    return bool(_weight(graph, product.args[1])[0].struct_info.ndim == 2)


def _weight(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, bool]:
    """The matrix behind ``expr``, which may be broadcast over a batch, and whether ``expr`` is its transpose."""
    source = graph.through(expr, "relax.broadcast_to")
    expr = source if source.struct_info.ndim == 2 else expr
    call = graph.call(expr, "relax.permute_dims")
    transposed = call is not None and call.args[0].struct_info.ndim == 2
    return (call.args[0], True) if call is not None and transposed else (expr, False)


def weight_sizes(fused: Fused) -> tuple[int, int]:
    """``n`` and ``k`` of the weight."""
    rows, columns = (int(size) for size in shape(fused.weight))
    return (rows, columns) if fused.transposed else (columns, rows)


def fused_product(graph: Graph, expr: relax.Expr) -> Fused | None:
    """``expr`` as the sum of an activated product and another tensor of its shape, or as the former alone."""
    expr = before_reshape(graph, expr)
    call = graph.call(expr, "relax.add")
    if call is not None and graph.same_shape(*map(shape, call.args)):
        for inner, residual in (call.args, reversed(call.args)):
            fused = _with_activation(graph, inner) if sole_reader(graph, inner) is not None else None
            if fused is not None:
                return replace(fused, residual=residual)
    return _with_activation(graph, expr)


def _with_activation(graph: Graph, expr: relax.Expr) -> Fused | None:
    expr = before_reshape(graph, expr)
    found = activated(graph, graph.variable(graph.value(expr)))
    if found is None:
        return biased_product(graph, expr)
    fused = biased_product(graph, found.x)
    return None if fused is None else replace(fused, activation=found.activation)


def biased_product(graph: Graph, expr: relax.Expr) -> Fused | None:
    """``expr`` as a product with a weight that the kernel takes, or one plus a bias; nothing else reads the product."""
    expr = before_reshape(graph, expr)
    call = graph.call(expr, "relax.add")
    if call is None:
        return _product(graph, expr)
    for inner, bias in (call.args, reversed(call.args)):
        dims = shape(bias)
        is_row = bool(dims) and len(dims) <= call.struct_info.ndim and all(static(dim) == 1 for dim in dims[:-1])
        if is_row and graph.equal(dims[-1], shape(call)[-1]) and sole_reader(graph, inner) is not None:
            fused = _product(graph, before_reshape(graph, inner))
            return None if fused is None else replace(fused, bias=bias)
    return None


def _product(graph: Graph, expr: relax.Expr) -> Fused | None:
    call = graph.call(expr, "relax.matmul")
    if call is None or unfit(graph, call) is not None or not has_one_weight(graph, call):
        return None
    return Fused(graph.variable(call), call.args[0], *_weight(graph, call.args[1]))


def _has_axes(expr: relax.Expr) -> bool:
    """Whether the dimensions of ``expr`` are known, and there are some."""
    return bool(known_dims(expr.struct_info))


def before_reshape(graph: Graph, expr: relax.Expr) -> relax.Expr:
    """``expr`` before casts, and reshapes that keep its last axis, of what nothing else reads."""
    while (call := graph.call(expr, "relax.reshape", "relax.astype")) is not None:
        inner = call.args[0]
        if call.op.name == "relax.astype":
            keeps = is_floating(dtype(inner)) and is_floating(dtype(call))
        else:
            keeps = _has_axes(inner) and _has_axes(call) and graph.equal(shape(inner)[-1], shape(call)[-1])
        if not (keeps and sole_reader(graph, inner) is not None):
            return expr
        expr = inner
    return expr
