"""What the functions that scatter on a GPU have in common: what becomes of an element, and how they are launched."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from tkc.contracts import THREAD_EXTENT
from tkc.passes.graph.bindings import static
from tkc.passes.graph.layout import product
from tkc.passes.lowering.scatter_function import FlatTensors, int64

THREADS = 256
"""In a block."""

COLUMNS = 4
"""How many columns of a row each thread has."""

_COPIED = 4
"""How many elements a thread copies."""

_WIDEST = 64
"""How many threads are side by side along a row."""

_UPDATES = """
#ifndef TKC_UPDATES
#define TKC_UPDATES
// What becomes of an element, from what is there and what is written. A NaN is the largest and the smallest.
struct tkc_all { static constexpr bool keeps_last = false; };
struct tkc_last { static constexpr bool keeps_last = true; };
struct tkc_update : tkc_last { template <typename T> static __device__ T of(T a, T b) { return b; } };
struct tkc_add : tkc_all { template <typename T> static __device__ T of(T a, T b) { return T(a + b); } };
struct tkc_mul : tkc_all { template <typename T> static __device__ T of(T a, T b) { return T(a * b); } };
struct tkc_max : tkc_all { template <typename T> static __device__ T of(T a, T b) { return b != b || b > a ? b : a; } };
struct tkc_min : tkc_all { template <typename T> static __device__ T of(T a, T b) { return b != b || b < a ? b : a; } };
#endif
"""


def copied(memory: FlatTensors) -> tirx.Stmt:
    """The first tensor, copied to the result."""
    elements = product(memory.sizes("x"))

    def copy(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        i = tirx.Var("i", "int64")
        at = (block * _COPIED + i) * THREADS + thread
        one = tirx.IfThenElse(at < elements, memory.store(at, memory.load("x", at)), None)
        return tirx.For(i, int64(0), int64(_COPIED), tirx.ForKind.UNROLLED, one)

    return launched(tirx.floordiv(elements + (THREADS * _COPIED - 1), int64(THREADS * _COPIED)), copy)


def row_threads(inner: tirx.PrimExpr) -> int:
    """How many threads are side by side along a row: a power of 2."""
    width = static(inner)
    return _WIDEST if width is None or width > _WIDEST else 1 << max(width - 1, 0).bit_length()


def called(name: list[str], arguments: list[tirx.PrimExpr], source: str) -> tirx.Stmt:
    """A call of the function in ``source`` that ``name`` begins with, of the template arguments that follow there."""
    function, *options = name
    called = f"{function}<{', '.join(options)}>"
    numbers = [each if each.dtype == "handle" else each.astype("int64") for each in arguments]
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.cuda_func_call", called, *numbers, _UPDATES + source))


def launched(blocks: tirx.PrimExpr, body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """A kernel of so many ``blocks``, of whose numbers, and those of their threads, ``body`` makes the statement."""
    block, thread = tirx.Var("block", "int64"), tirx.Var("thread", "int64")
    statement = body(block, thread)
    for variable, tag, extent in ((thread, "threadIdx.x", int64(THREADS)), (block, "blockIdx.x", blocks)):
        axis = tirx.IterVar(None, variable, tirx.IterVar.ThreadIndex, tag)
        statement = tirx.AttrStmt(axis, THREAD_EXTENT, extent, statement)
    return statement


def cpp(flag: bool) -> str:
    """``flag`` as C++ has it."""
    return "true" if flag else "false"
