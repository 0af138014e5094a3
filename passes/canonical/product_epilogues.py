"""Has the runtime's products on the CPU do what follows them element by element, while the result is in registers."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext

from tkc.passes.graph.bindings import Graph, Slice, dtype, has_known_shape, permuted_axes, shape, static
from tkc.passes.graph.channel_sources import channel_sources
from tkc.passes.graph.channels_last import channels_last, channels_second
from tkc.passes.graph.product_call import Operation, Step, is_product, with_steps

_UNARY = {
    "relax.nn.relu": Operation.RELU,
    "relax.sigmoid": Operation.SIGMOID,
    "relax.nn.silu": Operation.SILU,
    "relax.nn.gelu": Operation.GELU,
    "relax.nn.gelu_tanh": Operation.GELU_TANH,
    "relax.tanh": Operation.TANH,
}
# By a number, by a vector of channels, by a tensor like the result.
_BINARY = {
    "relax.add": (Operation.ADD_NUMBER, Operation.ADD_CHANNEL, Operation.ADD_TENSOR),
    "relax.multiply": (Operation.MULTIPLY_NUMBER, Operation.MULTIPLY_CHANNEL, Operation.MULTIPLY_TENSOR),
    "relax.subtract": (None, Operation.SUBTRACT_CHANNEL, None),
    "relax.divide": (Operation.DIVIDE_NUMBER, None, None),
    "relax.maximum": (Operation.MAXIMUM, None, None),
    "relax.minimum": (Operation.MINIMUM, None, None),
}
_COMMUTE = frozenset({"relax.add", "relax.multiply", "relax.maximum", "relax.minimum"})


@tvm.transform.module_pass(opt_level=0, name="ProductEpilogues")
class ProductEpilogues:
    """Moves elementwise operators that alone read a product into its call: biases, activations, residuals and so on."""

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with longer calls and fewer operators."""
        changed = module.clone()
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                changed.update_func(changed.get_global_var(name.name_hint), _fused(module, function))
        # Blocks without their types get them.
        return relax.transform.Normalize()(changed)


def _fused(module: IRModule, function: relax.Function) -> relax.Function:
    graph = Graph(module, function)
    values: dict[relax.Var, relax.Expr | None] = {}
    builder = relax.BlockBuilder()
    for var, value in graph.var2val.items():
        if not is_product(value):
            continue
        chain = _Chain(graph, var, values)
        if chain.steps:
            values |= dict.fromkeys(chain.taken, None)
            values[chain.end] = builder.normalize(with_steps(value, chain.steps))
    if not values:
        return function
    blocks = [_with(block, values) for block in function.body.blocks]
    body = relax.SeqExpr([block for block in blocks if block.bindings], function.body.body)
    return relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)


def _with(block: relax.BindingBlock, values: dict[relax.Var, relax.Expr | None]) -> relax.BindingBlock:
    """``block`` with other values for some of its variables, and without those that have none."""
    bindings = []
    for binding in block.bindings:
        if binding.var not in values:
            bindings.append(binding)
        elif (value := values[binding.var]) is not None:
            bindings.append(relax.VarBinding(binding.var, value))
    return relax.DataflowBlock(bindings) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(bindings)


class _Chain:
    """What can be done behind the product ``var``: the ``steps``, the variables that they take, and the ``end``."""

    def __init__(self, graph: Graph, var: relax.Var, gone: dict[relax.Var, relax.Expr | None]) -> None:
        self._graph, self._gone = graph, gone
        self._sizes = shape(var)
        self.steps: list[Step] = []
        self.taken: list[relax.Var] = []
        self.end = var
        while self._extend():
            pass

    def _extend(self) -> bool:
        users = self._users(self.end)
        if len(users) == 1:
            if (step := self._step(users[0], self.end)) is not None:
                self._take([step], users)
                return True
            if self._squares(users[0]):
                self._take([Step(Operation.SAVE), Step(Operation.MULTIPLY_SAVED)], users)
                return True
        return len(users) == 2 and any(self._gated(first, last) for first, last in (users, users[::-1]))

    def _take(self, steps: list[Step], variables: list[relax.Var]) -> None:
        self.steps += steps
        self.taken += [self.end, *variables[:-1]]
        self.end = variables[-1]

    def _users(self, var: relax.Var) -> list[relax.Var]:
        """Who reads ``var``; none where it cannot go."""
        users = list(self._graph.users(var))
        kept = self._graph.is_returned(var) or any(user in self._gone for user in users)
        return [] if kept else users

    def _squares(self, user: relax.Var) -> bool:
        call = self._graph.call(user, "relax.multiply")
        return call is not None and all(self._graph.same(arg, self.end) for arg in call.args) and self._fits(user)

    def _gated(self, first: relax.Var, last: relax.Var) -> bool:
        """Take ``last = end * f(end)``, where ``first`` begins ``f``."""
        call = self._graph.call(last, "relax.multiply")
        if call is None or not self._fits(last):
            return False
        steps, variables, current = [Step(Operation.SAVE)], [], self.end
        following = [first]
        while following != [last]:
            if len(following) != 1 or (step := self._step(following[0], current, numbers_only=True)) is None:
                return False
            steps.append(step)
            current = following[0]
            variables.append(current)
            following = self._users(current)
        operands = [self._graph.value(arg) for arg in call.args]
        wanted = [self._graph.value(current), self._graph.value(self.end)]
        if not any(all(a.same_as(b) for a, b in zip(operands, pair, strict=True)) for pair in (wanted, wanted[::-1])):
            return False
        self._take([*steps, Step(Operation.MULTIPLY_SAVED)], [*variables, last])
        return True

    def _fits(self, var: relax.Var) -> bool:
        return has_known_shape(var) and dtype(var) == "float32" and self._graph.same_shape(shape(var), self._sizes)

    def _step(self, user: relax.Var, var: relax.Var, *, numbers_only: bool = False) -> Step | None:
        """What ``user`` does with ``var``, if it is one step; with ``numbers_only``, one that reads no tensor."""
        call = self._graph.value(user)
        if not (isinstance(call, relax.Call) and isinstance(call.op, Op)) or not self._fits(user):
            return None
        name = call.op.name
        if name in _UNARY:
            return Step(_UNARY[name])
        if name == "relax.nn.leakyrelu":
            return Step(Operation.LEAKY, number=float(call.attrs.alpha))
        if name not in _BINARY:
            return None
        left, right = call.args
        if self._graph.same(left, var) == self._graph.same(right, var):
            return None
        other = right if self._graph.same(left, var) else left
        if other is left and name not in _COMMUTE:
            return None
        by_number, by_channel, by_tensor = _BINARY[name]
        number = self._graph.constant(other)
        if by_number is not None and number is not None and not math.isnan(number):
            return Step(by_number, number=float(number))
        if numbers_only or not isinstance(other, relax.Var | relax.Constant):
            return None
        if not has_known_shape(other) or dtype(other) != "float32":
            return None
        sizes = shape(other)
        if by_channel is not None and self._is_channels(sizes):
            return Step(by_channel, other)
        if by_tensor is not None and self._graph.same_shape(sizes, self._sizes):
            source = self._channels_of(other)
            return Step(by_tensor, source.source, begin=source.begin)
        return None

    def _channels_of(self, image: relax.Expr) -> Slice:
        """Which channels of which tensor ``image [..., channels]`` is: some of another, or all of its own."""
        own = Slice(image, 0, static(shape(image)[-1]) or 0)
        rank = image.struct_info.ndim
        turned = self._graph.call(image, "relax.permute_dims")
        if turned is None or rank < 3 or permuted_axes(turned) != channels_last(rank):
            return own
        parts = channel_sources(turned.args[0], self._graph.value)
        if len(parts) != 1 or parts[0].source.same_as(turned.args[0]):
            return own
        back = self._graph.call(parts[0].source, "relax.permute_dims")
        if back is None or permuted_axes(back) != channels_second(rank):
            return own
        return Slice(back.args[0], parts[0].begin, parts[0].size)

    def _is_channels(self, sizes: tuple[tvm.tirx.PrimExpr, ...]) -> bool:
        if not sizes or len(sizes) > len(self._sizes) or not self._graph.equal(sizes[-1], self._sizes[-1]):
            return False
        return all(static(size) == 1 for size in sizes[:-1])
