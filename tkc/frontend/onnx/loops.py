"""Loop and Scan: bodies as functions of the program that the runtime calls (``docs/design/control-flow.md``).

A step is a function of what its body reads from outside, and of the loop's state: the number of the step, the values
that the loop carries, the rows that it has stacked, and what it counted of bad indices. A size that a carried value has
and that a step changes is a size of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from tvm import relax, tirx

from tkc.contracts import GLOBAL_SYMBOL, WHILE
from tkc.frontend.onnx.batched_scans import OF_A_BATCH, of_each_batch
from tkc.frontend.onnx.loop_functions import (
    BodyInputs,
    Part,
    Row,
    Step,
    Steps,
    beginning,
    output_names,
    scalar,
    step_of,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Known, Size
from tkc.frontend.onnx.unrolled_loops import unrolled
from tkc.frontend.onnx.values import ConversionError, Value, expression_of, shape_of
from tkc.frontend.sources import SourceBuilder

if TYPE_CHECKING:
    from tkc.frontend.onnx.graph import GraphImporter


def loop(importer: GraphImporter, node: onnx.NodeProto) -> list[Value]:
    """The results of a Loop: what it carried last, and its rows stacked."""
    body = _body(node)
    trips, condition, *carried = (importer.values[name] if name else None for name in node.input)
    if any(value is not None and (value.sequence is not None or value.absent) for value in carried):
        return unrolled(importer, body, trips, condition, [value for value in carried if value is not None])
    limit = None if trips is None else scalar(importer, trips, "int64")
    first = None
    if condition is not None and not (condition.known is not None and bool(condition.known.values.item())):
        first = scalar(importer, condition, "bool")

    def inputs(number: relax.Var, state: Sequence[relax.Var]) -> list[Value]:
        declared = body.input[0].type.tensor_type.shape.dim
        shaped = importer.builder.emit(relax.op.reshape(number, [1] * len(declared)))
        # A body that runs does so because its condition holds.
        holds = np.ones([1] * len(body.input[1].type.tensor_type.shape.dim), bool)
        return [Value(expression=shaped), Value(Known.constant(holds)), *(Value(expression=each) for each in state)]

    given = [value for value in carried if value is not None]
    if len(given) != len(carried) or len(body.input) != len(given) + 2:
        raise ConversionError(f"has a body of {len(body.input)} inputs for {len(given)} values; correct the model")
    last, rows = _run(importer, node, body, Steps(limit, first), given, inputs, conditional=True)
    return [Value(expression=each) for each in (*last, *rows)]


def scan(importer: GraphImporter, node: onnx.NodeProto) -> list[Value]:
    """The results of a Scan: its last state, and its rows stacked along any axis."""
    if importer.opsets.get("", 1) < 9 and not any(a.name == OF_A_BATCH for a in node.attribute):
        return scan(importer, of_each_batch(node))
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    body, count = attributes["body"], attributes["num_scan_inputs"]
    values = [importer.values[name] for name in node.input]
    carried, scanned = values[: len(values) - count], [expression_of(v, importer.builder) for v in values[-count:]]
    axes = _axes(attributes.get("scan_input_axes", [0] * count), [t.struct_info.ndim for t in scanned])
    backwards = attributes.get("scan_input_directions", [0] * count)
    lengths = [shape_of(tensor, importer.algebra)[axis] for tensor, axis in zip(scanned, axes, strict=True)]
    length = importer.algebra.broadcast(lengths)
    limit = _size(importer, length)

    def inputs(number: relax.Var, state: Sequence[relax.Var]) -> list[Value]:
        emit = importer.builder.emit
        last = emit(relax.op.subtract(limit, relax.const(1, "int64")))
        mirrored = emit(relax.op.subtract(last, number))
        rows = [
            emit(relax.op.take(tensor, mirrored if reverse else number, axis, mode="clip"))
            for tensor, axis, reverse in zip(scanned, axes, backwards, strict=True)
        ]
        return [Value(expression=each) for each in (*state, *rows)]

    last, rows = _run(importer, node, body, Steps(limit, None, length), carried, inputs, conditional=False)
    directions = attributes.get("scan_output_directions", [0] * len(rows))
    to = _axes(attributes.get("scan_output_axes", [0] * len(rows)), [row.struct_info.ndim for row in rows])
    placed = [_placed(importer, *each) for each in zip(rows, directions, to, strict=True)]
    return [Value(expression=each) for each in (*last, *placed)]


def _placed(importer: GraphImporter, rows: relax.Expr, backwards: int, axis: int) -> relax.Expr:
    """Rows stacked along the first axis, as rows along another one, the last of them first if ``backwards``."""
    if backwards:
        rows = importer.builder.emit(relax.op.flip(rows, 0))
    if axis == 0:
        return rows
    order = [*range(1, axis + 1), 0, *range(axis + 1, rows.struct_info.ndim)]
    return importer.builder.emit(relax.op.permute_dims(rows, order))


def _axes(given: Sequence[int], ranks: Sequence[int]) -> list[int]:
    if any(not -rank <= axis < rank for axis, rank in zip(given, ranks, strict=True)):
        raise ConversionError(f"has axes {list(given)} for tensors of {list(ranks)} dimensions; correct the model")
    return [axis % rank for axis, rank in zip(given, ranks, strict=True)]


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    return graph


def _size(importer: GraphImporter, size: Size) -> relax.Expr:
    if isinstance(size, int):
        return relax.const(size, "int64")
    return importer.builder.emit(relax.op.reshape(relax.op.arange(size, size + 1, 1, "int64"), ()))


def _run(
    importer: GraphImporter,
    node: onnx.NodeProto,
    body: onnx.GraphProto,
    steps: Steps,
    carried: Sequence[Value],
    inputs: BodyInputs,
    *,
    conditional: bool,
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """What the loop carried last, and its rows stacked along a new first axis."""
    builder, algebra = importer.builder, importer.algebra
    assert isinstance(builder, SourceBuilder)  # as the importer makes it
    initial = [
        importer.sized(expression_of(value, builder), name)
        for value, name in zip(carried, output_names(node), strict=False)
    ]
    if not all(isinstance(each.struct_info, relax.TensorStructInfo) for each in initial):
        raise ConversionError("carries a sequence or an optional value; carry its tensors one by one")
    shapes = [shape_of(tensor, algebra) for tensor in initial]
    varying: set[tirx.Var] = set()
    while True:
        types = [relax.TensorStructInfo(s, each.struct_info.dtype) for s, each in zip(shapes, initial, strict=True)]
        step, changed = step_of(importer, node, body, steps, types, inputs, varying, conditional)
        changed = [(state, axis) for state, axis in changed if shapes[state][axis] not in varying]
        if not changed:
            break
        for state, axis in changed:
            shapes[state][axis] = size = _new_size(importer, f"carried_{state}_{axis}")
            varying.add(size)
    begin = beginning(importer, steps, initial, step)
    known = [info if not varying & set(_variables(info)) else None for info in types]
    return _called(importer, node, steps, types, known, begin, step)


def _variables(info: relax.TensorStructInfo) -> list[tirx.Var]:
    return [variable for size in info.shape.values for variable in tirx.analysis.undefined_vars(size)]


def _new_size(importer: GraphImporter, name: str) -> tirx.Var:
    size = tirx.Var(name, "int64")
    importer.algebra.declare(size, minimum=0)
    return size


def _called(
    importer: GraphImporter,
    node: onnx.NodeProto,
    steps: Steps,
    types: Sequence[relax.TensorStructInfo],
    known: Sequence[relax.TensorStructInfo | None],
    begin: Part,
    step: Step,
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """The results of a call of the runtime's loop with both functions.

    ``known`` are the types of carried values whose sizes no step changes.
    """
    builder = importer.builder
    assert isinstance(builder, SourceBuilder)
    parts = (begin, step.part)
    bodies = [relax.SeqExpr([part.block], part.result) for part in parts]
    functions = [
        relax.Function(part.params, body, relax.ObjectStructInfo()) for part, body in zip(parts, bodies, strict=True)
    ]
    captured = list(dict.fromkeys(var for function in functions for var in relax.analysis.free_vars(function)))
    with_captured = [
        relax.Function([*captured, *part.params], body, relax.ObjectStructInfo())
        for part, body in zip(parts, bodies, strict=True)
    ]
    free = dict.fromkeys(size for each in with_captured for size in relax.analysis.free_symbolic_vars(each))
    held = [relax.Var("sizes", relax.ShapeStructInfo(list(free)))] if free else []
    names = []
    for part, body in zip(parts, bodies, strict=True):
        name = builder.part_name(output_names(node)[0])
        params = [*held, *captured, *part.params]
        builder.begin_scope(params)
        normal = builder.normalize(body)
        builder.end_scope()
        function = relax.Function(params, normal).with_attr(GLOBAL_SYMBOL, name)
        builder.add_func(relax.utils.copy_with_new_vars(function), name)
        names.append(relax.StringImm(name))
        importer.parts.append(name)
    operands = [*([relax.ShapeExpr(list(free))] if free else []), *captured]
    infos: list[relax.StructInfo] = [relax.TensorStructInfo((), "int64")]
    infos += [
        relax.TensorStructInfo(dtype=info.dtype, ndim=info.ndim) if sure is None else sure
        for info, sure in zip(types, known, strict=True)
    ]
    for row in step.rows:
        if row.shape is None:
            infos.append(relax.TensorStructInfo(dtype=row.dtype, ndim=1))
            infos.append(relax.TensorStructInfo([1 + row.ndim], "int64"))
        elif steps.length is None:
            infos.append(relax.TensorStructInfo(dtype=row.dtype, ndim=row.ndim + 1))
        else:
            infos.append(relax.TensorStructInfo([steps.length, *row.shape], row.dtype))
    infos += [relax.TensorStructInfo([len(step.flags)], "int32")] if step.flags else []
    call = relax.call_pure_packed(WHILE, *names, *operands, sinfo_args=[relax.TupleStructInfo(infos)])
    results = builder.emit(call)
    count, *fields = (builder.emit(relax.TupleGetItem(results, i)) for i in range(len(infos)))
    if step.flags:
        importer.index_uses.add_counts(fields.pop(), list(step.flags))
    last = [importer.sized(each, name) for each, name in zip(fields[: len(types)], output_names(node), strict=False)]
    return last, _stacked(importer, node, steps, step.rows, fields[len(types) :], count)


def _stacked(
    importer: GraphImporter,
    node: onnx.NodeProto,
    steps: Steps,
    rows: Sequence[Row],
    fields: Sequence[relax.Expr],
    count: relax.Expr,
) -> list[relax.Expr]:
    """The rows of ``count`` steps as tensors, of the ``fields`` of the loop's state that hold them."""
    builder, op = importer.builder, relax.op
    left, stacks = list(fields), []
    number: Size | None = steps.length
    for row in rows:
        field = left.pop(0)
        if row.shape is not None:
            if steps.length is None:
                number = _new_size(importer, f"{output_names(node)[0]}_steps") if number is None else number
                field = builder.match_cast(field, relax.TensorStructInfo([number, *row.shape], row.dtype))
            stacks.append(field)
            continue
        shape = left.pop(0)
        alike = builder.emit(op.equal(op.sum(op.strided_slice(shape, [0], [0], [1])), relax.const(1, "int64")))
        last = builder.emit(op.strided_slice(shape, [0], [1], [1 + row.ndim]))
        sizes = builder.emit(op.concat([builder.emit(op.reshape(count, [1])), last], 0))
        context = Node(node, 0, {}, [], builder, importer.algebra, importer.index_uses)
        flat = importer.sized(field, "elements")
        stacks.append(builder.emit(op.reshape(flat, context.run_time_sizes(sizes, 1 + row.ndim, alike))))
    return stacks


LOOPS = {"Loop": loop, "Scan": scan}
"""What converts operators that repeat a graph, by their names."""
