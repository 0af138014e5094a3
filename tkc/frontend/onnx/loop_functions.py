"""The two functions of a loop of ONNX: what comes before its first step, and a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
from tvm import relax, tirx

from tkc.frontend.onnx.sizes import Size, UndecidedError, pack_sizes
from tkc.frontend.onnx.values import ConversionError, Value, expression_of, shape_of
from tkc.runtime.signature import Flag

if TYPE_CHECKING:
    from tkc.frontend.onnx.graph import GraphImporter


T = TypeVar("T")

BodyInputs = Callable[[relax.Var, Sequence[relax.Var]], list[Value]]
"""The values of a body's inputs, of the step's number, int64 without dimensions, and of what the loop carries."""


@dataclass(frozen=True)
class Steps:
    """How often a body runs: up to ``limit`` times (int64 without dimensions), the first time if ``first`` holds.

    ``None`` is without a limit, and always. ``length`` is the number of steps where a size says it.
    """

    limit: relax.Expr | None
    first: relax.Expr | None
    length: Size | None = None


@dataclass(frozen=True)
class Part:
    """A function under construction, whose own parameters are ``params``."""

    block: relax.BindingBlock
    result: relax.Expr
    params: Sequence[relax.Var]


@dataclass(frozen=True)
class Row:
    """What a step stacks: rows of ``dtype`` and of a ``shape``, or of ``ndim`` sizes that the steps decide, all alike.

    Of these the state has all elements of all rows, flat, and int64 [1 + ndim]: whether all rows had one shape so far,
    and that of the last one.
    """

    dtype: str
    ndim: int
    shape: Sequence[Size] | None


@dataclass(frozen=True)
class Step:
    """A step: its function, the rows that it stacks, and what its counts are of."""

    part: Part
    rows: Sequence[Row]
    flags: Sequence[Flag]


def scalar(importer: GraphImporter, value: Value, dtype: str) -> relax.Expr:
    """A tensor of one element without dimensions."""
    tensor = expression_of(value, importer.builder)
    if tensor.struct_info.ndim != 0:
        tensor = importer.builder.emit(relax.op.reshape(tensor, ()))
    return tensor if tensor.struct_info.dtype == dtype else importer.builder.emit(relax.op.astype(tensor, dtype))


def output_names(node: onnx.NodeProto) -> list[str]:
    """The names of what the node returns; those that nobody gave are told as ``carried``."""
    return [name or "carried" for name in node.output]


def step_of(
    importer: GraphImporter,
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    steps: Steps,
    types: Sequence[relax.TensorStructInfo],
    inputs: BodyInputs,
    varying: Collection[tirx.Var],
    conditional: bool,
) -> tuple[Step, list[tuple[int, int]]]:
    """One step, for carried values of these types, some of ``varying`` sizes, and which others the step changes."""
    builder, op = importer.builder, relax.op
    number = relax.Var("number", relax.TensorStructInfo((), "int64"))
    state = [relax.Var(f"state_{i}", info) for i, info in enumerate(types)]
    uses = importer.index_uses.body()
    outside = set(importer.algebra.variables) - set(varying)

    def emitted() -> tuple[
        relax.Expr, list[relax.Var], list[tuple[int, int]], list[relax.TensorStructInfo], list[Flag]
    ]:
        values = dict(zip((value.name for value in body.input), inputs(number, state), strict=True))
        results = importer.add_subgraph(body, uses, values)
        holds = results.pop(0) if conditional else None
        made = [importer.sized(expression_of(value, builder), "made") for value in results]
        if not all(isinstance(each.struct_info, relax.TensorStructInfo) for each in made):
            raise ConversionError("makes a sequence or an optional value in its body; make its tensors one by one")
        carried, rows = made[: len(types)], made[len(types) :]
        changed = _changed(importer, node, types, carried)
        kinds = [_row(importer, row, outside) for row in rows]
        count = tirx.Var("rows", "int64")
        stacks: list[relax.Var] = []
        stacked: list[relax.Expr] = []
        for i, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
            if kind.shape is not None:
                stack = relax.Var(f"stack_{i}", relax.TensorStructInfo([count, *kind.shape], kind.dtype))
                stacks.append(stack)
                stacked.append(builder.emit(op.concat([stack, builder.emit(op.expand_dims(row, [0]))], 0)))
                continue
            flat = relax.Var(f"flat_{i}", relax.TensorStructInfo([tirx.Var("elements", "int64")], kind.dtype))
            shape = relax.Var(f"shape_{i}", relax.TensorStructInfo([1 + kind.ndim], "int64"))
            stacks += [flat, shape]
            size = importer.algebra.product(shape_of(row, importer.algebra))
            stacked.append(builder.emit(op.concat([flat, builder.emit(op.reshape(row, [size]))], 0)))
            stacked.append(_same_shape(importer, number, shape, row))
        following = builder.emit(op.add(number, relax.const(1, "int64")))
        again = _holds(importer, steps.limit, following, None if holds is None else holds)
        counts, flags = uses.counted()
        counted = []
        if counts is not None:
            before = relax.Var("counted", relax.TensorStructInfo([len(flags)], "int32"))
            stacks.append(before)
            counted.append(builder.emit(op.add(counts, before)))
        result = builder.emit(relax.Tuple([again, following, *carried, *stacked, *counted]))
        return result, stacks, changed, kinds, flags

    block, (result, stacks, changed, kinds, flags) = _in_block(builder, emitted)
    return Step(Part(block, result, [number, *state, *stacks]), kinds, flags), changed


def _in_block(builder: relax.BlockBuilder, emitted: Callable[[], T]) -> tuple[relax.BindingBlock, T]:
    """The bindings that a function emits, in a block of their own, and what it returns."""
    builder.begin_scope()
    builder._begin_binding_block()
    try:
        made = emitted()
    finally:
        block = builder._end_block()
        builder.end_scope()
    return block, made


def _changed(
    importer: GraphImporter,
    node: onnx.NodeProto,
    types: Sequence[relax.TensorStructInfo],
    carried: Sequence[relax.Expr],
) -> list[tuple[int, int]]:
    """The carried values and their axes that have another size after the step."""
    changed = []
    for position, (before, after) in enumerate(zip(types, carried, strict=True)):
        info = after.struct_info
        if (info.dtype, info.ndim) != (before.dtype, before.ndim):
            raise ConversionError(
                f"carries {output_names(node)[position]!r} as {before.dtype} of {before.ndim} dimensions into a step, "
                f"and as {info.dtype} of {info.ndim} out of it; correct the model"
            )
        for axis, (old, new) in enumerate(zip(before.shape.values, shape_of(after, importer.algebra), strict=True)):
            try:
                same = importer.algebra.equal(importer.algebra.simplify(old), new)
            except UndecidedError:
                same = False
            if not same:
                changed.append((position, axis))
    return changed


def _row(importer: GraphImporter, row: relax.Expr, outside: set[tirx.Var]) -> Row:
    shape, info = shape_of(row, importer.algebra), row.struct_info
    inside = any(not isinstance(s, int) and set(tirx.analysis.undefined_vars(s)) - outside for s in shape)
    return Row(info.dtype, info.ndim, None if inside else shape)


def _same_shape(importer: GraphImporter, number: relax.Expr, before: relax.Expr, row: relax.Expr) -> relax.Expr:
    """What the state says of the shapes of the rows up to this one."""
    op, emit = relax.op, importer.builder.emit
    shape = expression_of(Value(pack_sizes(shape_of(row, importer.algebra))), importer.builder)
    alike = emit(op.strided_slice(before, [0], [0], [1]))
    last = emit(op.strided_slice(before, [0], [1], [1 + row.struct_info.ndim]))
    same = emit(op.min(op.astype(op.equal(last, shape), "int64"), [0], True))
    first = emit(op.astype(op.equal(op.reshape(number, [1]), relax.const(0, "int64")), "int64"))
    return emit(op.concat([emit(op.multiply(alike, op.maximum(same, first))), shape], 0))


def _holds(
    importer: GraphImporter, limit: relax.Expr | None, number: relax.Expr, condition: Value | relax.Expr | None
) -> relax.Expr:
    """Whether a step of this number runs."""
    emit = importer.builder.emit
    if isinstance(condition, Value):
        known = condition.known
        always = known is not None and bool(known.values.item())
        condition = None if always else scalar(importer, condition, "bool")
    within = None if limit is None else emit(relax.op.less(number, limit))
    if within is None or condition is None:
        either = condition if within is None else within
        return relax.const(True, "bool") if either is None else either
    return emit(relax.op.logical_and(condition, within))


def beginning(importer: GraphImporter, steps: Steps, initial: Sequence[relax.Expr], step: Step) -> Part:
    """What comes before the first step."""
    builder = importer.builder

    def emitted() -> tuple[relax.Expr]:
        zero = relax.const(0, "int64")
        holds = _holds(importer, steps.limit, zero, steps.first)
        stacks: list[relax.Expr] = []
        for row in step.rows:
            stacks.append(builder.emit(relax.op.zeros([0, *(row.shape or ())], row.dtype)))
            if row.shape is None:
                stacks.append(relax.const(np.array([1] + [0] * row.ndim), "int64"))
        counted = [relax.const(np.zeros(len(step.flags), "int32"))] if step.flags else []
        return (builder.emit(relax.Tuple([holds, zero, *initial, *stacks, *counted])),)

    block, (result,) = _in_block(builder, emitted)
    return Part(block, result, [])
