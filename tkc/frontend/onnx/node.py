"""A node of an ONNX graph as its converter sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tkc.frontend.identifiers import identifier
from tkc.frontend.indices import IndexUses
from tkc.frontend.onnx.domains import describe, stock_converters
from tkc.frontend.onnx.sizes import Size, SizeAlgebra, UndecidedError, compared, is_empty_with
from tkc.frontend.onnx.torch_calls import TorchCalls
from tkc.frontend.onnx.untrusted import MOST_ELEMENTS, MOST_RANK
from tkc.frontend.onnx.values import (
    ConversionError,
    Value,
    check_size,
    emit_simply,
    expression_of,
    match_sizes,
    require,
    require_of_sizes,
    shape_of,
)


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
    torch_calls: TorchCalls = field(default_factory=TorchCalls)

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
            self._require_that(compared(tirx.GE, size, minimum))

    def require_elements(self, size: Size) -> None:
        """See to it that an axis, of whose elements some are read wherever there is a result, has elements.

        That is learned or asked of the inputs' sizes. What data decides is not: indices into no rows are out of range.
        """
        if not isinstance(size, int) and self.algebra.is_of_inputs(size) and not self.algebra.at_least(size, 1):
            self.algebra.ask_of_inputs(compared(tirx.GE, size, 1))

    def require_equal(self, size: Size, other: Size) -> None:
        """See to it that two sizes are equal: learned of the model's inputs, or checked at the call."""
        if self.algebra.undecided(size, other):
            self.algebra.unify(size, other)
        self._require_that(compared(tirx.EQ, size, other))

    def require_at_most(self, size: Size, limit: Size) -> None:
        """See to it that a size is no larger than another: known, or checked at the call."""
        self._require_that(compared(tirx.LE, size, limit))

    def require_multiple(self, size: Size, divisor: Size) -> None:
        """See to it that a size is divided without a rest: known, or checked at the call."""
        self._require_that(compared(tirx.EQ, size % divisor, 0))

    def _require_that(self, condition: tirx.PrimExpr) -> None:
        """See to it that a condition on sizes holds: known, or checked at the call."""
        try:
            if self.algebra.holds(condition):
                return
        except UndecidedError:
            if not self.algebra.ask_of_inputs(condition):
                require_of_sizes(self.builder, condition)
            return
        raise ConversionError(f"works on sizes for which {condition} does not hold; correct the model")

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

        ``part`` is as in :class:`tkc.frontend.indices.IndexUse`. The axis has to have elements, but where there are no
        indices if it has none: a batch's own row for each of its rows.
        """
        if not any(is_empty_with(extent, size) for extent in indices.struct_info.shape):
            self.require_elements(size)
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
            self.algebra.declare(size, minimum=0)
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
