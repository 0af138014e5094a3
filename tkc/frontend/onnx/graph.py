"""Walks an ONNX graph node by node and builds the Relax function that computes it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from tvm import relax, tirx

from tkc.errors import Error, UnsupportedModelError
from tkc.frontend.identifiers import identifier
from tkc.frontend.indices import IndexUses
from tkc.frontend.onnx.decisions import Decisions
from tkc.frontend.onnx.domains import STANDARD_DOMAINS, describe, plain_domain
from tkc.frontend.onnx.known_outputs import fold
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import DTYPES
from tkc.frontend.onnx.sizes import Known, SizeAlgebra, SizesLearned, checkable, pack_sizes
from tkc.frontend.onnx.torch_calls import RANDOM, TorchCalls
from tkc.frontend.onnx.untrusted import MOST_RANK, short, told
from tkc.frontend.onnx.values import (
    ConversionError,
    Value,
    check_size,
    emit_simply,
    expression_of,
    match_sizes,
    shape_of,
)
from tkc.frontend.sources import SourceBuilder

_BROADCASTING = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("Max", "Mean", "Min", "Sum", "Where"),
    }
)

_OPSET_OF_COMPUTED = 21  # in which axes and parts are inputs


@dataclass
class GraphImporter:
    """Builds Relax from the nodes of a graph, in the block that ``builder`` has open."""

    builder: relax.BlockBuilder
    opsets: Mapping[str, int]
    converters: Mapping[tuple[str, str], Any]
    algebra: SizeAlgebra
    index_uses: IndexUses
    values: dict[str, Value] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    """The names of functions of the program that the runtime calls."""
    narrow: Mapping[str, str] = field(default_factory=dict)
    """The types of values that are narrower than a byte, by name."""
    value_converters: Mapping[str, Callable[[GraphImporter, onnx.NodeProto], list[Value]]] = field(default_factory=dict)
    """Converters of operators that choose or repeat a graph, or make or take sequences: from a node to its values."""
    decisions: Decisions = field(default_factory=Decisions)
    torch_calls: TorchCalls = field(default_factory=TorchCalls)

    def add_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Import nodes in order; raise :class:`tkc.errors.UnsupportedModelError` for one that cannot be converted."""
        for node in nodes:
            if isinstance(self.builder, SourceBuilder):
                self.builder.source = describe(node)
            try:
                self._add_node(node)
            except (Error, SizesLearned):
                raise
            except ConversionError as error:
                raise UnsupportedModelError(f"{describe(node)} {error}.") from error
            except Exception as error:  # whatever a converter of Apache TVM raises, it is about this node
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise UnsupportedModelError(
                    f"{describe(node)} cannot be converted: {told(reason[-1])}. Compute it with other operators, "
                    "or have the exporter fold constants and write fixed sizes."
                ) from error

    def result(self, name: str) -> tuple[Any, list[tuple[str, relax.Expr]]]:
        """An output of the graph: its structure, of names, and its tensors by these.

        A sequence is a list, and an optional value that is not there ``None``.
        """
        if name not in self.values:
            raise UnsupportedModelError(f"Output {short(name)} is computed by no node; export the model again.")
        try:
            return self._flat(name, self.values[name])
        except ConversionError as error:
            raise UnsupportedModelError(f"Output {name!r} {error}.") from error

    def _flat(self, name: str, value: Value) -> tuple[Any, list[tuple[str, relax.Expr]]]:
        if value.absent:
            return None, []
        if value.sequence is None:
            return name, [(name, expression_of(value, self.builder))]
        parts = [self._flat(f"{name}.{i}", element) for i, element in enumerate(value.sequence)]
        return [structure for structure, _ in parts], [tensor for _, tensors in parts for tensor in tensors]

    def _add_node(self, node: onnx.NodeProto) -> None:
        if node.op_type in self.value_converters and node.domain in STANDARD_DOMAINS:
            results = self.value_converters[node.op_type](self, node)
            self.values.update({name: value for name, value in zip(node.output, results, strict=True) if name})
            return
        inputs = [self.values[name] if name else None for name in node.input]
        if any(value is not None and (value.sequence is not None or value.absent) for value in inputs):
            if node.op_type != "Identity":
                raise ConversionError("reads a sequence or an optional value; use SequenceAt or OptionalGetElement")
            self.values[node.output[0]] = self.values[node.input[0]]
            return
        opset = self.opsets.get(plain_domain(node.domain), 1)
        outputs = self._known_outputs(node, opset, inputs)
        if outputs is None:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            context = Node(
                node,
                opset,
                attributes,
                inputs,
                self.builder,
                self.algebra,
                self.index_uses,
                self.narrow,
                self.torch_calls,
            )
            converter = self.converters.get((plain_domain(node.domain), node.op_type), Node.stock)
            if node.op_type in _BROADCASTING:
                self._unify_broadcast(inputs)
            elif node.op_type == "Concat" and node.domain in STANDARD_DOMAINS:
                self._unify_parts(node, inputs)
            outputs = self._values(node, converter(context))
        self.values.update(zip(filter(None, node.output), outputs, strict=True))

    def computed(
        self, operator: str, inputs: Sequence[Value | None], outputs: int = 1, **attributes: Any
    ) -> list[Value]:
        """What another operator of the standard makes of ``inputs``, for the node that is being imported."""
        names = [f"{operator} {i}" for i in range(max(len(inputs), outputs))]
        given = [name if value is not None else "" for name, value in zip(names, inputs, strict=False)]
        made = [f"{name} made" for name in names[:outputs]]
        values = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
        graph = dataclasses.replace(self, values=values, opsets={**self.opsets, "": _OPSET_OF_COMPUTED})
        graph._add_node(onnx.helper.make_node(operator, given, made, **attributes))
        return [graph.values[name] for name in made]

    def _unify_broadcast(self, inputs: Sequence[Value | None]) -> None:
        """See to it that the sizes of inputs provably broadcast, as Relax must know them to."""
        values = [value for value in inputs if value is not None]
        shapes = [shape_of(expression_of(value, self.builder), self.algebra)[::-1] for value in values]
        common = [self.algebra.broadcast(sizes) for sizes in itertools.zip_longest(*shapes, fillvalue=1)]
        for value, shape in zip(values, shapes, strict=True):
            wide = [1 if isinstance(size, int) and size == 1 else common[i] for i, size in enumerate(shape)]
            match_sizes(value, wide[::-1], self.builder, self.algebra)

    def _unify_parts(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
        """See to it that the parts of a concatenation provably agree along its other axes."""
        values = [value for value in inputs if value is not None]
        shapes = [shape_of(expression_of(value, self.builder), self.algebra) for value in values]
        rank = len(shapes[0])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        if not -rank <= axis < rank or any(len(shape) != rank for shape in shapes):
            raise ConversionError("concatenates tensors along an axis that not all of them have; correct the model")
        common = [checkable(sizes) for sizes in zip(*shapes, strict=True)]
        for value, shape in zip(values, shapes, strict=True):
            wanted = [size if i == axis % rank else common[i] for i, size in enumerate(shape)]
            match_sizes(value, wanted, self.builder, self.algebra)

    def _known_outputs(
        self, node: onnx.NodeProto, opset: int, inputs: Sequence[Value | None]
    ) -> Sequence[Value] | None:
        if node.op_type in RANDOM:
            return None
        if node.op_type in ("Shape", "Size") and node.domain in STANDARD_DOMAINS and inputs[0] is not None:
            known = self._shape_arithmetic(node, inputs[0])
        elif all(value is None or value.known is not None for value in inputs):
            known = fold(node, opset, [None if value is None else value.known for value in inputs], self.algebra)
        elif node.op_type in _BROADCASTING and (few := _of_few_numbers(inputs)) is not None:
            known = fold(node, opset, few, self.algebra)
        else:
            known = None
        return None if known is None else [Value(output) for output in known]

    def _shape_arithmetic(self, node: onnx.NodeProto, value: Value) -> tuple[Known, ...] | None:
        tensor = expression_of(value, self.builder)
        if not isinstance(tensor.struct_info, relax.TensorStructInfo) or not isinstance(
            tensor.struct_info.shape, relax.ShapeExpr
        ):
            return None
        shape = shape_of(tensor, self.algebra)
        if node.op_type == "Size":
            size = pack_sizes([self.algebra.product(shape)])
            return (Known(size.values.reshape(()), size.dtype),)
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        return (pack_sizes(shape[attributes.get("start", 0) : attributes.get("end", len(shape))]),)

    def _values(self, node: onnx.NodeProto, result: relax.Expr | Sequence[relax.Expr] | Known) -> list[Value]:
        """The values of a node's named outputs, each expression bound once so that every use shares it."""
        if isinstance(result, Known):
            return [Value(result)]
        if isinstance(result, relax.ShapeExpr):
            return [Value(pack_sizes([self.algebra.simplify(size) for size in result.values]))]
        if isinstance(result, relax.PrimValue):
            size = pack_sizes([self.algebra.simplify(result.value)])
            return [Value(Known(size.values.reshape(()), size.dtype))]
        if isinstance(result, tuple | list) or (isinstance(result, relax.Tuple) and not _makes_sequence(node)):
            fields = list(result)
        else:
            result = emit_simply(self.builder, self.algebra, result)
            unpacks = isinstance(result.struct_info, relax.TupleStructInfo) and not _makes_sequence(node)
            fields = (
                [relax.TupleGetItem(result, i) for i in range(len(result.struct_info.fields))] if unpacks else [result]
            )
        if len(fields) < len(node.output):
            raise ConversionError(
                f"has {len(node.output)} outputs, of which only {len(fields)} can be computed; "
                "compute the others with other operators"
            )
        named = (field for name, field in zip(node.output, fields, strict=False) if name)
        return [Value(expression=self._bound(expression)) for expression in named]

    def _bound(self, expression: relax.Expr) -> relax.Expr:
        bound = expression if isinstance(expression, relax.Var) else emit_simply(self.builder, self.algebra, expression)
        info = bound.struct_info
        check_size(info)
        if isinstance(info, relax.TensorStructInfo) and isinstance(info.shape, relax.ShapeExpr):
            self._declare_sizes(info.shape)
        if isinstance(info, relax.TensorStructInfo) and info.dtype not in DTYPES:
            raise ConversionError(
                f"makes a tensor of {info.dtype}, which compiled models cannot hold; cast it to another type"
            )
        return bound

    def _declare_sizes(self, shape: relax.ShapeExpr) -> None:
        """Have the algebra know of sizes that data decides, which Apache TVM's converters name (NonZero's)."""
        for size in shape.values:
            for variable in tirx.analysis.undefined_vars(size):
                if variable not in self.algebra.variables:
                    self.algebra.declare(variable, minimum=0)

    def sized(self, tensor: relax.Expr, name: str) -> relax.Expr:
        """The tensor with new symbolic sizes, where the taken branch decides them."""
        info = tensor.struct_info
        if not isinstance(info, relax.TensorStructInfo) or isinstance(info.shape, relax.ShapeExpr):
            return tensor
        sizes = [tirx.Var(f"{identifier(name, ())}_{axis}", "int64") for axis in range(info.ndim)]
        for size in sizes:
            self.algebra.declare(size, minimum=0)
        return self.builder.match_cast(tensor, relax.TensorStructInfo(sizes, info.dtype))

    def add_subgraph(
        self, graph: onnx.GraphProto, index_uses: IndexUses, inputs: Mapping[str, Value] | None = None
    ) -> list[Value]:
        """Import the nodes of a nested graph, which sees the values around it but adds none to them.

        ``inputs`` are those of the graph itself.
        """
        # Copies, so that what a branch makes of a known value stays inside the branch.
        outer = {name: dataclasses.replace(value) for name, value in self.values.items()}
        outer.update(inputs or {})
        inner = dataclasses.replace(self, index_uses=index_uses, values=outer)
        for tensor in graph.initializer:
            inner.values[tensor.name] = Value(Known.constant(onnx.numpy_helper.to_array(tensor)))
        was_in_part = self.algebra.in_part
        self.algebra.in_part |= index_uses is not self.index_uses
        try:
            inner.add_nodes(graph.node)
        finally:
            self.algebra.in_part = was_in_part
        return [inner.values[output.name] for output in graph.output]


def _of_few_numbers(inputs: Sequence[Value | None]) -> list[Known | None] | None:
    """The inputs of an operator that may compute sizes with a weight of few numbers; ``None`` for others."""
    values = [value for value in inputs if value is not None]
    if not any(value.known is not None for value in values):
        return None
    if not all(value.known is not None or (value.weight and value.weight.size <= MOST_RANK) for value in values):
        return None
    return [
        None if value is None else value.known or Known.constant(value.weight.numbers())  # type: ignore[union-attr]  # asked above
        for value in inputs
    ]


def _makes_sequence(node: onnx.NodeProto) -> bool:
    return "Sequence" in node.op_type or node.op_type.startswith("Optional")
