"""The inputs and outputs of an ONNX graph, as Relax types and as the signature of a call."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from tvm import relax, tirx

from tkc.errors import UnsupportedModelError
from tkc.frontend.identifiers import identifier
from tkc.frontend.indices import written_size
from tkc.frontend.onnx.sizes import Size, SizeAlgebra
from tkc.runtime.signature import Signature, TensorSpec
from tkc.runtime.tensors import HELD

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""The element types of tensors that compiled models can hold."""

WIDENED = HELD
"""The types in which compiled models hold the numbers of those that are narrower than a byte."""

NARROW = {int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))): name for name in HELD}
"""Their names by the numbers that ONNX gives them."""

_OPERATORS: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_DIVISIONS = (ast.Div, ast.FloorDiv)

# What an exporter writes is far below these; Python's parser and TVM follow a formula as deep as it is.
_LONGEST_FORMULA = 200
_LARGEST_NUMBER = 1 << 40

# Of each pair that must be equal the graph is built once more.
_MOST_SIZES = 500


def input_types(inputs: Sequence[onnx.ValueInfoProto], algebra: SizeAlgebra) -> list[relax.TensorStructInfo]:
    """The types of the graph's inputs, with one symbolic size for each name that their dimensions have.

    Any may be 0, as a batch and a decoder's cache are, until an operator asks for more.
    """
    shapes = [_declared_shape(value) for value in inputs]
    plain = {dim for shape in shapes for dim in shape if isinstance(dim, str) and dim.isidentifier()}
    sizes: dict[str, tirx.Var] = {}
    taken = set(plain)

    def size(name: str) -> tirx.Var:
        if name not in sizes:
            taken.discard(name)
            sizes[name] = tirx.Var(identifier(name, taken), "int64")
            taken.add(sizes[name].name)
            algebra.declare_input(sizes[name], minimum=0)
        return sizes[name]

    def extent(dim: int | str) -> Size:
        if isinstance(dim, int):
            return dim
        expression = _parse_dimension(dim)
        return size(dim) if expression is None or not _names_in(dim) <= plain else _evaluate_dimension(expression, size)

    names = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    if len(names) > _MOST_SIZES:
        raise UnsupportedModelError(
            f"The inputs of the model have {len(names)} symbolic sizes, and {_MOST_SIZES} are the most; give those "
            "that are always equal one name, or make them fixed."
        )
    # Plain names first: Relax reads a size off the dimension that is nothing else.
    for name in (dim for shape in shapes for dim in shape if dim in plain):
        size(name)
    dtypes = [element_type(value.name, value.type.tensor_type.elem_type) for value in inputs]
    return [
        relax.TensorStructInfo([extent(dim) for dim in shape], WIDENED.get(dtype, dtype))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _declared_shape(value: onnx.ValueInfoProto) -> list[int | str]:
    """The dimensions of a graph input; one without a name is named after the input and its position.

    Exporters also write -1, and names such as ``?``, for a size that has no name, and is equal to no other.
    """
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "value without a type"
        raise UnsupportedModelError(
            f"Input {value.name!r} is a {kind}; only tensors can be inputs: take its tensors one by one."
        )
    if not value.type.tensor_type.HasField("shape"):
        raise UnsupportedModelError(
            f"Input {value.name!r} has no shape; declare one in the model (its dimensions may be symbolic)."
        )
    return [
        dim.dim_value if is_fixed(dim) else given_name(dim) or f"{value.name}_{axis}"
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    ]


def _names_in(dim: str) -> set[str]:
    """The names that a formula has; of what is none, itself."""
    expression = _parse_dimension(dim)
    names = set() if expression is None else {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}
    return names or {dim}


def is_fixed(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether a dimension is declared as a number; exporters write -1 for any."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def given_name(dim: onnx.TensorShapeProto.Dimension) -> str:
    """The name of a size, empty where there is none."""
    name = dim.dim_param
    return name if any(map(str.isalpha, name)) and name != "None" else ""


def with_positive_sizes(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The declaration of an input or output without sizes below 0, with which exporters mean any size."""
    result = onnx.ValueInfoProto()
    result.CopyFrom(value)
    for dim in result.type.tensor_type.shape.dim if value.type.tensor_type.HasField("shape") else ():
        if dim.HasField("dim_value") and dim.dim_value < 0:
            dim.Clear()
    return result


def element_type(name: str, data_type: int) -> str:
    """The name of a tensor's element type; raises :class:`tkc.errors.UnsupportedModelError` for one of no use."""
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(data_type)) if data_type else "undefined"
    except KeyError:
        dtype = f"number {data_type}"
    if dtype == "object":
        raise UnsupportedModelError(f"Tensor {name!r} holds strings, where numbers are expected; correct the model.")
    if dtype not in DTYPES and dtype not in WIDENED:
        known = ", ".join((*DTYPES, *WIDENED))
        raise UnsupportedModelError(f"Tensor {name!r} has elements of type {dtype}; supported are {known}.")
    return dtype


def _parse_dimension(text: str) -> ast.expr | None:
    """The expression of names, integers and ``+ - * / //`` that a dimension spells; ``None`` if it is none."""
    if len(text) > _LONGEST_FORMULA:
        return None
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of Python's parser, for its own depth
        return None
    allowed = (ast.Name, ast.Load, ast.Constant, ast.BinOp, *_OPERATORS)
    parts = list(ast.walk(expression))
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    divisors = [part.right for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, _DIVISIONS)]
    fits = (
        all(isinstance(part, allowed) for part in parts)
        and all(isinstance(number, int) and number < _LARGEST_NUMBER for number in numbers)
        and all(isinstance(divisor, ast.Constant) and divisor.value != 0 for divisor in divisors)
    )
    return expression if fits else None


def _evaluate_dimension(expression: ast.expr, size: Callable[[str], tirx.Var]) -> Size:
    match expression:
        case ast.Name(id=name):
            return size(name)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate_dimension(left, size), _evaluate_dimension(right, size))
        case ast.Constant(value=value):
            return value
    raise AssertionError(f"{ast.dump(expression)} is no dimension")


def signature_of(
    graph: onnx.GraphProto,
    main: relax.Function,
    inputs: Sequence[onnx.ValueInfoProto],
    names: Sequence[str],
    algebra: SizeAlgebra,
) -> Signature:
    """How ``main``, which takes ``inputs`` first, and returns tensors called ``names`` first, is called.

    A dimension is a number, a symbolic size, or an expression of sizes; one that only the running model knows is
    named after its output and position.
    """
    leaves = [_tensor_spec(value, variable) for value, variable in zip(inputs, main.params, strict=False)]
    fields = main.body.body.struct_info.fields
    declared = {value.name: value for value in graph.output}
    values = [declared.get(name, onnx.ValueInfoProto(name=name)) for name in names]
    outputs = [_tensor_spec(value, field) for value, field in zip(values, fields, strict=False)]
    sizes = {variable.name: bounds for variable, bounds in algebra.ranges.items()}
    conditions = tuple(str(written_size(condition)) for condition in algebra.conditions)
    return Signature(tuple(leaves), tuple(outputs), sizes, conditions=conditions)


def _tensor_spec(value: onnx.ValueInfoProto, tensor: relax.Var | relax.TensorStructInfo) -> TensorSpec:
    name, info = value.name, tensor.struct_info if isinstance(tensor, relax.Var) else tensor
    if isinstance(info.shape, relax.ShapeExpr):
        shape = list(map(written_size, info.shape.values))
    else:
        shape = [f"{name}_{axis}" for axis in range(info.ndim)]
    return TensorSpec(name, tuple(shape), narrow_type(value) or str(info.dtype))


def narrow_type(value: onnx.ValueInfoProto) -> str | None:
    """The name of a value's element type if it is narrower than a byte."""
    return NARROW.get(value.type.tensor_type.elem_type) if value.type.HasField("tensor_type") else None
