"""TVM's operator fusion, after which each variable is called as the one before it that holds the same."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GlobalVar, IRModule
from tvm.ir.transform import PassContext

from tkc.contracts import PRIMITIVE
from tkc.passes.graph.names import name_of, renamed


@tvm.transform.module_pass(opt_level=0, name="FuseOperators")
class FuseOperators:
    """TVM's ``FuseOps``, which calls what fused functions return ``lv1``, ``lv2`` ...: names of other values before.

    By their names, reports and profiles tell which of the model's nodes a function computes.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with its operators fused, as far as ``FuseOps`` does, and the names of its variables kept."""
        fused = relax.transform.FuseOps()(module)
        result = IRModule(fused.functions, attrs=fused.attrs, global_infos=fused.global_infos)
        for name, function in fused.functions_items():
            if not isinstance(function, relax.Function) or PRIMITIVE in (function.attrs or {}):
                continue
            walk = _SameValues(fused)
            walk.match(function, module[name.name_hint])
            result[name] = renamed(fused, function, walk.names)
        return result


class _SameValues:
    """Finds for the variables of a fused graph those of the graph before it that hold the same values."""

    def __init__(self, fused: IRModule) -> None:
        self.names: dict[relax.Var, str] = {}
        self._fused = fused
        self._bodies = {
            name.name_hint: (function, _values(function.body))
            for name, function in fused.functions_items()
            if isinstance(function, relax.Function) and PRIMITIVE in (function.attrs or {})
        }

    def match(self, after: relax.Function, before: relax.Function) -> None:
        """Match both from their results on; they compute the same by the same operators."""
        values, earlier = _values(after.body), _values(before.body)
        pending: list[tuple[relax.Expr, relax.Expr]] = [(after.body.body, before.body.body)]
        seen: set[tuple[relax.Var, relax.Var]] = set()
        while pending:
            one, other = pending.pop()
            if isinstance(one, relax.Var) and isinstance(other, relax.Var):
                if (one, other) in seen or one not in values:
                    continue
                seen.add((one, other))
                self.names.setdefault(one, name_of(other, earlier))
                pending += self._through(one, other, values, earlier)
            else:
                pending += _operands(one, other)

    def _through(
        self,
        variable: relax.Var,
        other: relax.Var,
        values: dict[relax.Var, relax.Expr],
        earlier: dict[relax.Var, relax.Expr],
    ) -> list[tuple[relax.Expr, relax.Expr]]:
        """What ``variable`` and ``other`` are computed of, in pairs."""
        value, field = values[variable], None
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in values:
            call = values[value.tuple_value]
            if self._called(call) is not None:
                self.names.setdefault(value.tuple_value, str(other.name_hint))
                value, field = call, int(value.index)
        function = self._called(value)
        if function is None:
            return _operands(value, earlier[other]) if other in earlier else []
        body, inner = function
        result = inner.get(body.body.body, body.body.body) if field is not None else body.body.body
        if field is not None:
            if not isinstance(result, relax.Tuple):
                return []
            result = result.fields[field]
        arguments = dict(zip(body.params, value.args, strict=True))
        return _inside(result, other, inner, arguments, earlier)

    def _called(self, value: relax.Expr) -> tuple[relax.Function, dict[relax.Var, relax.Expr]] | None:
        if isinstance(value, relax.Call) and isinstance(value.op, GlobalVar):
            return self._bodies.get(value.op.name_hint)
        return None


def _inside(
    result: relax.Expr,
    other: relax.Expr,
    inner: dict[relax.Var, relax.Expr],
    arguments: dict[relax.Var, relax.Expr],
    earlier: dict[relax.Var, relax.Expr],
) -> list[tuple[relax.Expr, relax.Expr]]:
    """What a fused function is called with, each with what is the same in the graph before."""
    found: list[tuple[relax.Expr, relax.Expr]] = []
    pending = [(result, other)]
    seen: set[relax.Expr] = set()
    while pending:
        one, same = pending.pop()
        if not isinstance(one, relax.Var):
            pending += _operands(one, same)
        elif one in arguments:
            found.append((arguments[one], same))
        elif one in inner and one not in seen and isinstance(same, relax.Var) and same in earlier:
            seen.add(one)
            value = inner[one]
            pending += [(value, same)] if isinstance(value, relax.Var) else _operands(value, earlier[same])
    return found


def _operands(one: relax.Expr, other: relax.Expr) -> list[tuple[relax.Expr, relax.Expr]]:
    """What two equal expressions read, in pairs; nothing of such as are not equal."""
    if isinstance(one, relax.Var) or isinstance(other, relax.Var):
        return [(one, other)] if isinstance(one, relax.Var) and isinstance(other, relax.Var) else []
    pairs: list[tuple[relax.Expr, relax.Expr]] = []
    if isinstance(one, relax.Call) and isinstance(other, relax.Call) and len(one.args) == len(other.args):
        pairs = list(zip(one.args, other.args, strict=True))
    elif isinstance(one, relax.Tuple) and isinstance(other, relax.Tuple) and len(one.fields) == len(other.fields):
        pairs = list(zip(one.fields, other.fields, strict=True))
    elif isinstance(one, relax.TupleGetItem) and isinstance(other, relax.TupleGetItem):
        pairs = [(one.tuple_value, other.tuple_value)]
    elif isinstance(one, relax.If) and isinstance(other, relax.If):
        pairs = [(one.cond, other.cond), (one.true_branch, other.true_branch), (one.false_branch, other.false_branch)]
    elif isinstance(one, relax.SeqExpr) and isinstance(other, relax.SeqExpr):
        pairs = [(one.body, other.body)]
    return pairs


def _values(body: relax.SeqExpr) -> dict[relax.Var, relax.Expr]:
    """The values of all variables that ``body`` binds, also in branches."""
    values: dict[relax.Var, relax.Expr] = {}

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.SeqExpr):
            values.update({binding.var: binding.value for block in node.blocks for binding in block.bindings})

    relax.analysis.post_order_visit(body, visit)
    return values
