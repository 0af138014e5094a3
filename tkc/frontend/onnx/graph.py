"""Walks an ONNX graph node by node and builds the Relax function that computes it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.frontend.onnx import onnx_frontend

from tkc.errors import Error, UnsupportedModelError
from tkc.frontend.identifiers import identifier
from tkc.frontend.indices import IndexUses
from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Known, Size, SizeAlgebra, SizesLearned, UndecidedError, checkable, fold, pack_sizes
from tkc.frontend.onnx.untrusted import MOST_ELEMENTS, MOST_RANK, short, told
from tkc.frontend.sources import SourceBuilder
from tkc.passes.lowering.simple_sizes import with_simple_sizes
from tkc.runtime.signature import Flag

STANDARD_DOMAINS = ("", "ai.onnx")
MICROSOFT_DOMAIN = "com.microsoft"
ML_DOMAIN = "ai.onnx.ml"

# Names in Apache TVM's converter table, which knows no domains, that are ONNX Runtime's operators.
_MICROSOFT_CONVERTERS = frozenset(
    {
        "AllClassNMS",
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)


def stock_converters(domain: str) -> Mapping[str, type[onnx_frontend.OnnxOpConverter]]:
    """Apache TVM's converters of one operator domain."""
    table = onnx_frontend._get_convert_map()
    if domain == MICROSOFT_DOMAIN:
        return {name: table[name] for name in _MICROSOFT_CONVERTERS}
    if domain in STANDARD_DOMAINS:
        return {name: converter for name, converter in table.items() if name not in _MICROSOFT_CONVERTERS}
    return {}


_BROADCASTING = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("Max", "Mean", "Min", "Sum", "Where"),
    }
)


_OPSET_OF_COMPUTED = 21  # in which axes and parts are inputs


class ConversionError(Exception):
    """What a node needs that its converter does not offer, as a clause that follows the node's name; then the cure."""


class Weight:
    """A weight, the array of an initializer. Who asks for its numbers converts the model for these alone."""

    def __init__(self, name: str, array: np.ndarray, read: set[str], *, exchangeable: bool = False) -> None:
        """``read`` is told the name when its numbers are asked for."""
        self.array = array
        """Its numbers, for who decides by them what is right for any others, too."""
        self.exchangeable = exchangeable
        """Whether what is right for any numbers is to be preferred to what is faster for these."""
        self._name = name
        self._read = read

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.array.size

    def numbers(self) -> np.ndarray:
        """Its numbers, which are noted to have been read."""
        self._read.add(self._name)
        return self.array


@dataclass
class Value:
    """A value of the graph: a Relax expression, or one known at import that becomes an expression on demand.

    A sequence is the list of its elements.
    """

    known: Known | None = None
    expression: relax.Expr | None = None
    weight: Weight | None = None
    sequence: list[Value] | None = None


@dataclass(frozen=True)
class Node:
    """One node as its converter sees it."""

    proto: onnx.NodeProto
    opset: int
    attributes: Mapping[str, Any]
    inputs: Sequence[Value | None]
    builder: relax.BlockBuilder
    algebra: SizeAlgebra
    index_uses: IndexUses
    narrow: Mapping[str, str] = field(default_factory=dict)
    """The types of values that are narrower than a byte, by name."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as Python value, strings decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def value(self, position: int) -> Value | None:
        """An input; ``None`` where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def has(self, position: int) -> bool:
        """Whether the input is given."""
        return self.value(position) is not None

    def wants(self, position: int) -> bool:
        """Whether the graph uses this output."""
        return position < len(self.proto.output) and bool(self.proto.output[position])

    def tensor(self, position: int) -> relax.Expr:
        """An input as Relax expression."""
        value = self.value(position)
        if value is None:
            raise ConversionError(f"lacks input {position}; correct the model")
        return expression_of(value, self.builder)

    def sizes(self, position: int) -> list[Size] | None:
        """The elements of an integer input, symbolic ones too; ``None`` where only the running model has them."""
        value = self.value(position)
        if value is None:
            return None
        if value.known is not None:
            return value.known.sizes
        return None if value.weight is None else value.weight.numbers().ravel().tolist()

    def constant(self, position: int, what: str) -> np.ndarray | None:
        """The numbers of an input, ``None`` if left out; ``what`` names them in the error if they are no constant."""
        value = self.value(position)
        if value is None:
            return None
        if value.weight is not None:
            return value.weight.numbers()
        if value.known is None or value.known.symbolic:
            raise ConversionError(
                f"needs {what} to be a constant; make it an initializer, or have the exporter fold constants"
            )
        return value.known.values

    def axes(self, position: int) -> list[int] | None:
        """The axes, given by attribute ``axes`` or by an input, as they stand; ``None`` where neither is given."""
        if "axes" in self.attributes:
            return list(self.attributes["axes"])
        axes = self.constant(position, "its axes")
        return None if axes is None else axes.ravel().tolist()

    def shape(self, position: int) -> list[Size]:
        """The sizes of an input."""
        return shape_of(self.tensor(position), self.algebra)

    def require_shape(self, position: int, sizes: Sequence[Size]) -> None:
        """See to it that an input has these sizes: learned of the model's inputs, or checked at the call."""
        value, old = self.value(position), self.shape(position)
        fits = len(old) == len(sizes)
        for new, size in zip(sizes, old, strict=False):
            if self.algebra.undecided(new, size):
                self.algebra.unify(new, size)
            else:
                fits &= self.algebra.equal(new, size)
        if value is None or not fits:
            raise ConversionError(
                f"has input {position} of shape {[*map(str, old)]}; expected {[*map(str, sizes)]}: correct the model"
            )
        match_sizes(value, sizes, self.builder, self.algebra)

    def require_at_least(self, size: Size, minimum: int) -> None:
        """See to it that a size has a minimum: learned of the model's inputs, or checked at the call."""
        if isinstance(size, int) and size < minimum:
            raise ConversionError(f"works on a size of {size}; expected at least {minimum}: correct the model")
        if not self.algebra.at_least(size, minimum):
            tensor = expression_of(Value(pack_sizes([size])), self.builder)
            self.require(relax.op.greater_equal(tensor, relax.const([minimum], "int64")))

    def require_equal(self, size: Size, other: Size) -> None:
        """See to it that two sizes are equal: learned of the model's inputs, or checked at the call."""
        if not self.algebra.undecided(size, other):
            if not self.algebra.equal(size, other):
                raise ConversionError(f"works on a size of {size}; expected {other}: correct the model")
            return
        self.algebra.unify(size, other)
        left, right = (expression_of(Value(pack_sizes([each])), self.builder) for each in (size, other))
        self.require(relax.op.equal(left, right))

    def require(self, fits: relax.Expr) -> None:
        """See to it that a call fails where a truth value of the model's does not hold."""
        require(self.builder, fits)

    def rank(self, position: int) -> int:
        """The number of dimensions of an input."""
        rank: int = self.tensor(position).struct_info.ndim
        if rank < 0:
            raise ConversionError(
                f"needs the number of dimensions of input {position} ({self.proto.input[position]}); "
                "export the model with known shapes"
            )
        return rank

    def dtype(self, position: int) -> str:
        """The element type of an input."""
        dtype: str = self.tensor(position).struct_info.dtype
        return dtype

    def declared_dtype(self, position: int) -> str:
        """The element type that an input has in the model: that of numbers narrower than a byte is no tensor's."""
        value = self.value(position)
        if value is not None and value.known is not None:
            return value.known.dtype
        return self.narrow.get(self.proto.input[position]) or self.dtype(position)

    def note_indices(self, indices: relax.Expr, size: Size, part: int | None = None) -> None:
        """Note that the node indexes an axis of ``size``; negative ``indices`` count from the end.

        ``part`` is as in :class:`tkc.frontend.indices.IndexUse`.
        """
        self.index_uses.add(indices, size, wraps=True, source=describe(self.proto), part=part)

    def note_count(self, counts: relax.Expr, size: Size) -> None:
        """Note that ``counts`` are to be from 0 to ``size``, both included."""
        above = self.algebra.simplify(size + 1)
        self.index_uses.add(counts, above, wraps=False, source=describe(self.proto))

    def note_divisor(self, position: int, quotient: relax.Expr) -> None:
        """Note that the node divides integers by an input, for a result of the shape of ``quotient``."""
        value, shape = self.value(position), quotient.struct_info.shape
        if value is not None and value.known is not None and all(map(self._is_some, value.known.sizes)):
            return
        sizes = list(shape.values) if isinstance(shape, relax.ShapeExpr) else []
        name, source = self.proto.input[position], describe(self.proto)
        self.index_uses.divisors.add(self.tensor(position), sizes, name=name, source=source)

    def _is_some(self, size: Size) -> bool:
        """Whether a size is at least 1 in every call."""
        try:
            return bool(self.algebra.holds(size >= 1))
        except UndecidedError:
            return False

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression to a variable of its own."""
        variable = emit_simply(self.builder, self.algebra, expression)
        check_size(variable.struct_info)
        return variable

    def run_time_sizes(self, tensor: relax.Expr, count: int, fits: relax.Expr | None = None) -> list[tirx.Var]:
        """New symbolic sizes that stand for the elements of an int64 vector computed by the model.

        A call fails before memory is taken for them where one is negative, where they make too large a tensor, or where
        ``fits``, a truth value, does not hold.
        """
        if count > MOST_RANK:
            raise ConversionError(
                f"makes a tensor of {count} dimensions; expected up to {MOST_RANK}: correct the model"
            )
        holds = [] if fits is None else [fits]
        if count:
            wide = relax.op.astype(relax.op.maximum(tensor, relax.const(1, "int64")), "float64")
            holds.append(relax.op.less_equal(relax.op.prod(wide), relax.const(float(MOST_ELEMENTS), "float64")))
            holds.append(relax.op.greater_equal(relax.op.min(tensor), relax.const(0, "int64")))
        flags = [self.emit(relax.op.reshape(relax.op.astype(held, "int64"), (1,))) for held in holds]
        shape = self.emit(relax.op.tensor_to_shape(self.emit(relax.op.concat([tensor, *flags]))))
        sizes = [tirx.Var(f"{identifier(self.proto.output[0], ())}_{axis}", "int64") for axis in range(count)]
        for size in sizes:
            self.algebra.declare(size, minimum=-1)
        self.builder.match_cast(shape, relax.ShapeStructInfo([*sizes, *[1] * len(flags)]))
        return sizes

    def stock(self, operator: str | None = None) -> relax.Expr:
        """What Apache TVM's own converter, of this operator or of another, makes of the inputs and attributes."""
        converter = stock_converters(self.proto.domain).get(operator or self.proto.op_type)
        if converter is None:
            raise ConversionError("has no converter for these inputs; compute it with other operators")
        inputs = onnx_frontend.onnx_input([self.tensor(i) if self.has(i) else None for i in range(len(self.inputs))])
        custom = {"name": self.proto.name, "num_outputs": len(self.proto.output)}
        attributes = {**self.attributes, "tvm_custom": custom}
        return converter.get_converter(self.opset)(self.builder, inputs, attributes, [{}, {}])


_OPERANDS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "less_equal", "greater",
             "greater_equal", "logical_and", "logical_or", "matmul")  # fmt: skip
_OF_TWO = frozenset(Op.get(f"relax.{name}") for name in _OPERANDS)
_MATMUL = Op.get("relax.matmul")


def emit_simply(builder: relax.BlockBuilder, algebra: SizeAlgebra, expression: relax.Expr) -> relax.Var:
    """Bind an expression to a variable, whose sizes are written in their simplest form.

    A TensorIR function that ``emit_te`` makes has the sizes of its arguments as these are written, and is fused only
    with functions that write them alike. Sizes of two operands that have to be equal are learned to be, or checked at
    the call.
    """
    if not isinstance(expression, relax.Call):
        return builder.emit(expression)
    if isinstance(expression.op, Op):
        inner = [emit_simply(builder, algebra, arg) if isinstance(arg, relax.Call) else arg for arg in expression.args]
        expression = relax.Call(expression.op, inner, expression.attrs, expression.sinfo_args)
    expression = builder.normalize(expression)
    if expression.op in _OF_TWO and not isinstance(expression.struct_info.shape, relax.ShapeExpr):
        operands = _with_equal_sizes(builder, algebra, *expression.args, product=expression.op == _MATMUL)
        expression = builder.normalize(relax.Call(expression.op, operands, expression.attrs, expression.sinfo_args))
    return builder.emit(with_simple_sizes(expression))


def _with_equal_sizes(
    builder: relax.BlockBuilder, algebra: SizeAlgebra, *operands: relax.Expr, product: bool
) -> list[relax.Expr]:
    """The operands of an operator that broadcasts, or of a product of matrices, with sizes that fit."""
    if not all(isinstance(each.struct_info.shape, relax.ShapeExpr) for each in operands):
        return list(operands)
    shapes = [shape_of(each, algebra) for each in operands]
    kept: list[list[Size]] = [[], []]
    if product:  # their last axes are not broadcast, and one of each is summed over
        places = [len(shapes[0]) - 1, max(len(shapes[1]) - 2, 0)]
        summed = algebra.broadcast(shape[place] for shape, place in zip(shapes, places, strict=True))
        for shape, place in zip(shapes, places, strict=True):
            shape[place] = summed
        kept = [shape[-2:] for shape in shapes]
        shapes = [shape[:-2] for shape in shapes]
    turned = [shape[::-1] for shape in shapes]
    common = [algebra.broadcast(sizes) for sizes in itertools.zip_longest(*turned, fillvalue=1)]
    values = [Value(expression=each) for each in operands]
    for value, shape, last in zip(values, turned, kept, strict=True):
        wide = [1 if isinstance(size, int) and size == 1 else common[i] for i, size in enumerate(shape)]
        match_sizes(value, [*wide[::-1], *last], builder, algebra)
    return [expression_of(value, builder) for value in values]


def check_size(info: relax.StructInfo) -> None:
    """Raise :class:`ConversionError` for a tensor whose fixed sizes make it too large for any machine, or negative."""
    if not (isinstance(info, relax.TensorStructInfo) and isinstance(info.shape, relax.ShapeExpr)):
        return
    fixed = [int(size) for size in info.shape.values if isinstance(size, tirx.IntImm)]
    if any(size < 0 for size in fixed) or (0 not in fixed and math.prod(fixed) > MOST_ELEMENTS):
        shape = ", ".join(str(size) for size in info.shape.values)
        raise ConversionError(f"makes a tensor of shape [{shape}], which no machine can hold; correct the model")


def shape_of(tensor: relax.Expr, algebra: SizeAlgebra) -> list[Size]:
    """The sizes of a tensor, Python integers where they are fixed."""
    shape = tensor.struct_info.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ConversionError("works on a tensor whose shape depends on the data; compute it with other operators")
    return [algebra.simplify(size) for size in shape.values]


def match_sizes(value: Value, sizes: Sequence[Size], builder: relax.BlockBuilder, algebra: SizeAlgebra) -> None:
    """Take a tensor for one of ``sizes``; a call fails where one that may differ from the tensor's own does.

    Raises :class:`ConversionError` where that would be a variable: TVM takes such a cast for the variable's
    definition, and drops the check.
    """
    tensor = expression_of(value, builder)
    old = shape_of(tensor, algebra)
    checked = [new if algebra.undecided(new, size) else size for new, size in zip(sizes, old, strict=True)]
    if all(new is size for new, size in zip(checked, old, strict=True)):
        return
    for new, size in zip(checked, old, strict=True):
        if new is not size and isinstance(new, tirx.Var):
            raise ConversionError(
                f"needs the sizes {size} and {new} to be equal, which the running model alone knows; "
                "have the exporter fold constants and write fixed sizes"
            )
    value.expression = builder.match_cast(tensor, relax.TensorStructInfo(checked, tensor.struct_info.dtype))


def require(builder: relax.BlockBuilder, fits: relax.Expr) -> None:
    """See to it that a call fails where a truth value of one element does not hold."""
    flag = builder.emit(relax.op.reshape(relax.op.astype(builder.emit(fits), "int64"), (1,)))
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(flag)), relax.ShapeStructInfo([1]))


def expression_of(value: Value, builder: relax.BlockBuilder) -> relax.Expr:
    """The Relax expression of a value."""
    known = value.known
    if value.sequence is not None:
        return builder.emit(relax.Tuple([expression_of(element, builder) for element in value.sequence]))
    if value.expression is None and known is not None:
        if known.dtype in WIDENED:
            wide = WIDENED[known.dtype]
            value.expression = relax.const(known.values.astype(wide), wide)
            return value.expression
        if known.dtype not in DTYPES:
            raise ConversionError(
                f"needs a tensor of {known.dtype}, which compiled models cannot hold; cast it to another type"
            )
        value.expression = _size_tensor(known, builder) if known.symbolic else relax.const(known.values, known.dtype)
    return value.expression


def _size_tensor(known: Known, builder: relax.BlockBuilder) -> relax.Expr:
    """A tensor of symbolic sizes, each computed on the device as a range of one number."""
    parts = [relax.op.arange(size, size + 1, 1, known.dtype) for size in known.sizes]
    vector = builder.emit(relax.op.concat([builder.emit(part) for part in parts]) if len(parts) > 1 else parts[0])
    return vector if known.values.ndim == 1 else builder.emit(relax.op.reshape(vector, known.values.shape))


@dataclass(frozen=True)
class _Branch:
    """A branch that lacks its end: its bindings, what they compute, and its own counts of bad indices and divisors."""

    bindings: relax.BindingBlock
    results: Sequence[relax.Expr]
    counts: relax.Var | None
    flags: list[Flag]

    def end(self, builder: relax.BlockBuilder, before: int, behind: int) -> relax.SeqExpr:
        """The whole branch: a tuple of its results and of the counts of both, zeros for the other's.

        There are so many of the other's ``before`` its own, or ``behind``.
        """
        builder.begin_scope()
        builder._begin_binding_block()
        zeros = [relax.const(np.zeros(count, "int32")) if count else None for count in (before, behind)]
        parts = [part for part in (zeros[0], self.counts, zeros[1]) if part is not None]
        counts = parts if len(parts) < 2 else [builder.emit(relax.op.concat(parts, 0))]
        result = builder.emit(relax.Tuple([*self.results, *counts]))
        block = builder._end_block()
        builder.end_scope()
        return relax.SeqExpr([self.bindings, block], result)


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
    """Converters of operators that repeat a graph, or make or take sequences: from a node to the values it makes."""

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

    def tensor(self, name: str) -> relax.Expr:
        """An output of the graph as Relax expression; :class:`tkc.errors.UnsupportedModelError` if it is no tensor."""
        if name not in self.values:
            raise UnsupportedModelError(f"Output {short(name)} is computed by no node; export the model again.")
        try:
            tensor = expression_of(self.values[name], self.builder)
        except ConversionError as error:
            raise UnsupportedModelError(f"Output {name!r} {error}.") from error
        if not isinstance(tensor.struct_info, relax.TensorStructInfo):
            raise UnsupportedModelError(
                f"Output {name!r} is a sequence; only tensors can be outputs: return its tensors one by one."
            )
        return tensor

    def _add_node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "If" and node.domain in STANDARD_DOMAINS:
            self._add_if(node)
            return
        if node.op_type in self.value_converters and node.domain in STANDARD_DOMAINS:
            results = self.value_converters[node.op_type](self, node)
            self.values.update({name: value for name, value in zip(node.output, results, strict=True) if name})
            return
        inputs = [self.values[name] if name else None for name in node.input]
        if any(value is not None and value.sequence is not None for value in inputs):
            if node.op_type != "Identity":
                raise ConversionError("reads a sequence, of which only tensors can be read; use SequenceAt")
            self.values[node.output[0]] = self.values[node.input[0]]
            return
        opset = self.opsets.get(_plain_domain(node.domain), 1)
        outputs = self._known_outputs(node, opset, inputs)
        if outputs is None:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            context = Node(node, opset, attributes, inputs, self.builder, self.algebra, self.index_uses, self.narrow)
            converter = self.converters.get((_plain_domain(node.domain), node.op_type), Node.stock)
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
        if isinstance(info, relax.TensorStructInfo) and info.dtype not in DTYPES:
            raise ConversionError(
                f"makes a tensor of {info.dtype}, which compiled models cannot hold; cast it to another type"
            )
        return bound

    def _add_if(self, node: onnx.NodeProto) -> None:
        branches = {a.name: a.g for a in node.attribute}
        condition = self.values[node.input[0]]
        if condition.known is not None:
            chosen = branches["then_branch" if condition.known.values.item() else "else_branch"]
            outputs = self.add_subgraph(chosen, self.index_uses)
        else:
            test = expression_of(condition, self.builder)
            if test.struct_info.ndim != 0:
                test = self.builder.emit(relax.op.reshape(test, ()))
            outside = set(self.algebra.variables)
            then, other = (self._branch(branches[name]) for name in ("then_branch", "else_branch"))
            for name, left, right in zip(node.output, then.results, other.results, strict=True):
                _check_alike(name, left, right)
            ends = then.end(self.builder, 0, len(other.flags)), other.end(self.builder, len(then.flags), 0)
            choice = self.builder.emit(relax.If(test, *ends))
            if flags := then.flags + other.flags:
                counts = self.builder.emit(relax.TupleGetItem(choice, len(node.output)))
                self.index_uses.add_counts(counts, flags)
            fields = [self.builder.emit(relax.TupleGetItem(choice, i)) for i in range(len(node.output))]
            outputs = [
                Value(expression=self._either(*each, outside))
                for each in zip(node.output, fields, then.results, other.results, strict=True)
            ]
        self.values.update(zip(node.output, outputs, strict=True))

    def _either(
        self, name: str, tensor: relax.Expr, left: relax.Expr, right: relax.Expr, outside: set[tirx.Var]
    ) -> relax.Expr:
        """The result of a choice, of the sizes that both branches give it where these are known outside of them."""
        one, two = (getattr(each.struct_info, "shape", None) for each in (left, right))
        if not (isinstance(one, relax.ShapeExpr) and isinstance(two, relax.ShapeExpr)):
            return self.sized(tensor, name)
        sizes = [self.algebra.simplify(size) for size in one.values]
        for size, other in zip(sizes, two.values, strict=True):
            used = [] if isinstance(size, int) else tirx.analysis.undefined_vars(size)
            if self.algebra.undecided(size, self.algebra.simplify(other)) or not outside.issuperset(used):
                return self.sized(tensor, name)
            if not self.algebra.equal(size, self.algebra.simplify(other)):
                return self.sized(tensor, name)
        return self.builder.match_cast(tensor, relax.TensorStructInfo(sizes, tensor.struct_info.dtype))

    def sized(self, tensor: relax.Expr, name: str) -> relax.Expr:
        """The tensor with new symbolic sizes, where the taken branch decides them."""
        info = tensor.struct_info
        if not isinstance(info, relax.TensorStructInfo) or isinstance(info.shape, relax.ShapeExpr):
            return tensor
        sizes = [tirx.Var(f"{identifier(name, ())}_{axis}", "int64") for axis in range(info.ndim)]
        for size in sizes:
            self.algebra.declare(size, minimum=0)
        return self.builder.match_cast(tensor, relax.TensorStructInfo(sizes, info.dtype))

    def _branch(self, graph: onnx.GraphProto) -> _Branch:
        """A branch whose bindings run only when it is taken."""
        uses = self.index_uses.branch()
        self.builder.begin_scope()
        self.builder._begin_binding_block()
        results = [expression_of(value, self.builder) for value in self.add_subgraph(graph, uses)]
        counts, flags = uses.counted()
        block = self.builder._end_block()
        self.builder.end_scope()
        return _Branch(block, results, counts, flags)

    def add_subgraph(
        self, graph: onnx.GraphProto, index_uses: IndexUses, inputs: Mapping[str, Value] | None = None
    ) -> list[Value]:
        """Import the nodes of a nested graph, which sees the values around it but adds none to them.

        ``inputs`` are those of the graph itself.
        """
        # Copies, so that what a branch makes of a known value stays inside the branch.
        outer = {name: dataclasses.replace(value) for name, value in self.values.items()}
        outer.update(inputs or {})
        inner = GraphImporter(
            self.builder,
            self.opsets,
            self.converters,
            self.algebra,
            index_uses,
            outer,
            self.parts,
            self.narrow,
            self.value_converters,
        )
        for tensor in graph.initializer:
            inner.values[tensor.name] = Value(Known.constant(onnx.numpy_helper.to_array(tensor)))
        inner.add_nodes(graph.node)
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


def _check_alike(name: str, left: relax.Expr, right: relax.Expr) -> None:
    """Raise :class:`ConversionError` for results of two branches that no tensor type can be for both."""
    infos = [result.struct_info for result in (left, right)]
    if not all(isinstance(info, relax.TensorStructInfo) for info in infos):
        return
    one, other = infos
    if one.dtype != other.dtype:
        raise ConversionError(f"has {short(name)} of {one.dtype} or {other.dtype}, by the branch; correct the model")
    if one.ndim != other.ndim or one.ndim < 0:
        raise ConversionError(
            f"has {short(name)} of {one.ndim} or {other.ndim} dimensions, by the branch; export the model with fixed "
            "sizes, which decide the condition"
        )


def _makes_sequence(node: onnx.NodeProto) -> bool:
    return "Sequence" in node.op_type or node.op_type.startswith("Optional")


def _plain_domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def describe(node: onnx.NodeProto) -> str:
    """A node's operator, domain and name, as errors give them."""
    operator = f"{node.domain}.{node.op_type}" if node.domain not in STANDARD_DOMAINS else node.op_type
    name = node.name or next(filter(None, node.output), "")
    return f"ONNX node {short(name)} ({short(operator)[1:-1]})"
