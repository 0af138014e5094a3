"""Smaller graphs that fail as a given one does (delta debugging): fewer operators, inputs, calls and sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from sympy import Integer

from .graph import Input, Node
from .program import Program, infer, source
from .types import InvalidError, Type, sizes_of

_STATIC = (1, 2, 3)


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 240.0) -> Program:
    """The smallest graph found in ``seconds`` for which ``fails`` is true, as it is for ``program``."""
    end = time.monotonic() + seconds
    tried: set[Program] = {program}
    found = True
    while found:
        found = False
        for candidate in _candidates(program):
            if time.monotonic() > end:
                return program
            candidate = candidate.without_unused()
            if candidate in tried or not _valid(candidate) or _size(candidate) >= _size(program):
                continue
            tried.add(candidate)
            if fails(candidate):
                program, found = candidate, True
                break
    return program


def _valid(program: Program) -> bool:
    try:
        infer(program)
        source(program)
    except InvalidError:
        return False
    return bool(program.given() and program.outputs)


def _size(program: Program) -> tuple[int, ...]:
    """What is made smaller, the most important first."""
    plain = sum(each.layout != "contiguous" or each.same is not None for each in program.inputs)
    values = sum(each.values not in ("plain", "integers", "flags", "below") for each in program.inputs)
    dtypes = sum(each.dtype != "float32" for each in program.inputs)
    held = sum(each.role != "input" for each in program.inputs)
    ranks = sum(len(each.shape) for each in program.inputs)
    elements = sum(sum(sum(shape) for shape in program.sizes.shapes(each.shape)) for each in program.inputs)
    names = len(program.sizes.calls[0])
    return (
        len(program.nodes),
        len(program.sizes.calls),
        names,
        len(program.outputs),
        len(program.inputs),
        plain + values + held,
        dtypes,
        ranks,
        elements,
    )


def _candidates(program: Program) -> Iterator[Program]:
    yield from _fewer_outputs(program)
    yield from _fewer_calls(program)
    yield from _without_runs(program)
    yield from _cut(program)
    yield from _bypassed(program)
    yield from _static(program)
    yield from _simpler_inputs(program)
    yield from _smaller_sizes(program)


def _fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield replace(program, outputs=(output,))
        for output in program.outputs:
            yield replace(program, outputs=tuple(each for each in program.outputs if each != output))
    # The end of the graph goes, and returns what it read.
    for node in reversed(program.nodes):
        if node.results and set(node.results) & set(program.outputs):
            args = tuple(dict.fromkeys(arg for arg in node.args))
            rest = tuple(output for output in program.outputs if output not in node.results)
            made = {value for each in program.nodes for value in each.results}
            outputs = tuple(dict.fromkeys((*rest, *(arg for arg in args if arg in made))))
            if outputs:
                nodes = tuple(each for each in program.nodes if each != node)
                yield replace(program, nodes=nodes, outputs=outputs)


def _fewer_calls(program: Program) -> Iterator[Program]:
    calls = program.sizes.by_name()
    for position in range(1, len(calls)):
        yield replace(program, sizes=sizes_of([calls[0], calls[position]]))
    if len(calls) > 1:
        yield replace(program, sizes=sizes_of(calls[:1]))


def _without(program: Program, nodes: set[Node]) -> Program | None:
    """The program without ``nodes``, of whose results those that are read are inputs."""
    try:
        types = infer(program)
    except InvalidError:
        return None
    kept = tuple(node for node in program.nodes if node not in nodes)
    read = {arg for node in kept for arg in node.args} | set(program.outputs)
    gone = [value for node in nodes for value in node.results if value in read]
    inputs = list(program.inputs)
    sizes = program.sizes
    for value in gone:
        if value in program.outputs and value not in {arg for node in kept for arg in node.args}:
            continue
        made = _as_input(value, types[value])
        if made is None:
            return None
        inputs.append(made)
    outputs = tuple(each for each in program.outputs if each not in gone)
    if not outputs:
        return None
    return replace(program, inputs=tuple(inputs), nodes=kept, outputs=outputs, sizes=sizes)


def _as_input(value: int, known: Type) -> Input | None:
    """An input in the place of a value; ``None`` where its shape is computed."""
    if not all(dim.is_Symbol or dim.is_Integer for dim in known.shape):
        return None
    if known.unique and known.dtype == "int64":
        return None
    if known.dtype == "bool":
        kind = "flags"
    elif known.is_integer:
        if known.low >= 0 and known.high < 4:
            return Input(value, known.shape, known.dtype, "below", bound=int(known.high) + 1)
        kind = "integers"
    elif known.exact:
        kind = "special integers" if known.special else "integers"
    elif known.special:
        kind = "special"
    else:
        kind = "positive" if known.low > 0 else "plain"
    return Input(value, known.shape, known.dtype, kind)


def _without_runs(program: Program) -> Iterator[Program]:
    """Halves, quarters ... of the operators are left out."""
    count = len(program.nodes)
    length = count // 2
    while length >= 1:
        for start in range(0, count, length):
            candidate = _without(program, set(program.nodes[start : start + length]))
            if candidate is not None:
                yield candidate
        length //= 2


def _cut(program: Program) -> Iterator[Program]:
    """Everything before an operator is left out."""
    for position in range(len(program.nodes) - 1, 0, -1):
        candidate = _without(program, set(program.nodes[:position]))
        if candidate is not None:
            yield candidate


def _bypassed(program: Program) -> Iterator[Program]:
    """An operator's result is one of its arguments."""
    try:
        types = infer(program)
    except InvalidError:
        return
    for node in program.nodes:
        if len(node.results) != 1:
            continue
        (value,) = node.results
        for arg in node.args:
            if types[arg].dtype == types[value].dtype:
                yield _renamed(program, node, value, arg)
                break
        else:
            if node.args:
                yield _renamed(program, node, value, node.args[0])


def _renamed(program: Program, gone: Node, old: int, new: int) -> Program:
    made = {value for node in program.nodes for value in node.results if node != gone}
    nodes = tuple(
        replace(node, args=tuple(new if arg == old else arg for arg in node.args))
        for node in program.nodes
        if node != gone
    )
    outputs = [new if output == old else output for output in program.outputs]
    return replace(program, nodes=nodes, outputs=tuple(dict.fromkeys(each for each in outputs if each in made)))


def _static(program: Program) -> Iterator[Program]:
    """A size is a number, that of one of the calls."""
    for name in dict(program.sizes.calls[0]):
        for size in dict.fromkeys(call[name] for call in program.sizes.by_name()):
            yield program.with_size(name, size)


def _simpler_inputs(program: Program) -> Iterator[Program]:
    for position, each in enumerate(program.inputs):
        changes: list[Input] = []
        if each.same is not None:
            changes.append(replace(each, same=None))
        if each.layout != "contiguous":
            changes.append(replace(each, layout="contiguous"))
        if each.role != "input":
            changes.append(replace(each, role="input"))
        simple = {"special": "plain", "special integers": "integers", "halves": "integers", "positive": "plain"}
        if each.values in simple:
            changes.append(replace(each, values=simple[each.values]))
        if each.dtype in ("float16", "bfloat16", "float64"):
            changes.append(replace(each, dtype="float32"))
        for change in changes:
            yield replace(program, inputs=(*program.inputs[:position], change, *program.inputs[position + 1 :]))
    if any(each.dtype in ("float16", "bfloat16", "float64") for each in program.inputs):
        inputs = tuple(
            replace(each, dtype="float32") if each.dtype in ("float16", "bfloat16", "float64") else each
            for each in program.inputs
        )
        yield replace(program, inputs=inputs)


def _smaller_sizes(program: Program) -> Iterator[Program]:
    calls = program.sizes.by_name()
    for position in range(len(calls)):
        for name, size in calls[position].items():
            least = 2 if position == 0 else 0
            for smaller in sorted({least, 1, 2, 3, size // 2, size - 1}):
                if least <= smaller < size:
                    changed = [dict(call) for call in calls]
                    changed[position][name] = smaller
                    yield replace(program, sizes=sizes_of(changed))
    sizes = sorted({int(dim) for each in program.inputs for dim in each.shape if dim.is_Integer}, reverse=True)
    for size in sizes:
        for smaller in _STATIC:
            if smaller < size:
                inputs = tuple(
                    replace(each, shape=tuple(Integer(smaller) if dim == size else dim for dim in each.shape))
                    for each in program.inputs
                )
                yield replace(program, inputs=inputs)
