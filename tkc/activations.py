"""What a program allocates while it runs, and which of it at a time, read off its allocations before it is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tvm import relax, tirx
from tvm.ir import IRModule, Op

from tkc.contracts import AWAIT, CALL_OPERATOR, CALL_TEXT, CHECK, CONTROL_FLOW, LIBRARY_CALLS, MAIN
from tkc.runtime.activations import ActivationPlan

_ALLOC_STORAGE = Op.get("relax.memory.alloc_storage")
_KILLS = tuple(Op.get(f"relax.{name}") for name in ("memory.kill_storage", "memory.kill_tensor", "vm.kill_object"))
_SHARES = tuple(Op.get(f"relax.{name}") for name in ("memory.alloc_tensor", "memory.view", "reshape"))
"""What makes a tensor in memory that there is."""
_OPERATORS = "what operators of PyTorch's return and need on the way"
_STRINGS = "what functions of strings return, and strings themselves"
_PARTS = "tensors of branches and loops"
_COMPUTED = "tensors whose sizes the model computes"
_BINARY = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%"}
_CHOICES = {tirx.Min: "min", tirx.Max: "max"}
_Held = frozenset[int]
_World = dict[relax.Var, _Held]
_MOST_WORLDS = 8
"""More ways that branches may have gone are taken together: the plan is an upper bound then."""


def activation_plan(module: IRModule) -> ActivationPlan:
    """The plan of a ``module`` whose allocations are storage, freed after its last use, with its sizes symbolic.

    Runs before the virtual machine's own calls take their place.
    """
    main = module[MAIN]
    walk = _Walk({str(size.name) for size in _symbols(main)})
    walk.visit(main.body)
    return ActivationPlan(tuple(walk.sizes), _largest(walk.moments), tuple(sorted(walk.besides)), is_known=True)


def _symbols(function: relax.Function) -> Iterator[tirx.Var]:
    """The sizes of the inputs, which a call's shapes tell."""
    for parameter in function.params:
        yield from relax.analysis.tir_vars_in_struct_info(parameter.struct_info)


@dataclass
class _Walk:
    """Follows a function. A world says which storages each variable keeps, of those that live; there is one for each
    way that branches may have gone."""

    known: set[str]
    sizes: list[int | str] = field(default_factory=list)
    moments: list[_Held] = field(default_factory=list)
    besides: set[str] = field(default_factory=set)
    _worlds: list[_World] = field(default_factory=lambda: [{}])

    def visit(self, body: relax.SeqExpr) -> None:
        """Follow the bindings of ``body``, to whose end everything is kept that nothing frees."""
        for binding in (binding for block in body.blocks for binding in block.bindings):
            self._bind(binding.var, binding.value)

    def _bind(self, variable: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.If):
            self._branch(variable, value)
        elif isinstance(value, relax.Call) and value.op == _ALLOC_STORAGE:
            self._allocate(variable, value.args[0])
        elif isinstance(value, relax.Call) and value.op in _KILLS:
            for world in self._worlds:
                world.pop(value.args[0], None)
        elif not isinstance(value, relax.Call) or value.op in _SHARES or _symbol(value) in (AWAIT, CHECK):
            self._keep(variable, value)
        else:
            self._call(value)

    def _allocate(self, variable: relax.Var, shape: relax.ShapeExpr) -> None:
        size = self._size(shape)
        if size is None:
            self.besides.add(_COMPUTED)
            return
        for world in self._worlds:
            world[variable] = frozenset([len(self.sizes)])
            self.moments.append(_kept(world, world))
        self.sizes.append(size)

    def _keep(self, variable: relax.Var, value: relax.Expr) -> None:
        read = relax.analysis.free_vars(value)
        for world in self._worlds:
            world[variable] = _kept(world, read)

    def _branch(self, variable: relax.Var, value: relax.If) -> None:
        before, ends = self._worlds, []
        for branch in (value.true_branch, value.false_branch):
            self._worlds = [dict(world) for world in before]
            self.visit(branch)
            self._keep(variable, branch.body)
            ends += [world for world in self._worlds if world not in ends]
        self._worlds = ends if len(ends) <= _MOST_WORLDS else [_either(ends)]

    def _call(self, value: relax.Call) -> None:
        symbol = _symbol(value)
        if symbol in CONTROL_FLOW:
            self.besides.add(_PARTS)
        elif symbol == CALL_OPERATOR or symbol in LIBRARY_CALLS:
            self.besides.add(_OPERATORS)
        elif symbol == CALL_TEXT:
            self.besides.add(_STRINGS)

    def _size(self, shape: relax.Expr) -> int | str | None:
        """The bytes of a storage; ``None`` where they depend on more than the sizes of the inputs."""
        if not isinstance(shape, relax.ShapeExpr) or len(shape.values) != 1:
            return None
        try:
            text = self._text(shape.values[0])
        except _ComputedError:
            return None
        return int(text) if text.isdigit() else text

    def _text(self, size: tirx.PrimExpr) -> str:
        if isinstance(size, tirx.IntImm):
            return str(int(size))
        if isinstance(size, tirx.Var) and size.name in self.known:
            return str(size.name)
        if isinstance(size, tirx.Cast):
            return self._text(size.value)
        if (sign := _BINARY.get(type(size))) is not None:
            return f"({self._text(size.a)} {sign} {self._text(size.b)})"
        if (name := _CHOICES.get(type(size))) is not None:
            return f"{name}({self._text(size.a)}, {self._text(size.b)})"
        raise _ComputedError


def _kept(world: _World, variables: Iterable[relax.Var]) -> _Held:
    return frozenset[int]().union(*(world.get(variable, frozenset()) for variable in variables))


def _either(worlds: Iterable[_World]) -> _World:
    """What may be kept in any of ``worlds``: more than is in each."""
    either: _World = {}
    for world in worlds:
        for variable, held in world.items():
            either[variable] = either.get(variable, frozenset()) | held
    return either


def _symbol(value: relax.Call) -> str:
    return str(value.op.global_symbol) if isinstance(value.op, relax.ExternFunc) else ""


class _ComputedError(Exception):
    """A size that a call's inputs do not tell."""


def _largest(moments: Iterable[_Held]) -> tuple[tuple[int, ...], ...]:
    """The moments without those in which no more is held than in the one before or behind."""
    kept: list[_Held] = []
    for moment in moments:
        if kept and kept[-1] <= moment:
            kept[-1] = moment
        elif not kept or not moment <= kept[-1]:
            kept.append(moment)
    return tuple(tuple(sorted(moment)) for moment in dict.fromkeys(kept))
