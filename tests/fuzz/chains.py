"""Graphs of short chains, each operator the only reader of the one before: what fusion joins.

In a graph of many operators most results have several readers or are returned, and a fault that needs two neighbours
to be fused shows in one graph of thousands. Here each ordered pair of operators comes once a round.
"""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import lru_cache

from .elementwise import OPERATORS as ELEMENTWISE
from .generate import grown, numbered_from, random_inputs, random_sizes
from .graph import Input, Node
from .program import Program, State, infer, source
from .table import OPERATORS
from .types import Dim, InvalidError

Pair = tuple[str, str]
CHAINS = 10
"""Of one graph."""
_ELEMENTWISE_PLACES = 16
"""How often one of the elementwise operators, which are much alike, stands for all."""
_ATTEMPTS = 40
_THIRD = 0.35
"""The share of chains of three."""
_NAMES = [name for name, operator in OPERATORS.items() if not operator.motif]


def chains(seed: int, index: int) -> Program:
    """Graph ``index`` of ``seed``, the same one in every process."""
    pairs = pairs_of(seed)
    rng = random.Random(f"{seed} {index} chains")
    while True:
        program = _drawn(rng, [pairs[(index * CHAINS + position) % len(pairs)] for position in range(CHAINS)])
        if program is not None:
            return program


def _drawn(rng: random.Random, pairs: list[Pair]) -> Program | None:
    """A chain for each of the pairs that fit any inputs; nothing where the inputs that have the sizes are unfit."""
    dims, sizes = random_sizes(rng)
    grown_so_far = _Grown(State(sizes), (), (), ())
    try:
        grown_so_far = grown_so_far.with_inputs(random_inputs(rng, dims))
        for pair in pairs:
            grown_so_far = _with_chain(rng, dims, grown_so_far, pair)
        program = grown_so_far.program().without_unused()
        infer(program)
        source(program)
    except InvalidError:
        return None
    return program if program.nodes and program.given() else None


@dataclass(frozen=True)
class _Grown:
    """What there is of a graph."""

    state: State
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def with_inputs(self, inputs: list[Input]) -> _Grown:
        """With inputs that are numbered from zero."""
        state = self.state.copy()
        numbered = numbered_from(max(state.types, default=-1) + 1, inputs)
        for each in numbered:
            state.add_input(each)
        return replace(self, state=state, inputs=(*self.inputs, *numbered))

    def with_operator(self, rng: random.Random, name: str, among: Container[int]) -> _Grown:
        """With an operator on some of ``among``."""
        state, node, added = grown(rng, self.state, name, among)
        return replace(self, state=state, inputs=(*self.inputs, *added), nodes=(*self.nodes, node))

    def last(self) -> set[int]:
        """What the last operator made or wrote."""
        node = self.nodes[-1]
        return set(node.results) or {node.args[0]}

    def program(self) -> Program:
        """The graph."""
        return Program(self.inputs, self.nodes, self.outputs, self.state.sizes)


def _with_chain(rng: random.Random, dims: list[Dim], start: _Grown, pair: Pair) -> _Grown:
    """``start`` with a chain on inputs of its own; as it is where none is found that fits."""
    for _ in range(_ATTEMPTS):
        try:
            begun = start.with_inputs(random_inputs(rng, dims))
            own = {each.id for each in begun.inputs[len(start.inputs) :]}
            chain = begun.with_operator(rng, pair[0], own)
            for name in (pair[1], *([rng.choice(_NAMES)] if rng.random() < _THIRD else [])):
                chain = _continued(rng, chain, name, own)
        except InvalidError:
            continue
        return replace(chain, outputs=(*chain.outputs, *sorted(chain.last())))
    return start


def _continued(rng: random.Random, chain: _Grown, name: str, own: set[int]) -> _Grown:
    """With an operator that reads what the last one made, and inputs of the chain if it takes more."""
    last = chain.last()
    for _ in range(_ATTEMPTS):
        try:
            longer = chain.with_operator(rng, name, own | last)
        except InvalidError:
            continue
        if last & set(longer.nodes[-1].args):
            return longer
    raise InvalidError


@lru_cache
def pairs_of(seed: int) -> list[Pair]:
    """Each ordered pair once, in an order of the seed's own."""
    rng = random.Random(f"{seed} pairs")
    alike = [name for name in _NAMES if name in ELEMENTWISE]
    others = [name for name in _NAMES if name not in ELEMENTWISE]
    places = [*others, *[None] * _ELEMENTWISE_PLACES]
    pairs = [(first or rng.choice(alike), second or rng.choice(alike)) for first in places for second in places]
    rng.shuffle(pairs)
    return pairs
