"""Gives updated tensors their new values in their own memory, in an order in which nothing that is needed is lost."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm_ffi import structural_equal

from tkc.passes.graph.copies import copy_of
from tkc.passes.graph.memory import named
from tkc.passes.graph.updates import returned, updates


@tvm.transform.module_pass(opt_level=0, name="UpdateInPlace")
class UpdateInPlace:
    """Lets every updated parameter hold its new value when the function has run.

    A write in place stays one where nothing behind it reads what it overwrites; else it writes into a copy. A new value
    that one function computes is computed into the parameter where nothing reads the old one from there on. What is
    elsewhere at the end is copied into the parameter. All this goes by the order of the bindings, which no later pass
    may change. A result that is an updated parameter's memory becomes a copy, because the next call changes that.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with updates in place."""
        builder = relax.BlockBuilder(module)
        for name, function in module.functions_items():
            if isinstance(function, relax.Function) and updates(function):
                builder.update_func(name, _Updater(builder, function).updated())
        return relax.transform.Normalize()(builder.get())


class _Updater:
    """Rewrites one function; what it adds to the module goes to ``builder``."""

    def __init__(self, builder: relax.BlockBuilder, function: relax.Function) -> None:
        self._builder = builder
        self._function = function
        self._updates = updates(function)
        self._returned = returned(function).var
        self._order = [binding for block in function.body.blocks for binding in block.bindings]
        self._last_read = {
            var: place for place, binding in enumerate(self._order) for var in relax.analysis.free_vars(binding.value)
        }
        # The updated parameter, or the copy of one, whose memory each variable is.
        self._memory = {update.target: update.target for update in self._updates}
        self._computed_into = self._destinations()

    def updated(self) -> relax.Function:
        """The function with its updates in place."""
        place, blocks = 0, []
        for block in self._function.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                bindings += self._rewritten(binding, place)
                place += 1
            blocks.append(type(block)(bindings))
        old = self._function
        body = relax.SeqExpr(blocks, old.body.body)
        return relax.Function(old.params, body, old.ret_struct_info, old.is_pure, old.attrs)

    def _rewritten(self, binding: relax.Binding, place: int) -> list[relax.Binding]:
        value = binding.value
        if binding.var.same_as(self._returned):
            return self._ended(binding)
        if _is_call(value, "relax.call_tir_inplace"):
            return self._written(binding, place)
        if (target := self._computed_into.get(binding.var)) is not None:
            self._memory[binding.var] = target
            casts: list[relax.Binding] = []
            into = _into(value, self._shaped(target, value.sinfo_args[0], casts))
            return [*casts, relax.VarBinding(binding.var, into)]
        source = named(value)
        if isinstance(source, relax.Var) and source in self._memory:
            self._memory[binding.var] = self._memory[source]
        return [binding]

    def _destinations(self) -> dict[relax.Var, relax.Var]:
        """The parameter into which each variable's function can compute: the one that the variable updates."""
        made = {binding.var: place for place, binding in enumerate(self._order)}
        found: dict[relax.Var, relax.Var] = {}
        for update in self._updates:
            place = made.get(update.value)
            if place is None or update.value in found or not _computes_tensor(self._order[place].value):
                continue
            if self._last_read_of(update.target) < place:
                found[update.value] = update.target
        return found

    def _last_read_of(self, variable: relax.Var) -> int:
        """The place of the last binding that reads ``variable`` or a view of it."""
        names, last = {variable}, -1
        for place, binding in enumerate(self._order):
            if not names.isdisjoint(relax.analysis.free_vars(binding.value)):
                last = place
                if named(binding.value) in names or _is_call(binding.value, "relax.call_tir_inplace"):
                    names.add(binding.var)
        return last

    def _written(self, binding: relax.Binding, place: int) -> list[relax.Binding]:
        """A write in place, into a copy where what it overwrites is read later."""
        (old, *others), call = binding.value.args[1].fields, binding.value
        memory = self._memory[old]
        names = [var for var, other in self._memory.items() if other.same_as(memory)]
        bindings: list[relax.Binding] = []
        if any(self._last_read.get(name, -1) > place or name in others for name in names):
            memory = self._copied(old, bindings)
            arguments = relax.Tuple([memory, *others])
            call = relax.Call(call.op, [call.args[0], arguments, *call.args[2:]], call.attrs, call.sinfo_args)
            self._memory[memory] = memory
        self._memory[binding.var] = memory
        return [*bindings, relax.VarBinding(binding.var, call)]

    def _ended(self, binding: relax.Binding) -> list[relax.Binding]:
        """What returns, behind copies of the new values that are not in their parameters' memory yet."""
        results = list(binding.value.fields)
        first = len(results) - len(self._updates)
        kept: list[relax.Binding] = []
        copied: list[relax.Binding] = []
        for position, result in enumerate(results[:first]):
            if self._updated_memory(result) is not None:
                results[position] = self._copied(result, kept)
        missing = {
            update.target: (position, update.value)
            for position, update in enumerate(self._updates, first)
            if not update.target.same_as(self._updated_memory(update.value))
        }
        for target, (position, value) in missing.items():
            if self._updated_memory(value) in missing:  # where another copy may come first
                value = self._copied(value, kept)
            copy = copy_of(self._builder, value)
            into = self._shaped(target, copy.sinfo_args[0], copied)
            result = relax.DataflowVar("updated", into.struct_info)
            copied.append(relax.VarBinding(result, _into(copy, into)))
            results[position] = result
        return [*kept, *copied, relax.VarBinding(binding.var, relax.Tuple(results))]

    def _shaped(self, target: relax.Var, struct_info: relax.StructInfo, bindings: list[relax.Binding]) -> relax.Var:
        """``target`` with its sizes written as in ``struct_info``; a cast, if they are not, joins ``bindings``.

        A model that was exported under a condition such as ``n == m + 1`` has both in place of the same size.
        """
        if structural_equal(target.struct_info, struct_info):
            return target
        cast = relax.DataflowVar("shaped", struct_info)
        bindings.append(relax.MatchCast(cast, target, struct_info))
        self._memory[cast] = self._memory[target]
        return cast

    def _updated_memory(self, value: relax.Expr) -> relax.Var | None:
        """The updated parameter whose memory ``value`` is, if it is one's."""
        memory = self._memory.get(value) if isinstance(value, relax.Var) else None
        return memory if any(update.target.same_as(memory) for update in self._updates) else None

    def _copied(self, value: relax.Expr, bindings: list[relax.Binding]) -> relax.Var:
        """A copy of ``value``, whose binding joins ``bindings``."""
        copy = relax.DataflowVar("copy", value.struct_info)
        bindings.append(relax.VarBinding(copy, copy_of(self._builder, value)))
        return copy


def _computes_tensor(value: relax.Expr) -> bool:
    return _is_call(value, "relax.call_tir") and isinstance(value.sinfo_args[0], relax.TensorStructInfo)


def _into(call: relax.Call, target: relax.Var) -> relax.Call:
    """The ``call_tir`` as one that puts its result into ``target``."""
    arguments = list(call.args[1].fields)
    sizes = call.args[2] if len(call.args) > 2 else None
    return relax.call_tir_inplace(call.args[0], [*arguments, target], len(arguments), call.sinfo_args[0], sizes)


def _is_call(value: relax.Expr, *names: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, Op) and value.op.name in names
