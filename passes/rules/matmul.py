"""Finds matrix products with a weight, and the bias, activation and residual that one kernel can compute with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import DataType, relax
from tvm.relax.dpl import is_op, wildcard

from tkc.kernels.matmul.spec import MatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, is_floating, known_dims, shape, static
from tkc.passes.graph.layout import as_matrix, restored
from tkc.passes.graph.patterns import any_of
from tkc.passes.recognizers.activations import Activation, activated
from tkc.passes.rules.rule import KernelCall, Match, Refusal, Rule

_DTYPES = ("float32", "float16", "bfloat16")
_NORMALIZING = ("relax.subtract", "relax.multiply")  # what a batch normalization does first


@dataclass(frozen=True)
class Fused:
    """``activation(a @ weight + bias) + residual``; ``weight [n, k]`` if transposed, else ``[k, n]``.

    Whatever the graph rounds or casts in between, the kernel keeps in float32: the result is at least as precise.
    """

    a: relax.Expr
    weight: relax.Expr
    transposed: bool
    bias: relax.Expr | None = None
    activation: Activation | None = None
    residual: relax.Expr | None = None


def _check(match: Match) -> KernelCall | Refusal | None:
    graph, var = match.graph, match.var
    if (product := graph.call(var, "relax.matmul")) is not None and (reason := unfit(graph, product)) is not None:
        return Refusal(reason)
    fused = fused_product(graph, var)
    if fused is None or dtype(var) not in _DTYPES or _is_widened_for_generated_code(graph, var):
        return None
    name, out = dtype(fused.a), dtype(var)
    n, k = weight_sizes(fused)
    inputs = [as_matrix(fused.a), fused.weight]
    for addend, wanted, dims in ((fused.bias, name, 1), (fused.residual, out, 2)):
        if addend is None:
            continue
        tensor = graph.before_widening(addend, wanted)
        if tensor is None:
            return None
        inputs.append(as_matrix(tensor) if dims == 2 else as_vector(tensor))
    parameters = MatmulParameters(
        n=n,
        k=k,
        dtype=name,
        weight_layout="nk" if fused.transposed else "kn",
        out_dtype=None if out == name else out,
        bias=fused.bias is not None,
        activation=fused.activation,
        residual=fused.residual is not None,
    )
    return KernelCall(parameters, tuple(inputs), {var: restored(0, var)})


def _is_widened_for_generated_code(graph: Graph, var: relax.Var) -> bool:
    """Whether ``var`` is a rounded result, widened again for what is computed element by element of it.

    That widens what it reads at no cost, while results that were not rounded would be written and read at twice the
    bytes: a convolution's, in front of a batch normalization.
    """
    call = graph.call(var, "relax.astype")
    if call is None or DataType(dtype(call.args[0])).bits >= DataType(dtype(var)).bits:
        return False
    users = graph.users(var)
    return bool(users) and all(graph.call(user, *_NORMALIZING) is not None for user in users)


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
    if dtype(a) != dtype(weight) or dtype(a) not in _DTYPES:
        return f"it multiplies {dtype(a)} by {dtype(weight)}"
    return None


def has_one_weight(graph: Graph, product: relax.Call) -> bool:
    """Whether a product's right operand is one matrix for all rows, and no batch of matrices."""
    return _weight(graph, product.args[1])[0].struct_info.ndim == 2


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


def as_vector(expr: relax.Expr) -> relax.Expr:
    """``expr [1, ..., columns]`` as ``[columns]``."""
    return expr if expr.struct_info.ndim == 1 else relax.op.reshape(expr, (shape(expr)[-1],))


def fused_product(graph: Graph, expr: relax.Expr) -> Fused | None:
    """``expr`` as the sum of an activated product and another tensor of its shape, or as the former alone."""
    expr = _before_reshape(graph, expr)
    call = graph.call(expr, "relax.add")
    if call is not None and graph.same_shape(*map(shape, call.args)):
        for inner, residual in (call.args, reversed(call.args)):
            fused = _with_activation(graph, inner) if _is_read_once(graph, inner) else None
            if fused is not None:
                return replace(fused, residual=residual)
    return _with_activation(graph, expr)


def _with_activation(graph: Graph, expr: relax.Expr) -> Fused | None:
    expr = _before_reshape(graph, expr)
    found = activated(graph, graph.variable(graph.value(expr)))
    if found is None:
        return biased_product(graph, expr)
    fused = biased_product(graph, found.x)
    return None if fused is None else replace(fused, activation=found.activation)


def biased_product(graph: Graph, expr: relax.Expr) -> Fused | None:
    """``expr`` as a product with a weight that the kernel takes, or one plus a bias; nothing else reads the product."""
    expr = _before_reshape(graph, expr)
    call = graph.call(expr, "relax.add")
    if call is None:
        return _product(graph, expr)
    for inner, bias in (call.args, reversed(call.args)):
        dims = shape(bias)
        is_row = bool(dims) and len(dims) <= call.struct_info.ndim and all(static(dim) == 1 for dim in dims[:-1])
        if is_row and graph.equal(dims[-1], shape(call)[-1]) and _is_read_once(graph, inner):
            fused = _product(graph, _before_reshape(graph, inner))
            return None if fused is None else replace(fused, bias=bias)
    return None


def _product(graph: Graph, expr: relax.Expr) -> Fused | None:
    call = graph.call(expr, "relax.matmul")
    if call is None or unfit(graph, call) is not None or not has_one_weight(graph, call):
        return None
    return Fused(call.args[0], *_weight(graph, call.args[1]))


def _is_read_once(graph: Graph, expr: relax.Expr) -> bool:
    return len(graph.users(expr)) == 1


def _has_axes(expr: relax.Expr) -> bool:
    """Whether the dimensions of ``expr`` are known, and there are some."""
    return bool(known_dims(expr.struct_info))


def _before_reshape(graph: Graph, expr: relax.Expr) -> relax.Expr:
    """``expr`` before casts, and reshapes that keep its last axis, of what nothing else reads."""
    while (call := graph.call(expr, "relax.reshape", "relax.astype")) is not None:
        inner = call.args[0]
        if call.op.name == "relax.astype":
            keeps = is_floating(dtype(inner)) and is_floating(dtype(call))
        else:
            keeps = _has_axes(inner) and _has_axes(call) and graph.equal(shape(inner)[-1], shape(call)[-1])
        if not (keeps and _is_read_once(graph, inner)):
            return expr
        expr = inner
    return expr


_UNARY = ("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "astype")
_BINARY = ("matmul", "add", "multiply", "divide", "maximum")

MATMUL = Rule(
    name="matrix product",
    kernel="matmul",
    pattern=any_of(
        [is_op(f"relax.{name}")(wildcard()) for name in _UNARY]
        + [is_op(f"relax.{name}")(wildcard(), wildcard()) for name in _BINARY]
    ),
    parts={},
    check=_check,
)
