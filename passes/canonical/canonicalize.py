"""Drops casts, reshapes, permutations and masks that change nothing, and joins those that follow each other."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, permuted_axes, shape
from tkc.passes.graph.index_bounds import never_holds, within_bounds


@tvm.transform.module_pass(opt_level=0, name="Canonicalize")
class Canonicalize:
    """Brings casts, reshapes and permutations into one form, so that rules need not look for several.

    A cast to the dtype that is there already vanishes, as do a lossless cast that is undone, a reshape to the same
    shape, an identical permutation, a selection by a condition that never holds, and what brings indices into bounds
    that they do not leave. A cast of a lossless cast, a reshape of a reshape, and a permutation of a permutation become
    one. What is gathered only to be sliced is sliced first.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with simpler functions that compute the same."""
        functions = {
            name: _simplified(Graph(module, function)) if isinstance(function, relax.Function) else function
            for name, function in module.functions_items()
        }
        simplify = tvm.transform.Sequential(
            [relax.transform.Normalize(), relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        )
        return simplify(IRModule(functions, module.attrs, module.global_infos))


def _simplified(graph: Graph) -> relax.Function:
    function = graph.function
    blocks = [_simplified_block(graph, block) for block in function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


def _simplified_block(graph: Graph, block: relax.BindingBlock) -> relax.BindingBlock:
    bindings = [
        relax.VarBinding(binding.var, _simplified_value(graph, binding.value))
        if isinstance(binding, relax.VarBinding)
        else binding
        for binding in block.bindings
    ]
    return type(block)(bindings, block.span)


def _simplified_value(graph: Graph, value: relax.Expr) -> relax.Expr:
    if not isinstance(value, relax.Call):  # another name for a variable, which would be taken for what made that
        return value
    if graph.call(value, "relax.astype") is not None:
        return _cast(graph, value)
    if graph.call(value, "relax.reshape") is not None:
        return _reshape(graph, value)
    if graph.call(value, "relax.permute_dims") is not None:
        return _permutation(graph, value)
    if graph.call(value, "relax.where") is not None:
        return _selection(graph, value)
    if graph.call(value, "relax.floor_mod", "relax.maximum", "relax.minimum") is not None:
        return _index(graph, value)
    if graph.call(value, "relax.strided_slice") is not None:
        return _slice(graph, value)
    return value


def _cast(graph: Graph, call: relax.Call) -> relax.Expr:
    same = graph.before_widening(call.args[0], dtype(call))
    if same is not None and _have_one_shape(graph, same, call):
        return same
    source = graph.before_widening(call.args[0])
    unchanged = source is None or source.same_as(call.args[0]) or not _have_one_shape(graph, source, call)
    return call if unchanged else relax.op.astype(source, dtype(call))


def _have_one_shape(graph: Graph, source: relax.Expr, call: relax.Call) -> bool:
    """Whether ``call`` has the sizes of ``source``, as written: no ``match_cast`` between both gives it others."""
    known = has_known_shape(source) and has_known_shape(call)
    return not known or graph.same_shape(shape(source), shape(call))


def _reshape(graph: Graph, call: relax.Call) -> relax.Expr:
    source = graph.through(call, "relax.reshape")
    if not (has_known_shape(source) and has_known_shape(call)):
        return call
    if graph.same_shape(shape(source), shape(call)):
        return source
    return call if source.same_as(call.args[0]) else relax.op.reshape(source, shape(call))


def _permutation(graph: Graph, call: relax.Call) -> relax.Expr:
    source, axes = call, list(range(call.struct_info.ndim))
    while (permuted := graph.call(source, "relax.permute_dims")) is not None:
        order = permuted_axes(permuted)
        source, axes = permuted.args[0], [order[axis] for axis in axes]
    known = has_known_shape(source) and has_known_shape(call)
    if known and not graph.same_shape([shape(source)[axis] for axis in axes], shape(call)):
        return call  # between both, a match_cast gives the tensor the sizes that it has been checked for
    if axes == sorted(axes):
        return source
    return call if source.same_as(call.args[0]) else relax.op.permute_dims(source, axes)


def _index(graph: Graph, call: relax.Call) -> relax.Expr:
    """PyTorch's ``take_along_dim`` brings indices into bounds, also those that its own top-k chose."""
    source = within_bounds(graph, call)
    return source if _have_one_shape(graph, source, call) else call


def _slice(graph: Graph, call: relax.Call) -> relax.Expr:
    """The first of sorted elements are gathered by the first of their indices."""
    gathered = graph.call(call.args[0], "relax.gather_elements")
    if gathered is None or not has_known_shape(gathered) or len(call.args[1].fields) != 1:
        return call
    rank, axis = gathered.struct_info.ndim, call.args[1].fields[0].value
    if not isinstance(axis, tirx.IntImm) or (int(axis) - int(gathered.attrs.axis)) % rank:
        return call
    if graph.is_returned(gathered) or any(graph.call(u, "relax.strided_slice") is None for u in graph.users(gathered)):
        return call
    indices = relax.Call(call.op, [gathered.args[1], *call.args[1:]], call.attrs)
    return relax.op.gather_elements(gathered.args[0], indices, int(gathered.attrs.axis))


def _selection(graph: Graph, call: relax.Call) -> relax.Expr:
    """Mixture-of-experts layers mask the tokens of experts beyond the last, which their own top-k cannot choose."""
    condition, _, other = call.args
    whole = has_known_shape(other) and has_known_shape(call) and graph.same_shape(shape(other), shape(call))
    return other if whole and never_holds(graph, condition) else call
