"""Scheduled GPU functions run in Python, thread by thread: without a GPU, and with all that one would not notice.

A place outside of a tensor, or a register that was never written, is an error here. Threads of a block go on together
from one exchange to the next; where some come to another than the rest, that is one, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import tirx

from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import error
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target

_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.And: "and",
    tirx.Or: "or",
}
_FUNCTIONS = {"tirx.exp": "exp", "tirx.sqrt": "math.sqrt", "tirx.rsqrt": "rsqrt", "tirx.fabs": "abs"}


def interpret(func: tirx.PrimFunc, arrays: Sequence[np.ndarray]) -> None:
    """Run ``func``, scheduled for a GPU, on ``arrays``, one for each argument; the last ones are written.

    Only what the rules for symbolic sizes write is understood.
    """
    sizes: dict[str, int] = {}
    names = _Names()
    space: dict[str, Any] = {
        "inf": math.inf,
        "math": math,
        "exp": _exp,
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "quotient": _quotient,
    }
    tensors = [parameter for parameter in func.params if parameter in func.buffer_map]  # sizes are theirs
    for parameter, array in zip(tensors, arrays, strict=True):
        buffer = func.buffer_map[parameter]
        space[names.of(buffer.data)] = _Tensor(array)
        for size, own in zip(buffer.shape, array.shape, strict=True):
            if isinstance(size, tirx.Var):
                assert sizes.setdefault(names.of(size), own) == own
    writer = _Writer(names)
    code = writer.function(func.body.block.body)
    space |= {name: writer.dtypes[name] for name in writer.dtypes} | {name: _CASTS[name] for name in _CASTS} | sizes
    exec(code, space)
    space["run"](_launch)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _quotient(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return int(a / b) if abs(a) < 2**50 else a // b
    return float(np.divide(a, b))


_CASTS = {
    "float32": lambda x: float(np.float32(x)),
    "float16": lambda x: float(np.float16(x)),
    "float64": float,
    "int32": int,
    "int64": int,
    "uint64": int,
    "bool": bool,
}


class _Tensor:
    """An array whose places are checked."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def _check(self, place: tuple[int, ...]) -> None:
        inside = all(0 <= index < size for index, size in zip(place, self.array.shape, strict=True))
        assert inside, f"{place} is not in {self.array.shape}"

    def __getitem__(self, place: tuple[int, ...]) -> Any:
        self._check(place)
        return self.array[place].item()

    def __setitem__(self, place: tuple[int, ...], value: Any) -> None:
        self._check(place)
        self.array[place] = value


def _launch(blocks: int, threads: int, body: Any) -> None:
    for block in range(blocks):
        shared: dict[Any, Any] = {}
        running = [body(block, thread, shared) for thread in range(threads)]
        _together(running)


def _together(threads: list[Iterator[Any]]) -> None:
    """Run the threads of one block from exchange to exchange: all, or all of a warp, must come to the same."""
    warps = [threads[first : first + 32] for first in range(0, len(threads), 32)]
    waiting: list[list[Any]] = [[next(thread, None) for thread in warp] for warp in warps]
    while True:
        for number, warp in enumerate(warps):
            while any(at is not None and at[0] == "shuffle" for at in waiting[number]):
                reached = waiting[number]
                assert all(at is not None and at[0] == "shuffle" and at[2] == reached[0][2] for at in reached)
                distance = reached[0][2]
                waiting[number] = [_send(thread, reached[lane ^ distance][1]) for lane, thread in enumerate(warp)]
        if all(at is None for reached in waiting for at in reached):
            return
        assert all(at is not None for reached in waiting for at in reached), "not all threads come to the barrier"
        waiting = [[_send(thread, None) for thread in warp] for warp in warps]


def _send(thread: Any, value: Any) -> Any:
    try:
        return thread.send(value)
    except StopIteration:
        return None


class _Names:
    def __init__(self) -> None:
        self._names: dict[tirx.Var, str] = {}
        self._numbers = itertools.count()

    def of(self, variable: tirx.Var) -> str:
        """A name of its own for each variable."""
        if variable not in self._names:
            self._names[variable] = f"v{next(self._numbers)}"
        return self._names[variable]


class _Writer:
    """Writes Python of TensorIR."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._lines: list[str] = []
        self.dtypes: dict[str, Any] = {}
        self._launches = itertools.count()

    def function(self, body: tirx.Stmt) -> str:
        """A function ``run`` of what launches threads."""
        self._write(body, 1)
        return "\n".join(["def run(launch):", *self._lines])

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("  " * depth + text)

    def _write(self, statement: tirx.Stmt, depth: int) -> None:
        if isinstance(statement, tirx.SeqStmt):
            for each in statement.seq:
                self._write(each, depth)
        elif isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.THREAD_BINDING:
            self._launch(statement, depth)
        elif isinstance(statement, tirx.For):
            loop = self._names.of(statement.loop_var)
            self._line(depth, f"for {loop} in range({self._text(statement.extent)}):")
            self._write(statement.body, depth + 1)
        elif isinstance(statement, tirx.IfThenElse):
            self._line(depth, f"if {self._text(statement.condition)}:")
            self._write(statement.then_case, depth + 1)
            if statement.else_case is not None:
                self._line(depth, "else:")
                self._write(statement.else_case, depth + 1)
        elif isinstance(statement, tirx.AttrStmt):
            self._write(statement.body, depth)
        elif isinstance(statement, tirx.Bind):
            self._line(depth, f"{self._names.of(statement.var)} = {self._text(statement.value)}")
        elif isinstance(statement, tirx.BufferStore):
            value = self._cast(self._text(statement.value), statement.buffer.dtype)
            self._line(depth, f"{self._place(statement)} = {value}")
        elif isinstance(statement, tirx.Evaluate) and "storage_sync" in str(statement.value):
            self._line(depth, 'yield ("wait",)')
        else:
            raise NotImplementedError(type(statement))

    def _launch(self, blocks: tirx.For, depth: int) -> None:
        threads = blocks.body
        assert isinstance(threads, tirx.For)
        name = f"body{next(self._launches)}"
        block, thread = self._names.of(blocks.loop_var), self._names.of(threads.loop_var)
        self._line(depth, f"def {name}({block}, {thread}, shared):")
        self._line(depth + 1, "own = {}")
        self._line(depth + 1, "if False: yield")
        self._write(threads.body, depth + 1)
        self._line(depth, f"launch({self._text(blocks.extent)}, {self._text(threads.extent)}, {name})")

    def _place(self, access: tirx.BufferLoad | tirx.BufferStore) -> str:
        name = self._names.of(access.buffer.data)
        indices = ", ".join(self._text(place) for place in access.indices)
        if access.buffer.scope() == "global":
            return f"{name}[({indices},)]"
        return f"{'own' if access.buffer.scope() == 'local' else 'shared'}['{name}', {indices}]"

    def _cast(self, text: str, dtype: str) -> str:
        return f"{dtype}({text})"

    def _text(self, value: tirx.PrimExpr) -> str:
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return repr(value.value)
        if isinstance(value, tirx.Var):
            return self._names.of(value)
        if isinstance(value, tirx.BufferLoad):
            return self._place(value)
        if isinstance(value, tirx.Cast):
            return self._cast(self._text(value.value), value.dtype)
        if isinstance(value, tirx.Not):
            return f"(not {self._text(value.a)})"
        if isinstance(value, tirx.Select):
            return self._chosen(value.condition, value.true_value, value.false_value)
        if isinstance(value, tirx.Call):
            return self._call(value)
        a, b = self._text(value.a), self._text(value.b)
        if isinstance(value, tirx.Max | tirx.Min):
            return f"{'max' if isinstance(value, tirx.Max) else 'min'}({a}, {b})"
        if isinstance(value, tirx.Div):
            found = f"quotient({a}, {b})"
        elif isinstance(value, tirx.Mod):
            found = f"({a} - quotient({a}, {b}) * {b})"
        else:
            found = f"({a} {_OPERATORS[type(value)]} {b})"
        return self._cast(found, value.dtype) if value.dtype.startswith("float") else found

    def _chosen(self, condition: tirx.PrimExpr, one: tirx.PrimExpr, other: tirx.PrimExpr) -> str:
        return f"({self._text(one)} if {self._text(condition)} else {self._text(other)})"

    def _call(self, call: tirx.Call) -> str:
        name = call.op.name
        if name == "tirx.tvm_warp_shuffle_xor":
            return f'(yield ("shuffle", {self._text(call.args[1])}, {self._text(call.args[2])}))'
        if name == "tirx.if_then_else":
            return self._chosen(*call.args)
        return self._cast(f"{_FUNCTIONS[name]}({self._text(call.args[0])})", call.dtype)


def run(module: tvm.IRModule, tensors: Sequence[torch.Tensor], expected: torch.Tensor, rule: str) -> float:
    """The largest difference to ``expected``, relative to the largest number there, of what ``module`` makes of
    ``tensors``: its one function, scheduled by ``rule``."""
    (function,) = (func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc))
    scheduled = schedule_by_rules(function, HOPPER, tvm_target(HOPPER))
    assert scheduled.rule == rule, scheduled.reason
    call = module["main"].body.blocks[0].bindings[-1].value
    arrays = [tensors[int(str(argument.name_hint)[1:])].numpy() for argument in call.args[1].fields]
    result = np.full(expected.shape, 77, str(expected.dtype).removeprefix("torch."))
    interpret(scheduled.scheduled, [*map(np.ascontiguousarray, arrays), result])
    found = torch.from_numpy(result)
    assert torch.equal(found.isnan(), expected.isnan())
    return error(found.nan_to_num(), expected.nan_to_num())
