"""Hands TensorIR functions the symbolic sizes that they read and no tensor of theirs tells."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule, Op
from tvm.ir.transform import PassContext
from tvm.relax.expr_functor import PyExprMutator, mutator

from tkc.passes.graph.rewriting import rewritten

_CALLS = tuple(map(Op.get, ("relax.call_tir", "relax.call_tir_inplace")))


@tvm.transform.module_pass(opt_level=0, name="CapturedSizes")
class CapturedSizes:
    """Has functions take the caller's sizes that they read from a tensor's shape, or as parameters, each once.

    ``emit_te`` finds the sizes that a tensor's shape or an argument has. Those that the expression took from around it
    stay the caller's variables, which generated code does not have, or become parameters beside others of the same
    size. Runs before fusion, which takes a size as a parameter only where no tensor of the function has it; and
    ``FuseTIR`` takes two tensors for different ones where the same size has two variables, or variables of two kinds
    (``SizeVar`` and ``Var``).
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` whose functions have all that they read, and no size of the caller's twice."""
        captured = {
            name: found
            for name, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc) and (found := _captured(function))
        }
        return rewritten(module, lambda module: _Handing(module, captured))


def _captured(function: tirx.PrimFunc) -> list[tirx.Var]:
    """The variables that ``function`` reads, and neither has as parameters nor as sizes of its tensors."""
    buffers = list(function.buffer_map.values())
    sizes = [size for buffer in buffers for size in buffer.shape if isinstance(size, tirx.Var)]
    defined = [*function.params, *(buffer.data for buffer in buffers), *sizes]

    def visit(node: tvm.ir.Node) -> None:  # TVM takes the iterators of blocks for undefined
        if isinstance(node, tirx.SBlock):
            defined.extend(iterator.var for iterator in node.iter_vars)

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return list(tirx.analysis.undefined_vars(function.body, defined))


@mutator
class _Handing(PyExprMutator):
    def __init__(self, module: IRModule, captured: dict[GlobalVar, list[tirx.Var]]) -> None:
        super().__init__(module)
        self._module = module
        self._captured = captured

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op not in _CALLS or not isinstance(function := self._module[call.args[0]], tirx.PrimFunc):
            return call
        name, operands, *given = call.args
        handed, captured = list(given[0].values) if given else [], self._captured.get(name, [])
        parameters = [*function.params[len(function.params) - len(handed) :], *captured]
        known = _told(function, operands)
        becomes: dict[tirx.Var, tirx.Var] = {}
        kept: list[tirx.PrimExpr] = []
        made: dict[tirx.Var, tirx.PrimExpr] = {}
        for parameter, size in zip(parameters, [*handed, *captured], strict=True):
            if size in known:
                becomes[parameter] = known[size]
                continue
            if type(parameter) is tirx.Var and parameter not in captured:
                kept.append(size)
            else:
                becomes[parameter] = tirx.Var(parameter.name, parameter.dtype)
                made[becomes[parameter]] = size
            if isinstance(size, tirx.Var):
                known[size] = becomes.get(parameter, parameter)
        outputs = function.params[len(operands.fields) : len(function.params) - len(handed)]
        operand_sizes = {own for own, _ in _sizes(function, function.params, [e.struct_info for e in operands.fields])}
        written = [each for each in _sizes(function, outputs, _results(call)) if each[0] not in operand_sizes]
        for own, size in written:
            # A size of a result alone, which is the caller's variable or another one than the operands'.
            if own not in parameters and known.get(size, own) is not own:
                becomes[own] = known[size]
            elif own not in parameters and size not in known and type(own) is not tirx.Var:
                known[size] = becomes[own] = tirx.Var(own.name, own.dtype)
        if not becomes:
            return call
        told = [own for own, _ in written if own in becomes and own not in parameters]
        open_function = tirx.PrimFunc(
            [*function.params, *captured, *dict.fromkeys(told), *made],
            function.body,
            function.ret_type,
            function.buffer_map,
            function.attrs,
        )
        # Of its own: another call may have the same size in another tensor.
        own = self.builder_.add_func(open_function.specialize(becomes), name.name_hint)
        sizes = [*kept, *made.values()]
        shape = [relax.ShapeExpr(sizes)] if sizes else []
        return relax.Call(call.op, [own, operands, *shape], call.attrs, call.sinfo_args)


def _told(function: tirx.PrimFunc, operands: relax.Tuple) -> dict[tirx.Var, tirx.Var]:
    """The caller's sizes that are sizes of ``operands``, each with the function's own variable for it."""
    told: dict[tirx.Var, tirx.Var] = {}
    for own, size in _sizes(function, function.params, [operand.struct_info for operand in operands.fields]):
        told.setdefault(size, own)
    return told


def _sizes(
    function: tirx.PrimFunc, params: Sequence[tirx.Var], tensors: Sequence[relax.TensorStructInfo]
) -> list[tuple[tirx.Var, tirx.Var]]:
    """The variables that are sizes of ``params`` in the function, each with that of the caller's ``tensors``."""
    return [
        (own, size)
        for param, tensor in zip(params, tensors, strict=False)
        if param in function.buffer_map and isinstance(tensor.shape, relax.ShapeExpr)
        for own, size in zip(function.buffer_map[param].shape, tensor.shape.values, strict=True)
        if isinstance(own, tirx.Var) and isinstance(size, tirx.Var)
    ]


def _results(call: relax.Call) -> list[relax.TensorStructInfo]:
    (info,) = call.sinfo_args
    return list(info.fields) if isinstance(info, relax.TupleStructInfo) else [info]
