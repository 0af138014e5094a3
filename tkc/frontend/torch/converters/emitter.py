"""What a converter works with: the Relax builder, and what PyTorch knows of the node being converted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import sympy
import torch
from torch import fx
from tvm import arith, relax, te, tirx

from tkc.errors import Error, InternalError, UnsupportedModelError, UsageError
from tkc.frontend.indices import IndexUses
from tkc.frontend.origins import held_size
from tkc.frontend.sources import SourceBuilder
from tkc.frontend.torch.converters.dtypes import LOW_PRECISION, as_element, dtype_name, is_inexact
from tkc.frontend.torch.converters.operand_sizes import (
    axes_of_one_size,
    has_unknown_shape,
    operands_of,
    with_operands,
)
from tkc.frontend.torch.converters.symbols import Size, Symbols, signed_number
from tkc.passes.lowering.simple_sizes import with_simple_sizes

Converter = Callable[..., Any]
"""Takes an :class:`Emitter`, then the operator's arguments in its schema's order (defaults filled in, nodes replaced by
their Relax values, sizes by PrimExprs); returns the value, or a list of them where the operator has several results."""


class DefinedSizes(Protocol):
    """The sizes that only the data decides, which results of converters define."""

    def counted(self, count: relax.Expr, expected: Any, what: str | None = None) -> Size:
        """The size that ``count``, ``int64 [1]``, holds, which PyTorch calls ``expected`` if it has a name for it.

        Where it may be negative, as no size is, the error says of ``what``.
        """

    def computed(self, size: Size) -> Size:
        """A variable that is ``size``, which is not negative: a result has it that PyTorch gives a name of its own."""

    def fitted(self, value: relax.Expr, shape: Sequence[Size], own: Sequence[Size] | None = None) -> relax.Expr:
        """``value`` as one of ``shape``; a call in which it is of another shape, or ``own`` is another one, fails."""

    def checking(self, message: str, value: relax.Expr, holds: relax.Expr, *others: tirx.PrimExpr) -> relax.Var:
        """``value``, which exists where ``holds``; a call in which it does not fails with ``message``."""

    def decide(self, size: Size) -> bool:
        """Whether only the data decides ``size``."""

    def defines_sizes(self, node: fx.Node) -> bool:
        """Whether the node's result has a size that is not known yet."""

    def settled(self, value: relax.Expr, expected: Any, node: fx.Node) -> Any:
        """``value`` with the sizes of ``expected``, which are known from then on."""


class FaultyModelError(UnsupportedModelError):
    """What a model does that PyTorch refuses in every call; it is not called there either."""


def source_of(node: fx.Node) -> str:
    """Where a node comes from: the module's path in the model, and the line of code."""
    return place_of(node.meta) or f"node {node.name!r}"


def place_of(meta: Mapping[str, Any]) -> str:
    """The same of a node's metadata; empty where they do not say."""
    stack = meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    lines = [line.strip() for line in (meta.get("stack_trace") or "").splitlines()]
    # Graphs that PyTorch captured on the way have lines of generated code.
    written = (line for line in reversed(lines) if line.startswith("File ") and not line.startswith('File "<eval'))
    return ", ".join(part for part in (path and f"module {path!r}", next(written, "")) if part)


class Emitter:
    """Emits Relax for one graph, node by node; :attr:`node` is the one being converted."""

    def __init__(self, builder: relax.BlockBuilder, symbols: Symbols, index_uses: IndexUses) -> None:
        self.builder = builder
        self.symbols = symbols
        self.index_uses = index_uses
        self.node: fx.Node = None  # type: ignore[assignment]  # set by convert
        self.env: dict[fx.Node, Any] = {}
        self._analyzer = arith.Analyzer()
        self._made: dict[Hashable, Any] = {}
        self._read: dict[tirx.Var, relax.Expr] = {}
        self.data_sizes: DefinedSizes = None  # type: ignore[assignment]  # set by who emits the graph
        symbols.name_number = self._named_number

    def convert(self, node: fx.Node, converter: Converter) -> None:
        """Run ``converter`` for ``node`` and bring what it returns to the shapes and dtypes that PyTorch states."""
        expected: Any = node.meta.get("val")  # PyTorch states none of an assertion in a branch
        defines = self.data_sizes.defines_sizes(node)
        with self.converting(node):
            # What has no elements is what it is, whatever computes it.
            empty = isinstance(expected, torch.Tensor) and not defines and self._has_no_elements(expected)
            value = self._zeros(expected) if empty else converter(self, *self._arguments(node))
            if value is None and isinstance(expected, torch.Tensor):
                # TVM takes what is missing in a function's result for a pointer.
                raise InternalError(f"The converter of {node.target} ({source_of(node)}) made nothing.")
            if defines:
                value = self.cast(self.emit(value), dtype_name(expected.dtype))
                self.env[node] = self.data_sizes.settled(value, expected, node)
            else:
                self.env[node] = self.settled(value, expected)

    @contextmanager
    def converting(self, node: fx.Node) -> Iterator[None]:
        """What is emitted stands for ``node``, and what fails names it."""
        self.node = node
        source = f"{node.target} ({source_of(node)})"
        self._name_source(source)
        try:
            yield
        except InternalError as error:
            error.nodes = (source,)
            raise
        except (Error, MemoryError):
            raise
        except Exception as error:
            failure = InternalError(f"The converter of {source} failed: {type(error).__name__}: {error}")
            failure.nodes = (source,)
            raise failure from error
        finally:
            self._name_source("")

    def bind(self, node: fx.Node, value: relax.Expr) -> None:
        """Let ``node`` stand for ``value``, a parameter of the function or a constant."""
        self.node = node
        self.env[node] = self.settled(value, node.meta["val"])

    def stand_in(self, node: fx.Node) -> None:
        """Let zeros stand for ``node``, which is refused, so that the nodes after it are converted too."""
        self.node = node
        value = node.meta.get("val")
        parts = [
            part if part is None else self._zeros(part)
            for part in (value if isinstance(value, list | tuple) else [value])
        ]
        self.env[node] = parts if isinstance(value, list | tuple) else parts[0]

    @property
    def dtype(self) -> str:
        """The dtype of the node's result."""
        return dtype_name(self.node.meta["val"].dtype)

    @property
    def shape(self) -> list[Size]:
        """The shape of the node's result."""
        return self.sizes(self.node.meta["val"].shape)

    def sizes(self, shape: Sequence[int | torch.SymInt]) -> list[Size]:
        """A PyTorch shape in Relax's terms, in the form that TVM gives the sizes of what is computed from it."""
        return [self._size(self.symbols.size(size)) for size in shape]

    def _size(self, size: Size) -> Size:
        """``size`` in its simplest form; PyTorch calls that of ``x[3:min(3, n)]`` ``min(0, n - 3)``."""
        simple = self.simplified(size)
        if isinstance(simple, int) or self._analyzer.const_int_bound(simple).max_value > 0:
            return simple
        return 0

    def _has_no_elements(self, tensor: torch.Tensor) -> bool:
        """Whether a (fake) tensor has a dimension that is 0 in every call."""
        return any(isinstance(size, int) and size == 0 for size in self.sizes(tensor.shape))

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind ``value`` to a variable; variables and constants stay as they are."""
        if not isinstance(value, relax.Expr):
            raise TypeError(f"emit takes a Relax expression, not {value!r}, a {type(value).__name__}")
        if isinstance(value, relax.Var | relax.Constant):
            return value
        value = self.builder.normalize(value)
        if has_unknown_shape(value):
            value = self.builder.normalize(self._with_equal_sizes(value))
        # Functions that the importer makes take the sizes of their arguments as they are.
        return self.builder.emit(with_simple_sizes(value) if isinstance(value, relax.Call) else value)

    def _with_equal_sizes(self, call: relax.Call) -> relax.Expr:
        """``call`` of operands whose sizes are the same where they have to be.

        PyTorch has proved that they are, or made it a condition of calls: ``n * m`` and 35 of a vector that was given.
        """
        operands = operands_of(call)
        shapes = [list(operand.struct_info.shape.values) for operand in operands]
        for same, broadcast in axes_of_one_size(call, shapes):
            axes = [(which, axis) for which, axis in same if not (broadcast and self.equal(shapes[which][axis], 1))]
            sizes = [shapes[which][axis] for which, axis in axes]
            chosen = next((size for size in sizes if isinstance(size, tirx.IntImm)), sizes[0] if sizes else None)
            for which, axis in axes:
                shapes[which][axis] = chosen
        fitting = [self._of_shape(operand, shape) for operand, shape in zip(operands, shapes, strict=True)]
        return with_operands(call, fitting)

    def emit_te(self, name: str, compute: Callable[..., te.Tensor], *args: relax.Expr, **attrs: Any) -> relax.Var:
        """Bind a ``call_tir`` to the loops of ``compute``; ``attrs`` become the PrimFunc's attributes."""
        if not isinstance(name, str) or not callable(compute):
            raise UsageError(
                f"b.emit_te was given a {type(name).__name__} and a {type(compute).__name__} for {self.node.target} "
                f"({source_of(self.node)}); it takes the function's name first, as in b.emit_te('double', compute, x)"
            )
        return self.builder.emit_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=attrs or None)

    def cast(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """``x`` in ``dtype``."""
        return x if x.struct_info.dtype == dtype else self.emit(relax.op.astype(x, dtype))

    def tensor(self, value: Any, dtype: str) -> relax.Expr:
        """A tensor, Python number or symbolic number as a tensor of ``dtype``."""
        if isinstance(value, relax.Expr) and not isinstance(value, relax.PrimValue):
            return self.cast(value, dtype)
        if isinstance(value, tirx.PrimExpr) and not isinstance(value, tirx.IntImm | tirx.FloatImm):
            return self._scalar(value, dtype)
        return relax.const(as_element(getattr(value, "value", value), dtype), dtype)

    def operands(self, x: Any, y: Any, dtype: str) -> tuple[relax.Expr, relax.Expr]:
        """``x`` and ``y``, tensors or numbers, as operands of arithmetic whose result is of ``dtype``.

        Both are float32 where ``dtype`` is a float of 16 bits in which a number would not be exact: PyTorch's kernels
        take numbers, and a tensor without axes as the second operand, in float32, and round their result alone. What
        is exact stays in ``dtype``, which gives the same and leaves kernels and fusion their operators.
        """
        wide = dtype in LOW_PRECISION and (is_inexact(x, dtype) or is_inexact(y, dtype) or _is_wide_scalar(y))
        chosen = "float32" if wide else dtype
        return self.tensor(x, chosen), self.tensor(y, chosen)

    def reshape(self, x: relax.Expr, shape: Sequence[Size]) -> relax.Expr:
        """``x`` in ``shape``, of as many elements, of which one may be -1; Relax would keep an axis for a size of 0."""
        if any(self.equal(size, 0) for size in shape):
            return relax.op.zeros(shape, x.struct_info.dtype)
        return relax.op.reshape(x, shape)

    def read_float(self, symbol: sympy.Symbol, number: relax.Expr) -> None:
        """Let ``symbol``, a float that the model reads out of a tensor, be ``number``, float64 without axes."""
        self._read[self.symbols.define_float(symbol)] = number

    def depends_on_read_float(self, value: Size | float) -> bool:
        """Whether ``value`` is computed from such a float."""
        return isinstance(value, tirx.PrimExpr) and any(
            variable in self._read for variable in tirx.analysis.undefined_vars(value)
        )

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returned when it was first called for ``key``: several nodes share what it emits."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def wide(self, x: relax.Expr) -> relax.Expr:
        """``x`` in the precision that PyTorch accumulates it in: float32 for the 16-bit floating types."""
        return self.cast(x, "float32") if x.struct_info.dtype in LOW_PRECISION else x

    def simplified(self, size: Size) -> Size:
        """``size`` in its simplest form."""
        return size if isinstance(size, int) else self._analyzer.simplify(size)

    def equal(self, left: Size, right: Size) -> bool:
        """Whether two sizes are provably equal."""
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        return self._analyzer.can_prove_equal(left, right)

    def has_shape(self, x: relax.Expr, shape: Sequence[Size]) -> bool:
        """Whether ``x`` provably has ``shape``."""
        found = x.struct_info.shape
        if not isinstance(found, relax.ShapeExpr) or len(found.values) != len(shape):
            return False
        return all(map(self.equal, found.values, shape))

    def promoted(self, left: int = 0, right: int = 1) -> str:
        """The dtype that PyTorch brings two of the node's arguments to before it compares them."""
        first, second = (_example(self.node.args[position]) for position in (left, right))
        return dtype_name(torch.result_type(first, second))

    def note_indices(self, indices: relax.Expr, size: Size, *, wraps: bool = False, writes: bool = False) -> None:
        """Note that the node indexes an axis of ``size``, of which it ``writes`` rows or reads what is there; negative
        ``indices`` count from the end if ``wraps``."""
        source = f"{self.node.target} ({source_of(self.node)})"
        self.index_uses.add(indices, self.simplified(size), wraps=wraps, source=source, writes=writes)

    def note_divisor(self, divisor: relax.Expr, value: Any) -> None:
        """Note that the node divides integers by ``divisor``, which ``value``, its second argument, became."""
        if isinstance(value, tirx.PrimExpr) and self.symbols.is_positive(value):
            return
        source = f"{self.node.target} ({source_of(self.node)})"
        self.index_uses.divisors.add(divisor, self.shape, name=str(self.node.args[1]), source=source)

    def unsupported(self, reason: str) -> UnsupportedModelError:
        """The error for a use of the node's operator that its converter cannot express."""
        return UnsupportedModelError(f"{self.node.target} ({source_of(self.node)}): {reason}")

    def faulty(self, reason: str) -> FaultyModelError:
        """The error for a use of the node's operator that PyTorch refuses in every call."""
        return FaultyModelError(f"{self.node.target} ({source_of(self.node)}): {reason}")

    def resolve(self, argument: Any) -> Any:
        """An argument of a node with every node in it replaced by its value."""
        if isinstance(argument, fx.Node):
            return self.env[argument]
        if isinstance(argument, list | tuple):
            return [self.resolve(item) for item in argument]
        return argument

    def _named_number(self, value: tirx.PrimExpr) -> tirx.PrimExpr:
        """A variable that is ``value`` from here on, which no pass replaces by it again.

        What is computed from floats that were read stays what it is: no size may be, and tensors are computed from it.
        """
        if self.depends_on_read_float(value):
            return value
        is_size = self.symbols.is_certain(value >= 0)
        variable = tirx.SizeVar("number", "int64") if is_size else signed_number("number")
        self.builder.match_cast(held_size(self.builder, value), relax.ShapeStructInfo([variable]))
        return variable

    def _name_source(self, source: str) -> None:
        """What the builder notes for the variables that it binds from now on."""
        if isinstance(self.builder, SourceBuilder):
            self.builder.source = source

    def _arguments(self, node: fx.Node) -> list[Any]:
        schema = node.target._schema.arguments  # type: ignore[union-attr]  # an OpOverload
        given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | dict(node.kwargs)
        return [self.resolve(given.get(argument.name, argument.default_value)) for argument in schema]

    def _scalar(self, value: tirx.PrimExpr, dtype: str) -> relax.Expr:
        """A number computed from sizes, and from floats that were read out of tensors."""
        variables = list(tirx.analysis.undefined_vars(value))
        if value.dtype == "bool" and dtype != "bool":
            value = tirx.Select(value, tirx.const(1, "int8"), tirx.const(0, "int8"))

        def compute(*operands: tirx.Var | te.Tensor) -> te.Tensor:
            numbers = (operand() if isinstance(operand, te.Tensor) else operand for operand in operands)
            number = tirx.stmt_functor.substitute(value, dict(zip(variables, numbers, strict=True))).astype(dtype)
            return te.compute((), lambda: number, name="size")

        operands = [self._read.get(variable, variable) for variable in variables]
        return self.builder.emit_te(compute, *operands, primfunc_name_hint="size")

    def _zeros(self, like: torch.Tensor) -> relax.Expr:
        return self.emit(relax.op.zeros(self.sizes(like.shape), dtype_name(like.dtype)))

    def settled(self, value: Any, expected: Any) -> Any:
        """``value`` in the shapes and dtypes of the (fake) tensors that PyTorch states, ``expected``."""
        if isinstance(expected, list | tuple):
            if isinstance(value, relax.Expr):
                value = [self.emit(relax.TupleGetItem(value, i)) for i in range(len(value.struct_info.fields))]
            return [self.settled(v, e) for v, e in zip(value, expected, strict=True)]
        if value is None or expected is None:
            return None
        value = self._zeros(expected) if self._has_no_elements(expected) else self.emit(value)
        found = value.struct_info
        dtype, shape = dtype_name(expected.dtype), self.sizes(expected.shape)
        if found.ndim not in (-1, len(shape)):
            raise InternalError(
                f"The converter of {self.node.target} ({source_of(self.node)}) made {found.ndim} dimensions "
                f"where PyTorch has {len(shape)}. Please report this model."
            )
        value = self.cast(value, dtype)
        if isinstance(found.shape, relax.ShapeExpr) and any(map(_differ, found.shape.values, shape)):
            raise InternalError(
                f"The converter of {self.node.target} ({source_of(self.node)}) made the shape {found.shape} "
                f"where PyTorch has {shape}. Please report this model."
            )
        return self._of_shape(value, shape)

    def _of_shape(self, value: relax.Expr, shape: Sequence[Size]) -> relax.Expr:
        """``value``, which has ``shape`` in every call, as one of that shape."""
        if self.has_shape(value, shape):
            return value
        # As what is computed from them will have them: FuseTIR takes sizes in two forms for those of two buffers.
        sizes = [self.simplified(size) for size in shape]
        dtype = value.struct_info.dtype
        known = value.struct_info.shape
        if isinstance(known, relax.ShapeExpr) and any(
            isinstance(size, tirx.Var) and not self.equal(old, size)
            for old, size in zip(known.values, sizes, strict=True)
        ):
            # TVM would take the cast for a definition of the size, and put the other form in its place from there on.
            value = self.builder.match_cast(value, relax.TensorStructInfo(dtype=dtype, ndim=len(sizes)))
        return self.builder.match_cast(value, relax.TensorStructInfo(sizes, dtype))


def _example(argument: Any) -> Any:
    """A stand-in with the dtype category of ``argument``: a (fake) tensor, or a Python number."""
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    if isinstance(value, torch.SymInt):
        return 1
    if isinstance(value, torch.SymBool):
        return True
    return 1.0 if isinstance(value, torch.SymFloat) else value


def _is_wide_scalar(value: Any) -> bool:
    """Whether ``value`` is a tensor without axes of a dtype that floats of 16 bits do not cover."""
    if not isinstance(value, relax.Expr) or not isinstance(value.struct_info, relax.TensorStructInfo):
        return False
    return value.struct_info.ndim == 0 and value.struct_info.dtype not in (*LOW_PRECISION, "bool", "int8", "uint8")


def _differ(left: Size, right: Size) -> bool:
    """Whether two sizes are known, and not the same."""
    return isinstance(left, int | tirx.IntImm) and isinstance(right, int | tirx.IntImm) and int(left) != int(right)
