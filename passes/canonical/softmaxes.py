"""Exponentials divided by their sum, which are softmax written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.relax import op
from tvm_ffi import structural_equal

from tkc.passes.graph.bindings import SHAPE_CHANGES, Graph, dtype, has_known_shape, is_floating, permuted_axes, shape
from tkc.passes.graph.readers import sole_reader


@tvm.transform.module_pass(opt_level=0, name="Softmaxes")
class Softmaxes:
    """Replaces softmax that is written out by the operator, and moves a division by the sum before a product.

    ``exp(x - max(x)) / sum(exp(x - max(x)))``, ``exp(x - logsumexp(x))`` and ``exp(log_softmax(x))`` are
    ``softmax(x)``; ``exp(x - max(x)) @ v / sum(exp(x - max(x)))`` is ``softmax(x) @ v``. Rows in which all is minus
    infinity are NaN in each of them. With a maximum that is made finite first, as ``logsumexp`` does, elements beside
    one of plus infinity would be zero, not NaN: these forms are replaced only where a product sums the whole row, the
    NaN with it. Exponentials without the maximum overflow where softmax does not, and stay.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the operator."""
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                graph = Graph(module, function)
                blocks = [_rewritten(graph, block) for block in function.body.blocks]
                if any(block is not None for block in blocks):
                    kept = [new or old for new, old in zip(blocks, function.body.blocks, strict=True)]
                    body = relax.SeqExpr(kept, function.body.body)
                    changed = relax.Function(
                        function.params, body, function.ret_struct_info, function.is_pure, function.attrs
                    )
                    module = IRModule({**module.functions, name: changed}, module.attrs, module.global_infos)
        simplify = tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])
        return simplify(module)


@dataclass(frozen=True)
class _Exponentials:
    """``exp(x - shift)`` by ``axis``; the shift is the row's maximum, which (``guarded``) was made finite."""

    x: relax.Expr
    axis: int
    guarded: bool


def _rewritten(graph: Graph, block: relax.BindingBlock) -> relax.BindingBlock | None:
    bindings, changed = [], False
    for binding in block.bindings:
        value = _softmax(graph, binding) if isinstance(binding, relax.VarBinding) else None
        changed |= value is not None
        bindings.append(binding if value is None else relax.VarBinding(binding.var, value))
    return type(block)(bindings, block.span) if changed else None


def _softmax(graph: Graph, binding: relax.VarBinding) -> relax.Expr | None:
    value = binding.value
    if graph.call(value, "relax.exp") is not None:
        found = _of_logarithm(graph, value)
    elif graph.call(value, "relax.divide", "relax.multiply") is not None:
        late = _late_division(graph, value)
        if late is not None:
            return late
        found = _of_quotient(graph, value)
    else:
        return None
    if found is None or (found.guarded and not _is_summed(graph, binding.var, found.axis)):
        return None
    fits = has_known_shape(value) and graph.same_shape(shape(found.x), shape(value))
    return _operator(found, dtype(value)) if fits else None


def _operator(found: _Exponentials, name: str) -> relax.Expr:
    """The softmax, rounded to ``name`` once, as PyTorch's is."""
    wide = "float64" if dtype(found.x) == "float64" else "float32"
    softmax = op.nn.softmax(found.x if dtype(found.x) == wide else op.astype(found.x, wide), found.axis)
    return softmax if name == wide else op.astype(softmax, name)


def _of_quotient(graph: Graph, value: relax.Call) -> _Exponentials | None:
    """``exp(...) / sum(exp(...))``."""
    parts = _quotient(graph, value)
    found = None if parts is None else _exponentials(graph, graph.through_casts(parts[0]))
    return found if found is not None and parts is not None and _is_sum(graph, parts[1], parts[0], found) else None


def _quotient(graph: Graph, value: relax.Call) -> tuple[relax.Expr, relax.Expr] | None:
    """Dividend and divisor of ``value``, which may be a product with an inverse."""
    if value.op.name == "relax.divide":
        return value.args[0], value.args[1]
    for dividend, factor in (value.args, reversed(value.args)):
        factor = graph.through_casts(factor)
        once = graph.call(factor, "relax.multiply")  # PyTorch makes 1 / x the reciprocal times 1
        if once is not None and graph.constant(once.args[1]) == 1:
            factor = once.args[0]
        inverse = graph.call(factor, "relax.divide")
        if inverse is not None and graph.constant(inverse.args[0]) == 1:
            return dividend, inverse.args[1]
    return None


def _late_division(graph: Graph, value: relax.Call) -> relax.Expr | None:
    """``(exp(...) @ v) / sum(exp(...))`` as a product with softmax; nothing else reads the product."""
    parts = _quotient(graph, value)
    product = None if parts is None else graph.through_casts(parts[0])
    call = None if product is None else graph.call(product, "relax.matmul")
    if parts is None or call is None or not has_known_shape(call) or not has_known_shape(value):
        return None
    weights = call.args[0]
    found = _exponentials(graph, graph.through_casts(weights))
    if found is None or found.axis != weights.struct_info.ndim - 1 or not _is_sum(graph, parts[1], weights, found):
        return None
    is_kept = call.struct_info.ndim == weights.struct_info.ndim and graph.same_shape(shape(call), shape(value))
    if not is_kept or not _alone(graph, parts[0], call):
        return None
    result = op.matmul(_operator(found, dtype(weights)), call.args[1], call.attrs.out_dtype)
    return result if dtype(call) == dtype(value) else op.astype(result, dtype(value))


def _alone(graph: Graph, expr: relax.Expr, product: relax.Call) -> bool:
    """Whether each of ``expr``, the product behind its casts, and those between has one reader."""
    while sole_reader(graph, expr) is not None:
        if graph.value(expr).same_as(product):
            return True
        expr = graph.value(expr).args[0]
    return False


def _is_sum(graph: Graph, divisor: relax.Expr, exponentials: relax.Expr, found: _Exponentials) -> bool:
    """Whether ``divisor`` has for each row the sum of its exponentials, in the place of their axis."""
    call = graph.call(graph.through_views_and_casts(divisor), "relax.sum")
    if call is None or _axis(call) != found.axis or not has_known_shape(divisor):
        return False
    expected = [1 if axis == found.axis else size for axis, size in enumerate(shape(found.x))]
    if not graph.same_shape(shape(divisor), expected):
        return False
    return _alike(graph, call.args[0], exponentials)


def _exponentials(graph: Graph, expr: relax.Expr) -> _Exponentials | None:
    """``exp(x - max(x))`` over one axis."""
    call = graph.call(expr, "relax.exp")
    difference = None if call is None else graph.call(graph.through_casts(call.args[0]), "relax.subtract")
    if difference is None or not has_known_shape(difference.args[0]):
        return None
    return _shifted(graph, *difference.args)


def _shifted(graph: Graph, x: relax.Expr, shift: relax.Expr) -> _Exponentials | None:
    """``x`` by the axis whose maximum ``shift`` is, with the size 1."""
    if not has_known_shape(shift) or not is_floating(dtype(x)):
        return None
    most, guarded = graph.through_views_and_casts(shift), False
    if (selected := graph.call(most, "relax.where")) is not None:
        inner = _made_finite(graph, selected)
        if inner is None:
            return None
        most, guarded = inner, True
    call = graph.call(most, "relax.max")
    axis = None if call is None else _axis(call)
    if call is None or axis is None or not _alike(graph, call.args[0], x):
        return None
    expected = [1 if place == axis else size for place, size in enumerate(shape(x))]
    return _Exponentials(x, axis, guarded) if graph.same_shape(shape(shift), expected) else None


def _made_finite(graph: Graph, selected: relax.Call) -> relax.Expr | None:
    """What ``selected`` is but for zeros in place of infinity, or of minus infinity."""
    condition, chosen, otherwise = selected.args
    call = graph.call(graph.through(condition, *SHAPE_CHANGES), "relax.equal", "relax.isinf", "relax.isfinite")
    if call is None:
        return None
    kept, other = (chosen, otherwise) if call.op.name == "relax.isfinite" else (otherwise, chosen)
    tested = graph.through_views_and_casts(call.args[0])
    if call.op.name == "relax.equal":
        absolute = graph.call(tested, "relax.abs")
        if graph.constant(call.args[1]) != (-inf if absolute is None else inf):
            return None
        tested = tested if absolute is None else graph.through_views_and_casts(absolute.args[0])
    inner = graph.through_views_and_casts(kept)
    return inner if graph.constant(other) == 0 and graph.same(tested, inner) else None


def _of_logarithm(graph: Graph, value: relax.Call) -> _Exponentials | None:
    """``exp(log_softmax(x))``, or ``exp(x - logsumexp(x))``."""
    exponent = graph.through_casts(value.args[0])
    if (call := graph.call(exponent, "relax.nn.log_softmax")) is not None and has_known_shape(call):
        return _Exponentials(call.args[0], int(call.attrs.axis) % call.struct_info.ndim, guarded=False)
    difference = graph.call(exponent, "relax.subtract")
    if difference is None or not has_known_shape(difference.args[0]) or not has_known_shape(difference.args[1]):
        return None
    x, subtracted = difference.args
    total = graph.call(graph.through_views_and_casts(subtracted), "relax.add")
    if total is None:
        return None
    for logarithm, shift in (total.args, reversed(total.args)):
        log = graph.call(graph.through_views_and_casts(logarithm), "relax.log")
        summed = None if log is None else graph.call(graph.through_views_and_casts(log.args[0]), "relax.sum")
        found = None if summed is None else _exponentials(graph, graph.through_casts(summed.args[0]))
        if summed is None or found is None or _axis(summed) != found.axis or not _alike(graph, found.x, x):
            continue
        expected = [1 if axis == found.axis else size for axis, size in enumerate(shape(x))]
        same_shift = _is_shift(graph, shift, summed.args[0])
        if same_shift and graph.same_shape(shape(subtracted), expected) and graph.same_shape(shape(log), shape(summed)):
            return _Exponentials(x, found.axis, guarded=True)
    return None


def _is_shift(graph: Graph, shift: relax.Expr, exponentials: relax.Expr) -> bool:
    """Whether ``shift`` is what was taken off before these exponentials."""
    exp = graph.call(graph.through_casts(exponentials), "relax.exp")
    difference = None if exp is None else graph.call(graph.through_casts(exp.args[0]), "relax.subtract")
    return difference is not None and graph.same(
        graph.through_views_and_casts(difference.args[1]), graph.through_views_and_casts(shift)
    )


def _is_summed(graph: Graph, expr: relax.Var, axis: int) -> bool:
    """Whether products that sum over ``axis`` are all that reads ``expr``, as it is or rearranged."""
    readers = graph.users(expr)
    if not readers or graph.is_returned(expr) or not has_known_shape(expr):
        return False
    for reader in readers:
        call = graph.value(reader)
        if graph.call(reader, "relax.matmul") is not None:
            last = expr.struct_info.ndim - 1
            if not (graph.same(call.args[0], expr) and axis == last):
                return False
            continue
        if graph.call(reader, "relax.astype") is not None and is_floating(dtype(call)):
            place: int | None = axis
        elif graph.call(reader, "relax.permute_dims") is not None:
            place = permuted_axes(call).index(axis)
        elif graph.call(reader, *SHAPE_CHANGES) is not None and has_known_shape(call):
            place = _place(graph, expr, call, axis)
        else:
            return False
        if place is None or not _is_summed(graph, reader, place):
            return False
    return True


def _place(graph: Graph, expr: relax.Expr, view: relax.Call, axis: int) -> int | None:
    """Where ``axis`` of ``expr`` is in a change of its shape; ``None`` where it is not kept whole."""
    if axis != expr.struct_info.ndim - 1:
        return None
    sizes = list(shape(view))
    while sizes and graph.equal(sizes[-1], 1):
        sizes.pop()
    return len(sizes) - 1 if sizes and graph.equal(sizes[-1], shape(expr)[-1]) else None


def _alike(graph: Graph, left: relax.Expr, right: relax.Expr, depth: int = 4) -> bool:
    """Whether two expressions are the same but for floating-point casts, or are computed alike in so many steps."""
    left, right = (graph.value(_uncast(graph, expr)) for expr in (left, right))
    if left.same_as(right):
        return True
    if depth == 0 or not (isinstance(left, relax.Call) and isinstance(right, relax.Call)):
        return bool(structural_equal(left, right)) if isinstance(left, relax.Constant | relax.PrimValue) else False
    same = left.op.same_as(right.op) and structural_equal(left.attrs, right.attrs) and len(left.args) == len(right.args)
    return same and all(_alike(graph, *pair, depth - 1) for pair in zip(left.args, right.args, strict=True))


def _uncast(graph: Graph, expr: relax.Expr) -> relax.Expr:
    return graph.through_casts(expr) if isinstance(expr.struct_info, relax.TensorStructInfo) else expr


def _axis(call: relax.Call) -> int | None:
    """The one axis that ``call`` reduces."""
    rank = call.args[0].struct_info.ndim
    axes = None if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
    return axes[0] if axes is not None and len(axes) == 1 else None
