"""Values that variables hold within an expression, in memory of a function's own, where TVM sees no further.

When LLVM code is generated, TVM's analyzer replaces each variable by its value, simplifies the result, and visits the
conditions of selections several times. Where values are computed from values (a GELU of a GELU), time then grows
exponentially with their number. A load has nothing to simplify, and LLVM makes registers of such memory. So it is with
positions that are quotients by sizes (a reshape of axes whose sizes are formulas): each selects by the signs of both.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.vector_selections import lanes_of
from tkc.schedules.target import is_gpu_code

_LAZY = Op.get("tirx.if_then_else")
_VALUES = ["tirx.Let", "tirx.Var", "tirx.Select", "tirx.Call", "tirx.And", "tirx.Or"]


@tvm.transform.module_pass(opt_level=0, name="HoldValues")
class HoldValues:
    """Replaces ``Let`` in stores and variables of CPU functions by local memory, and selections inside conditions, too.

    It comes last before code is generated. What is evaluated in one branch only stays in it.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the stores of every function so written."""
        result = IRModule(module.functions, attrs=module.attrs)
        for variable, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc) and not is_gpu_code(func):
                result[variable] = func.with_body(
                    ir_transform(func.body, None, _held, ["tirx.BufferStore", "tirx.Bind"])
                )
        return result


def bound(value: tirx.PrimExpr, body: Callable[[tirx.PrimExpr], tirx.PrimExpr]) -> tirx.PrimExpr:
    """``body`` of ``value``, which is computed once. :class:`HoldValues` stores it where TVM would simplify it."""
    if isinstance(value, tirx.Var | tirx.FloatImm | tirx.IntImm | tirx.Broadcast | tirx.BufferLoad):
        return body(value)
    variable = tirx.Var("operand", value.dtype)
    return tirx.Let(variable, value, body(variable))


def _held(store: tirx.BufferStore | tirx.Bind) -> tirx.Stmt | None:
    values = _Values()
    if isinstance(store, tirx.Bind):
        return values.held(store)
    value, indices = values.rewritten(store.value), list(map(values.rewritten, store.indices))
    if not values.statements:
        return None
    return tirx.SeqStmt([*values.statements, tirx.BufferStore(store.buffer, value, indices, store.predicate)])


class _Values:
    """The statements that compute the values of one expression, in order, and what stands for its variables."""

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []
        self._loads: dict[tirx.Var, tirx.PrimExpr] = {}  # a load, or another variable, for each one
        self._lazy = False
        self._conditional = False

    def rewritten(self, expr: tirx.PrimExpr) -> tirx.PrimExpr:
        """``expr`` without what :attr:`statements` compute before."""
        return ir_transform(tirx.Evaluate(expr), self._replaced, None, _VALUES).value

    def held(self, bind: tirx.Bind) -> tirx.Stmt | None:
        """``bind`` to what is held in memory, if TVM is to see no further; ``None`` otherwise."""
        value = self.rewritten(bind.value)
        if _divides_by_size(value):
            value = self._hold(bind.var.name, value)
        return tirx.SeqStmt([*self.statements, tirx.Bind(bind.var, value)]) if self.statements else None

    def _replaced(self, expr: tirx.PrimExpr) -> tirx.PrimExpr | None:
        if isinstance(expr, tirx.Var):
            return self._loads.get(expr)
        if isinstance(expr, tirx.Let):
            return self._let(expr)
        if isinstance(expr, tirx.Select):
            return self._selection(expr)
        if isinstance(expr, tirx.And | tirx.Or):
            return self._always_first(expr)
        return self._branches(expr) if expr.op.same_as(_LAZY) and not self._lazy else None

    def _let(self, expr: tirx.Let) -> tirx.PrimExpr:
        value = self.rewritten(expr.value)
        if self._lazy:
            return tirx.Let(expr.var, value, self.rewritten(expr.body))
        if _is_of_data(value) or _divides_by_size(value):
            self._loads[expr.var] = self._hold(expr.var.name, value)
        else:
            # What is held may be made of it. An expression that stands twice has two such variables.
            self._loads[expr.var] = bound = tirx.Var(expr.var.name, expr.var.dtype)
            self.statements.append(tirx.Bind(bound, value))
        return self.rewritten(expr.body)

    def _selection(self, expr: tirx.Select) -> tirx.PrimExpr:
        outer, self._conditional = self._conditional, True
        condition = self.rewritten(expr.condition)
        self._conditional = outer
        selected = tirx.Select(condition, self.rewritten(expr.true_value), self.rewritten(expr.false_value))
        if outer and not self._lazy and "float" in expr.dtype:
            return self._hold("selected", selected)
        return selected

    def _branches(self, call: tirx.Call) -> tirx.PrimExpr:
        """An ``if_then_else``, as a statement where one of its branches has values to hold."""
        condition, *branches = call.args
        condition = self.rewritten(condition)
        outer, conditional = self.statements, self._conditional
        self._conditional = False  # its value is held, or has no selections
        values, bodies = [], []
        for branch in branches:
            self.statements = []
            values.append(self.rewritten(branch))
            bodies.append(self.statements)
        self.statements, self._conditional = outer, conditional
        if not any(bodies):
            return tirx.Call(call.dtype, call.op, [condition, *values])
        buffer, indices = _memory("chosen", call.dtype)
        chosen = [
            tirx.SeqStmt([*body, tirx.BufferStore(buffer, value, indices)])
            if body
            else tirx.BufferStore(buffer, value, indices)
            for body, value in zip(bodies, values, strict=True)
        ]
        self.statements += [tirx.AllocBuffer(buffer), tirx.IfThenElse(condition, *chosen)]
        return tirx.BufferLoad(buffer, indices)

    def _always_first(self, expr: tirx.And | tirx.Or) -> tirx.PrimExpr:
        """``expr``, of whose operands only the first is evaluated in any case; of vectors both are."""
        first = self.rewritten(expr.a)
        outer, self._lazy = self._lazy, self._lazy or lanes_of(expr) == 1
        second = self.rewritten(expr.b)
        self._lazy = outer
        return type(expr)(first, second)

    def _hold(self, name: str, value: tirx.PrimExpr) -> tirx.PrimExpr:
        buffer, indices = _memory(name, value.dtype)
        self.statements += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, indices)]
        return tirx.BufferLoad(buffer, indices)


def _memory(name: str, dtype: str) -> tuple[tirx.Buffer, list[tirx.PrimExpr]]:
    """Local memory for one value of ``dtype``, which may be a vector, and the indices of it all."""
    element, _, lanes = dtype.partition("x")
    count = int(lanes or 1)
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    return tirx.decl_buffer((count,), element, name, scope="local"), [
        tirx.Ramp(zero, one, count) if count > 1 else zero
    ]


def _is_of_data(value: tirx.PrimExpr) -> bool:
    """Whether ``value`` is a float, or an integer that is loaded or made of a float: TVM is to know other indices."""
    return any(isinstance(node, tirx.BufferLoad) or "float" in getattr(node, "dtype", "") for node in nodes(value))


def _divides_by_size(value: tirx.PrimExpr) -> bool:
    """Whether ``value`` is an integer made of a quotient or remainder by no constant, of which TVM can know nothing."""
    return any(isinstance(node, tirx.Div | tirx.Mod) and not _is_constant(node.b) for node in nodes(value))


def _is_constant(number: tirx.PrimExpr) -> bool:
    return isinstance(number.value if isinstance(number, tirx.Broadcast) else number, tirx.IntImm | tirx.FloatImm)
