"""Matmul of dequantized FP8 tensors to the ``matmul.scaled`` kernel, which multiplies FP8 and applies the scales.

``(a.to(dtype) * a_scale) @ (b.to(dtype) * b_scale).T``, with a scale for each 128 channels of a row of ``a`` and for
each block of 128 x 128 of ``b``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvm import relax, tirx

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.scaled_matmul.parameters import OPERAND_DTYPE, ScaledMatmulParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, is_floating, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.index_expressions import IndexExpressions
from tkc.passes.graph.kernel_floats import KernelFloat, is_kernel_float
from tkc.passes.graph.layout import as_dtype, kernel_call, product
from tkc.passes.graph.readers import between, sole_reader
from tkc.passes.graph.views import Index, broadcast_index, flattened, int64
from tkc.passes.rules.rule import Rule, Site, operators

_EXPONENT_DTYPE = "float8_e8m0fnu"  # powers of two, which are scales and nothing else
_READ_THROUGH = tuple(
    f"relax.{name}"
    for name in (
        *("multiply", "divide", "astype", "reshape", "flatten", "permute_dims"),
        *("expand_dims", "squeeze", "broadcast_to", "strided_slice", "nn.pad"),
    )
)

Factors: TypeAlias = dict[Literal["numbers", "scales"], relax.Expr]
"""What an operand is the product of, as the kernel's matrices."""


def _recognize(site: Site) -> Found | Refusal | None:
    graph, var = site.graph, site.var
    call = _product(graph, var)
    name = dtype(var)
    if call is None or not is_kernel_float(name) or not all(map(has_known_shape, (*call.args, call))):
        return None
    quantized = [_comes_from_fp8(graph, operand) for operand in call.args]
    if not any(quantized):
        return None
    outcome = _found(graph, var, call, name) if all(quantized) else Refusal(f"only one operand is {OPERAND_DTYPE}")
    refused_below = isinstance(outcome, Refusal) and graph.call(var, "relax.matmul") is None
    return None if refused_below else outcome


def _product(graph: Graph, var: relax.Var) -> relax.Call | None:
    """The product that ``var`` holds, or whose only use is to become ``var`` by casts and reshapes."""
    expr: relax.Expr = var
    while (call := graph.call(expr, "relax.astype", "relax.reshape")) is not None:
        expr = call.args[0]
        if not (is_floating(dtype(expr)) and is_floating(dtype(call)) and sole_reader(graph, expr) is not None):
            return None
    return graph.call(expr, "relax.matmul")


def _comes_from_fp8(graph: Graph, expr: relax.Expr) -> bool:
    """Whether ``expr`` looks like a dequantized tensor; the proof comes later."""
    if dtype(expr) == OPERAND_DTYPE:
        return True
    call = graph.call(expr, *_READ_THROUGH)
    operands = () if call is None else call.args[:2] if call.op.name == "relax.multiply" else call.args[:1]
    return any(_comes_from_fp8(graph, operand) for operand in operands)


@dataclass(frozen=True)
class _Matrix:
    """A matrix that is looked for: its size, and where in it the element at hand lies."""

    row: tirx.PrimExpr
    column: tirx.PrimExpr
    rows: tirx.PrimExpr
    columns: int

    def is_shown(self, expressions: IndexExpressions, expr: relax.Expr, index: Index) -> bool:
        """Whether ``expr`` holds the matrix in row-major order, with the element at hand at ``index``."""
        equal, dims = expressions.space.equal, shape(expr)
        position = self.row * self.columns + self.column
        return equal(product(dims), self.rows * self.columns) and equal(flattened(index, dims), position)

    def of(self, graph: Graph, expr: relax.Expr, name: str) -> relax.Expr:
        """What :meth:`is_shown` found, as a matrix of the dtype ``name``."""
        source = graph.through_views_and_casts(expr)
        dims = (self.rows, int64(self.columns))
        is_matrix = graph.same_shape(shape(source), dims)
        source = as_dtype(source, name)
        return source if is_matrix else relax.op.reshape(source, dims)


@dataclass(frozen=True)
class _Operand:
    """One operand of a product, as the FP8 ``numbers`` and the ``scales`` that it should come from."""

    expressions: IndexExpressions
    numbers: _Matrix
    scales: _Matrix

    def factors(self, expr: relax.Expr, index: Index) -> Factors | None:
        """What the element of ``expr`` at ``index`` is the product of; ``None`` where that is anything else, too.

        What the graph rounds in between, the kernel keeps in float32: the result is at least as precise.
        """
        graph, name = self.expressions.graph, dtype(expr)
        if not has_known_shape(expr):
            return None
        if name == OPERAND_DTYPE and self.numbers.is_shown(self.expressions, expr, index):
            return {"numbers": self.numbers.of(graph, expr, name)}
        if name != OPERAND_DTYPE and _is_scale(name) and self.scales.is_shown(self.expressions, expr, index):
            return {"scales": self.scales.of(graph, expr, "float32")}
        if (source := self.expressions.source(expr, index)) is not None:
            return self.factors(*source)
        if not is_kernel_float(name):
            return None
        if (cast := graph.call(expr, "relax.astype")) is not None:
            return self.factors(cast.args[0], index)
        if (call := graph.call(expr, "relax.multiply")) is not None:
            return self._of_product(call, index)
        return {} if graph.constant(expr) == 1 else None

    def _of_product(self, call: relax.Call, index: Index) -> Factors | None:
        parts = [self.factors(operand, broadcast_index(index, shape(operand))) for operand in call.args]
        if parts[0] is None or parts[1] is None or parts[0].keys() & parts[1].keys():
            return None
        return parts[0] | parts[1]


def _is_scale(name: str) -> bool:
    return is_kernel_float(name) or name == _EXPONENT_DTYPE


def _found(graph: Graph, var: relax.Var, call: relax.Call, name: KernelFloat) -> Found | Refusal:
    left, right = call.args
    if min(len(shape(left)), len(shape(right))) < 2:
        return Refusal("it is a product with a vector")
    k, n = map(static, shape(right)[-2:])
    if n is None or k is None:
        return Refusal(f"its second operand has the shape {list(shape(right))}, which is not constant")
    expressions = IndexExpressions(graph)
    *rows, column = (expressions.space.variable(f"i{axis}", dim) for axis, dim in enumerate(shape(call)))
    depth = expressions.space.variable("depth", k)
    row, m = flattened(rows, shape(call)[:-1]), product(shape(call)[:-1])
    group, groups = _block(depth), _blocks(k)
    activation = _Operand(expressions, _Matrix(row, depth, m, k), _Matrix(row, group, m, groups))
    blocks = _Matrix(_block(column), group, int64(_blocks(n)), groups)
    weight = _Operand(expressions, _Matrix(column, depth, int64(n), k), blocks)
    a = activation.factors(left, broadcast_index((*rows, depth), shape(left)))
    if a is None or len(a) < 2:
        shared = f"{QUANTIZATION_BLOCK} channels of a row"
        return Refusal(f"its first operand is not {OPERAND_DTYPE} [{m}, {k}] times a scale for {shared}")
    b = weight.factors(right, broadcast_index((*rows[:-1], depth, column), shape(right)))
    if b is None or len(b) < 2:
        shared = f"a block of {QUANTIZATION_BLOCK} x {QUANTIZATION_BLOCK}"
        return Refusal(f"its second operand is not {OPERAND_DTYPE} [{n}, {k}] transposed times a scale for {shared}")
    inputs = {"a": a["numbers"], "b": b["numbers"], "a_scales": a["scales"], "b_scales": b["scales"]}
    return Found(ScaledMatmulParameters(n, k, name), inputs, {var: 0}, between(graph, call, var))


def _block(index: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.floordiv(index, int64(QUANTIZATION_BLOCK))


def _blocks(size: int) -> int:
    return -(-size // QUANTIZATION_BLOCK)


SCALED_MATMUL = Rule(
    name="scaled_matmul",
    kernel="matmul.scaled",
    roots=operators("matmul", "astype", "reshape"),
    recognize=_recognize,
    call=kernel_call,
    before=("fused_qkv", "matmul"),
)
