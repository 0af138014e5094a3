"""Graph ``index`` of a seed: the same one in every process."""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import replace

from sympy import Integer

from .graph import Input, Node, attributes
from .motifs import WIDTHS, hidden
from .operators import Draw
from .program import Program, State, infer, source
from .table import OPERATORS
from .tensors import LAYOUTS, random_values
from .types import Dim, InvalidError, Shape, Sizes, sizes_of, symbol

_EXAMPLES = (5, 7, 11)
_STATIC = (1, 2, 3, 4, 4, 5, 8, 8, 16)
_SMALL = (0, 1, 1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 31, 33, 64)
_LARGE = (127, 128, 129, 257, 512, 1031)
_CALLS = 4
_ATTEMPTS = 24
_OUTPUTS = 8


def generate(seed: int, index: int, motifs: bool = False) -> Program:
    """A graph of 3 to 40 operators; with ``motifs``, many of them are parts of transformers."""
    rng = random.Random(f"{seed} {index} {motifs}")
    while True:
        program = _generated(rng, motifs)
        if program is not None and len(program.nodes) >= 3:
            return program


def random_sizes(rng: random.Random) -> tuple[list[Dim], Sizes]:
    """Up to three symbols, and what they are at each call."""
    count = rng.choice([0, 1, 1, 2, 2, 3])
    names = [f"n{position}" for position in range(count)]
    least = {name: rng.choice([0, 0, 1, 2]) for name in names}
    calls = [{name: _EXAMPLES[position] for position, name in enumerate(names)}]
    for _ in range(_CALLS - 1 if names else 0):
        call = {name: max(rng.choice(_SMALL), least[name]) for name in names}
        if rng.random() < 0.35:
            call[rng.choice(names)] = rng.choice(_LARGE)
        if call not in calls:
            calls.append(call)
    return [symbol(name) for name in names], sizes_of(calls)


def _shape(rng: random.Random, dims: list[Dim], rank: int | None = None) -> Shape:
    rank = rng.choice([1, 1, 2, 2, 2, 3, 3, 4]) if rank is None else rank
    return tuple(
        rng.choice(dims) if dims and rng.random() < 0.45 else Integer(rng.choice(_STATIC)) for _ in range(rank)
    )


def random_inputs(rng: random.Random, dims: list[Dim]) -> list[Input]:
    """A few inputs, of which some share shapes, and on which all sizes are found."""
    shapes: list[Shape] = []
    inputs: list[Input] = []
    for position in range(rng.choice([1, 2, 2, 3])):
        shape = rng.choice(shapes) if shapes and rng.random() < 0.4 else _shape(rng, dims)
        shapes.append(shape)
        dtype, values = random_values(rng)
        layout = rng.choice(LAYOUTS) if rng.random() < 0.35 else "contiguous"
        inputs.append(Input(position, shape, dtype, values, layout))
    found = {dim for each in inputs for dim in each.shape}
    for dim in dims:
        if dim not in found:
            dtype, values = random_values(rng)
            inputs.append(Input(len(inputs), (dim, Integer(rng.choice(_STATIC))), dtype, values))
    if rng.random() < 0.08:
        first = inputs[0]
        inputs.append(replace(first, id=len(inputs), same=first.id))
    return inputs


def numbered_from(first: int, inputs: list[Input]) -> list[Input]:
    """``inputs``, numbered from zero, with numbers from ``first`` on."""
    return [replace(each, id=each.id + first, same=None if each.same is None else each.same + first) for each in inputs]


def _hidden_states(rng: random.Random, dims: list[Dim]) -> list[Input]:
    """Inputs that parts of transformers take."""
    dtype = rng.choice(["bfloat16", "bfloat16", "float16"])
    width = Integer(rng.choice(WIDTHS))
    rows = dims[:2] if len(dims) >= 2 else [Integer(2), *dims, Integer(6)][:2]
    shape = (*rows, width) if rng.random() < 0.6 else (rows[-1], width)
    return [Input(position, shape, dtype, "plain") for position in range(2)]


def _generated(rng: random.Random, motifs: bool) -> Program | None:
    dims, sizes = random_sizes(rng)
    inputs = random_inputs(rng, dims)
    if motifs:
        states = _hidden_states(rng, dims)
        inputs = [*states, *numbered_from(len(states), inputs)]
    state = State(sizes)
    try:
        for each in inputs:
            state.add_input(each)
    except InvalidError:
        return None
    nodes: list[Node] = []
    count = rng.choice([3, 4, 6, 8, 10, 12, 15, 20, 28, 40])
    names = list(OPERATORS)
    weights = [OPERATORS[name].weight for name in names]
    parts = [name for name in names if OPERATORS[name].motif]
    failures = 0
    while len(nodes) < count and failures < count * _ATTEMPTS:
        if motifs and rng.random() < 0.4 and any(hidden(known) for known in state.types.values()):
            name = rng.choice(parts)
        else:
            (name,) = rng.choices(names, weights)
        try:
            state, node, added = grown(rng, state, name)
        except InvalidError:
            failures += 1
            continue
        inputs += added
        nodes.append(node)
    return _finished(rng, Program(tuple(inputs), tuple(nodes), (), sizes))


def grown(
    rng: random.Random, state: State, name: str, among: Container[int] | None = None
) -> tuple[State, Node, list[Input]]:
    """``state`` with one more operator, its node, and inputs that it brings; ``among``: the values that it may take.

    :class:`InvalidError` where it does not fit.
    """
    fresh = max(state.types, default=-1) + 1
    types = {value: known for value, known in state.types.items() if among is None or value in among}
    draw = Draw(rng, state.sizes, types, fresh)
    operator = OPERATORS[name]
    args, values = operator.draw(draw)
    added = list({each.id: each for each in draw.added}.values())
    results = operator.infer(state.sizes, [draw.types[arg] for arg in args], values)
    fresh += len(draw.added)
    made = () if operator.statement else tuple(range(fresh, fresh + len(results)))
    node = Node(name, tuple(args), attributes(values), made)
    after = state.copy()
    for each in added:
        after.add_input(each)
    after.apply(operator, node)
    return after, node, added


def _finished(rng: random.Random, program: Program) -> Program | None:
    """The program with outputs: what nothing reads, and some of the rest."""
    read = {arg for node in program.nodes for arg in node.args}
    made = [value for node in program.nodes for value in node.results]
    outputs = [value for value in made if value not in read]
    rng.shuffle(outputs)
    outputs = outputs[:_OUTPUTS]
    others = [value for value in made if value not in outputs]
    outputs += rng.sample(others, min(len(others), rng.choice([0, 0, 1, 2])))
    if not outputs:
        return None
    program = replace(program, outputs=tuple(outputs)).without_unused()
    if not program.given() or not program.nodes:
        return None
    try:
        infer(program)
        source(program)
    except InvalidError:
        return None
    return program
