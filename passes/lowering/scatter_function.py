"""The function that scatters elements, or rows of them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tvm import tirx

from tkc.contracts import IS_SCHEDULED, NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN, S_TIR
from tkc.passes.graph.layout import product

Reduction = Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]


class Tensor(NamedTuple):
    """The sizes and the dtype of an argument."""

    shape: Sequence[tirx.PrimExpr]
    dtype: str


REDUCTIONS: dict[str, Reduction] = {
    "update": lambda there, written: written,
    "add": lambda there, written: there + written,
    "mul": lambda there, written: there * written,
    "max": tirx.max,
    "min": tirx.min,
}
"""What becomes of an element, from what is there and what is written."""

_IN_VECTORS = ("add", "mul")  # others ask about NaN
_WITHOUT_CONVERSION = ("float32", "float64", "int32", "int64")
_LANES = 16
_COPIED = 1 << 14
"""How many elements a thread copies at a time."""
_COLUMNS = 128
"""In how many columns a thread writes all rows."""


def scatter_function(
    tensors: Mapping[str, Tensor], axis: int, reduction: str, *, of_rows: bool, clamps: bool
) -> tirx.PrimFunc:
    """A function of ``x``, ``indices`` and ``values``, which gives ``x`` with the values written along ``axis``.

    A value goes where its index says, by ``reduction``, in the order of the indices along the axis. An index below 0
    counts from the end, or, if the function ``clamps``, one outside of the axis is the nearest in it. Indices and
    values have the sizes of ``x`` but for that along the axis. ``of_rows``: indices have 1 along all others, and are
    the same for all elements there. With ``sources [count]`` as a fourth tensor, and along the first axis, the rows of
    the values that these name, or the nearest ones, are written one after the other. The function is scheduled.
    """
    return _Function(tensors, axis, reduction, of_rows=of_rows, clamps=clamps).made()


class FlatTensors:
    """The tensors of a scatter's function, and its results, ``out``, which is like ``x``, and ``others``, as the memory
    that they are."""

    def __init__(self, tensors: Mapping[str, Tensor], others: Mapping[str, Tensor] | None = None) -> None:
        self._buffers = {name: _buffer(name, tensor) for name, tensor in tensors.items()}
        x = self._buffers["x"]
        self._buffers["out"] = tirx.decl_buffer(x.shape, x.dtype, "out")
        self._buffers.update({name: _buffer(name, tensor) for name, tensor in (others or {}).items()})
        self._flat = {
            name: tirx.decl_buffer([product(buffer.shape)], buffer.dtype, f"{name}_flat", data=buffer.data)
            for name, buffer in self._buffers.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def sizes(self, name: str) -> list[tirx.PrimExpr]:
        """Of a tensor; what is no number is a variable of the function."""
        return list(self._buffers[name].shape)

    def writes(self, axis: int, count: tirx.PrimExpr) -> tirx.PrimExpr:
        """How many of ``count`` indices along ``axis`` are followed: none where there is no place, or no value."""
        x, values = self.sizes("x")[axis], self.sizes("values")[axis]
        return tirx.if_then_else(tirx.all(x > 0, values > 0), count, int64(0))

    def load(self, name: str, place: tirx.PrimExpr) -> tirx.PrimExpr:
        """The element at ``place``, counted row by row."""
        return tirx.BufferLoad(self._flat[name], [place])

    def store(self, place: tirx.PrimExpr, value: tirx.PrimExpr) -> tirx.Stmt:
        """``value`` as an element of the result."""
        return tirx.BufferStore(self._flat["out"], value, [place])

    def address(self, name: str) -> tirx.PrimExpr:
        """Where the tensor is."""
        return tirx.address_of(self.load(name, int64(0)))

    def function(self, statements: Sequence[tirx.Stmt]) -> tirx.PrimFunc:
        """The scheduled function that does ``statements`` and takes the tensors in their order, results last."""
        handles = {tirx.Var(f"{name}_handle", "handle"): buffer for name, buffer in self._buffers.items()}
        body = tirx.SeqStmt([*map(tirx.DeclBuffer, self._flat.values()), *statements])
        function = tirx.PrimFunc([*handles], body, buffer_map=handles)
        return function.with_attrs({IS_SCHEDULED: True, NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN, S_TIR: True})


class _Function:
    """What :func:`scatter_function` makes. All tensors are read and written as flat memory."""

    def __init__(
        self, tensors: Mapping[str, Tensor], axis: int, reduction: str, *, of_rows: bool, clamps: bool
    ) -> None:
        self._memory = FlatTensors(tensors)
        self._axis, self._of_rows, self._clamps = axis, of_rows, clamps
        x = self._memory.sizes("x")
        self._outer, self._length, self._inner = product(x[:axis]), x[axis], product(x[axis + 1 :])
        self._elements = product(x)
        self._count = self._memory.sizes("indices")[axis]
        self._writes = self._memory.writes(axis, self._count)
        self._reduced = REDUCTIONS[reduction]
        self._in_vectors = reduction == "update" or (
            reduction in _IN_VECTORS and tensors["x"].dtype in _WITHOUT_CONVERSION
        )

    def made(self) -> tirx.PrimFunc:
        """The function, which copies and then writes."""
        chunks = tirx.floordiv(self._elements + (_COPIED - 1), int64(_COPIED))
        return self._memory.function(
            [
                _loop(chunks, self._copied, tirx.ForKind.PARALLEL),
                _loop(self._outer * self._parts(), self._columns, tirx.ForKind.PARALLEL),
            ]
        )

    def _copied(self, chunk: tirx.Var) -> tirx.Stmt:
        begin = chunk * _COPIED
        width = tirx.min(self._elements - begin, int64(_COPIED))
        return _each(width, lambda i: self._memory.store(begin + i, self._memory.load("x", begin + i)), in_vectors=True)

    def _parts(self) -> tirx.PrimExpr:
        """Into how many parts, for a thread each, the columns of one of the outer tensors are divided."""
        return tirx.floordiv(self._inner + (_COLUMNS - 1), int64(_COLUMNS))

    def _columns(self, part: tirx.Var) -> tirx.Stmt:
        """All that is written in some columns of one of the outer tensors."""
        nth, begin = tirx.floordiv(part, self._parts()), tirx.floormod(part, self._parts()) * _COLUMNS
        width = tirx.min(self._inner - begin, int64(_COLUMNS))
        return _loop(self._writes, lambda k: self._row(k, nth, begin, width))

    def _row(self, k: tirx.Var, nth: tirx.PrimExpr, begin: tirx.PrimExpr, width: tirx.PrimExpr) -> tirx.Stmt:
        """The ``k``-th elements along the axis, in ``width`` columns from ``begin`` on."""
        index, source = tirx.Var("index", "int64"), tirx.Var("source", "int64")
        target = (nth * self._length + index) * self._inner + begin
        value = (nth * self._count + source) * self._inner + begin
        read = tirx.Bind(source, k)
        if "sources" in self._memory:
            read = tirx.Bind(
                source, _clamped(self._memory.load("sources", k), self._memory.sizes("values")[self._axis])
            )
        if self._of_rows:
            written = _each(width, lambda i: self._put(target + i, value + i), in_vectors=self._in_vectors)
            return tirx.SeqStmt([read, self._placed(index, k), written])
        elements = _loop(
            width, lambda i: tirx.SeqStmt([self._placed(index, value + i), self._put(target + i, value + i)])
        )
        return tirx.SeqStmt([read, elements])

    def _placed(self, index: tirx.Var, at: tirx.PrimExpr) -> tirx.Stmt:
        """Where along the axis what has its index ``at`` that place goes."""
        given = self._memory.load("indices", at).astype("int64")
        if self._clamps:
            return tirx.Bind(index, _clamped(given, self._length))
        return tirx.Bind(index, given + tirx.Select(given < 0, self._length, int64(0)))

    def _put(self, place: tirx.PrimExpr, value: tirx.PrimExpr) -> tirx.Stmt:
        return self._memory.store(
            place, self._reduced(self._memory.load("out", place), self._memory.load("values", value))
        )


def _clamped(index: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.min(tirx.max(index.astype("int64"), int64(0)), size - 1)


def int64(value: int) -> tirx.PrimExpr:
    """``value`` as a literal of the dtype that places are counted in."""
    return tirx.const(value, "int64")


def _buffer(name: str, tensor: Tensor) -> tirx.Buffer:
    return tirx.decl_buffer(_own(tensor.shape, name), tensor.dtype, name)


def _own(sizes: Sequence[tirx.PrimExpr], name: str) -> list[tirx.PrimExpr]:
    """The sizes of a tensor of the function: numbers, and variables of its own."""
    return [
        size if isinstance(size, tirx.IntImm) else tirx.Var(f"{name}{axis}", "int64") for axis, size in enumerate(sizes)
    ]


def _each(width: tirx.PrimExpr, statement: Callable[[tirx.PrimExpr], tirx.Stmt], *, in_vectors: bool) -> tirx.Stmt:
    """``statement`` for each number below ``width``, in vectors as far as these go."""
    if not in_vectors:
        return _loop(width, statement)
    lanes = int64(_LANES)

    def vector(nth: tirx.Var) -> tirx.Stmt:
        return _loop(lanes, lambda lane: statement(nth * lanes + lane), tirx.ForKind.VECTORIZED)

    whole = tirx.floordiv(width, lanes)
    rest = _loop(tirx.floormod(width, lanes), lambda i: statement(whole * lanes + i))
    return tirx.SeqStmt([_loop(whole, vector), rest])


def _loop(
    extent: tirx.PrimExpr, body: Callable[[tirx.Var], tirx.Stmt], kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    variable = tirx.Var("i", "int64")
    return tirx.For(variable, int64(0), extent, kind, body(variable))
