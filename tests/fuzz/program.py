"""A random graph as data, and as the source of an ``nn.Module``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from .graph import Input, Node
from .operators import Operator
from .table import OPERATORS
from .tensors import READ_ONLY, type_of
from .types import Chosen, InvalidError, Sizes, Type, limited, require, sizes_of, symbol, union

_SAME_ELEMENTS = ("add_", "sub_", "mul_")
_MOST_ELEMENTS = 1 << 18
"""Of a value, at the largest sizes."""


@dataclass(frozen=True)
class Program:
    """A graph: inputs, operators in order, the values that are returned, and the sizes that it is called with."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    sizes: Sizes

    def given(self) -> list[Input]:
        """The inputs that the caller hands in."""
        return [each for each in self.inputs if each.role == "input"]

    def held(self) -> list[Input]:
        """The parameters and buffers."""
        return [each for each in self.inputs if each.role != "input"]

    def with_size(self, name: str, size: int) -> Program:
        """The same where a symbol is a number, at every call."""
        old, new = symbol(name), sympy.Integer(size)

        def changed(value: object) -> object:
            if isinstance(value, tuple):
                return tuple(changed(each) for each in value)
            return value.subs(old, new) if hasattr(value, "subs") else value

        inputs = tuple(replace(each, shape=tuple(dim.subs(old, new) for dim in each.shape)) for each in self.inputs)
        nodes = tuple(
            replace(node, attributes=tuple((key, changed(value)) for key, value in node.attributes))
            for node in self.nodes
        )
        calls = [{key: value for key, value in call.items() if key != name} for call in self.sizes.by_name()]
        unique = [call for position, call in enumerate(calls) if call not in calls[:position]]
        return replace(self, inputs=inputs, nodes=nodes, sizes=sizes_of(unique))

    def of_fixed_sizes(self, call: int = 0) -> Program:
        """The same with the sizes of one call alone, of the first one if nothing else is said."""
        program = self
        for name, size in self.sizes.by_name()[call].items():
            program = program.with_size(name, size)
        return program

    def without_unused(self) -> Program:
        """The same without what no output, and nothing that is updated, depends on."""
        origin: dict[int, int] = {}
        for node in self.nodes:
            if OPERATORS[node.op].shares and node.args:
                for each in node.results:
                    origin[each] = origin.get(node.args[0], node.args[0])
        needed = {origin.get(output, output) for output in self.outputs} | set(self.outputs)
        roots = {each.id for each in self.inputs}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            operator = OPERATORS[node.op]
            written = origin.get(node.args[0], node.args[0]) if operator.writes else None
            if needed & set(node.results) or (written is not None and (written in needed or written in roots)):
                kept.append(node)
                for each in node.args:
                    needed |= {each, origin.get(each, each)}
        inputs = tuple(each for each in self.inputs if each.id in needed or _names_a_size(self, each, kept))
        inputs = tuple(each for each in inputs if each.same is None or any(o.id == each.same for o in inputs))
        return replace(self, inputs=inputs, nodes=tuple(reversed(kept)))

    def updated(self) -> set[int]:
        """The inputs that the graph writes into."""
        origin = {each.id: each.id for each in self.inputs}
        written: set[int] = set()
        for node in self.nodes:
            operator = OPERATORS[node.op]
            if operator.shares and node.args[0] in origin:
                origin.update({each: origin[node.args[0]] for each in node.results})
            if operator.writes and node.args[0] in origin:
                written.add(origin[node.args[0]])
        return written


def _names_a_size(program: Program, given: Input, nodes: list[Node]) -> bool:
    """Whether a size that ``nodes`` use is only found on ``given``, which comes first of those that have it."""
    used = {str(each) for node in nodes for _, value in node.attributes for each in _symbols(value)}
    for name in used:
        first = next((each for each in program.given() if any(str(dim) == name for dim in each.shape)), None)
        if first is given:
            return True
    return False


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, tuple):
        return {symbol for part in value for symbol in _symbols(part)}
    return set(getattr(value, "free_symbols", ()))


def _is_of_data(value: Any) -> bool:
    """Whether a size in an attribute is one that only the data decides, which has no name in the source."""
    if isinstance(value, tuple):
        return any(map(_is_of_data, value))
    return isinstance(value, sympy.Expr) and bool(value.has(Chosen))


def infer(program: Program) -> dict[int, Type]:
    """The types of all values when the graph has run; :class:`InvalidError` if it is none that may be run.

    An update changes what is known of every value that shares the memory.
    """
    state = State(program.sizes)
    for each in program.inputs:
        state.add_input(each)
    for node in program.nodes:
        require(all(arg in state.types for arg in node.args))
        state.apply(OPERATORS[node.op], node)
    require(all(output in state.types for output in program.outputs))
    for each in program.inputs:
        if each.same is not None:
            require(not {each.id, each.same} & program.updated())
    return state.types


class State:
    """What is known of the values of a graph that grows."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.types: dict[int, Type] = {}
        self.memory: dict[int, int] = {}
        """The value whose memory each value shares."""
        self.fixed: set[int] = set()
        """Memory that nothing may be written into."""

    def copy(self) -> State:
        """One that grows by itself."""
        copied = State(self.sizes)
        copied.types, copied.memory, copied.fixed = dict(self.types), dict(self.memory), set(self.fixed)
        return copied

    def add_input(self, given: Input) -> None:
        """Make an input known."""
        require(not any(dim.has(Chosen) for dim in given.shape))  # no input says how many these are
        require(self.sizes.elements(given.shape) <= _MOST_ELEMENTS)
        self.types[given.id] = type_of(given)
        self.memory[given.id] = given.id if given.same is None else self.memory[given.same]
        if given.layout in READ_ONLY or given.role == "parameter" or given.same is not None:
            self.fixed.add(self.memory[given.id])

    def apply(self, operator: Operator, node: Node) -> None:
        """Make a node's results known."""
        require(not any(_is_of_data(value) for _, value in node.attributes))
        types = operator.infer(self.sizes, [self.types[arg] for arg in node.args], dict(node.attributes))
        require(operator.statement or len(types) == len(node.results))
        for each in types:
            require(self.sizes.elements(each.shape) <= _MOST_ELEMENTS)
        if operator.writes:
            # PyTorch refuses to read what it writes, but for the very same elements.
            written = self.memory[node.args[0]]
            for arg in node.args[1:]:
                require(self.memory[arg] != written or (arg == node.args[0] and node.op in _SAME_ELEMENTS))
            self._write(node.args[0], types[0])
        for value, each in zip(node.results, types, strict=False):
            self.types[value] = self.types[node.args[0]] if operator.writes else each
            self.memory[value] = self.memory[node.args[0]] if operator.shares else value
            if operator.overlaps:
                self.fixed.add(self.memory[value])

    def _write(self, written: int, new: Type) -> None:
        memory = self.memory[written]
        if memory in self.fixed:
            raise InvalidError
        for value in [value for value, owner in self.memory.items() if owner == memory]:
            old = self.types[value]
            merged = union(old, replace(new, shape=old.shape))
            self.types[value] = limited(merged)


def source(program: Program, name: str = "Model", reference: bool = False) -> str:
    """The graph as an ``nn.Module``.

    ``reference``: in float64, with calls of ``rounded(id, value)`` on what is rounded and of ``noisy(id, position,
    value)`` on the arguments of operators that round in between; both are names of the namespace.
    """
    state = State(program.sizes)
    lines = [f"class {name}(nn.Module):"]
    if program.held():
        lines += ["    def __init__(self, tensors):", "        super().__init__()"]
        for position, each in enumerate(program.held()):
            if each.role == "parameter":
                value = f"nn.Parameter(tensors[{position}], requires_grad=False)"
                lines.append(f"        self.v{each.id} = {value}")
            else:
                lines.append(f'        self.register_buffer("v{each.id}", tensors[{position}])')
        lines.append("")
    given = program.given()
    lines.append(f"    def forward({', '.join(['self', *(each.name for each in given)])}):")
    body = _size_lines(program)
    names: dict[int, str] = {}
    for each in program.inputs:
        state.add_input(each)
        names[each.id] = each.name
        if (reference and each.role == "input" and _rounded(state.types[each.id]) and each.same is None) or (
            reference and each.role != "input" and _rounded(state.types[each.id])
        ):
            body.append(f"rounded({each.id}, {each.name})")
    for node in program.nodes:
        operator = OPERATORS[node.op]
        before = {arg: state.types[arg] for arg in node.args}
        state.apply(operator, node)
        args = [names[arg] for arg in node.args]
        if reference and operator.rounds:
            args = [
                f"noisy({node.results[0] if node.results else node.args[0]}, {position}, {arg}, {before[id].dtype!r})"
                if before[id].is_float
                else arg
                for position, (id, arg) in enumerate(zip(node.args, args, strict=True))
            ]
        attributes = dict(node.attributes)
        if reference and operator.inner is not None:
            made, dtype = node.results[0], state.types[node.results[0]].dtype
            text = operator.inner(args, attributes, lambda value: f"noisy({made}, 9, {value}, {dtype!r})")  # noqa: B023
        else:
            text = operator.source(args, attributes)
        results = [f"v{each}" for each in node.results]
        names.update({each: f"v{each}" for each in node.results})
        if operator.statement:
            body.append(text)
        else:
            body.append(f"{', '.join(results)}{',' if operator.many and len(results) == 1 else ''} = {text}")
        if reference:
            if operator.writes:
                if _rounded(state.types[node.args[0]]):
                    body.append(f"rounded({node.args[0]}, {names[node.args[0]]})")
            elif not operator.shares and not operator.moves:
                for result in node.results:
                    if _rounded(state.types[result]):
                        body.append(f"rounded({result}, v{result})")
    body.append(f"return {', '.join(names[output] for output in program.outputs)},")
    text = "\n".join(lines + [f"        {line}" for line in body]) + "\n"
    return re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", text) if reference else text


def _rounded(value: Type) -> bool:
    return value.is_float and not value.exact


def _size_lines(program: Program) -> list[str]:
    used = {str(each) for node in program.nodes for _, value in node.attributes for each in _symbols(value)}
    lines = []
    for name in sorted(used):
        for each in program.given():
            axes = [axis for axis, dim in enumerate(each.shape) if str(dim) == name]
            if axes:
                lines.append(f"{name} = {each.name}.shape[{axes[0]}]")
                break
        else:
            raise InvalidError
    return lines


def dynamic_shapes(program: Program) -> dict[str, dict[int, Any]]:
    """What ``torch.export`` is told of the inputs' sizes."""
    least = {name: program.sizes.least(symbol(name)) for name in names_of(program.sizes)}
    dims = {name: torch.export.Dim(name, min=least[name], max=1 << 16) for name in least}
    return {
        each.name: {axis: dims[str(dim)] for axis, dim in enumerate(each.shape) if str(dim) in dims}
        for each in program.given()
    }


def names_of(sizes: Sizes) -> list[str]:
    """The names of the symbols."""
    return [name for name, _ in sizes.calls[0]]
