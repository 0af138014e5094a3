"""Reductions that TVM's scheduling has to be told of before it divides them among threads or vector lanes.

TVM knows maxima from the lowest finite number up, and ``argmax`` without NaN. Importing this module registers maxima
and minima from the infinities, and ``argmax`` and ``argmin`` as PyTorch defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx

_INFINITE = ("float16", "float32", "float64", "bfloat16")

Numbers = Sequence[tirx.PrimExpr]
Pairs = Callable[[Numbers, Numbers], tuple[tirx.PrimExpr, tirx.PrimExpr]]


def lowest(dtype: str) -> tirx.PrimExpr:
    """What no maximum is below: minus infinity, or the lowest number of a ``dtype`` that has no infinity."""
    return tirx.const(float("-inf"), dtype) if dtype in _INFINITE else tirx.min_value(dtype)


def highest(dtype: str) -> tirx.PrimExpr:
    """What no minimum is above: infinity, or the highest number of a ``dtype`` that has none."""
    return tirx.const(float("inf"), dtype) if dtype in _INFINITE else tirx.max_value(dtype)


NEUTRAL: dict[type, Callable[[str], tirx.PrimExpr]] = {
    tirx.Add: lambda dtype: tirx.const(0, dtype),
    tirx.Mul: lambda dtype: tirx.const(1, dtype),
    tirx.Max: lowest,
    tirx.Min: highest,
}
"""What, of a dtype, changes nothing that it is combined with, by the operation."""


def argmax_of(x: Numbers, y: Numbers) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    """Of two pairs of position and value the one with the larger value; NaN is larger than any. First of equal ones."""
    return _better(x, y, x[1] > y[1])


def argmin_of(x: Numbers, y: Numbers) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    """Likewise with the smaller value; NaN is smaller than any."""
    return _better(x, y, x[1] < y[1])


def argmax_identity(position: str, value: str) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    """The pair, of those dtypes, that loses against every other."""
    return tirx.max_value(position), lowest(value)


def argmin_identity(position: str, value: str) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    """Likewise for ``argmin``."""
    return tirx.max_value(position), highest(value)


POSITIONS = {"argmax": (argmax_of, argmax_identity), "argmin": (argmin_of, argmin_identity)}
"""The reductions of pairs of position and value, and their neutral pairs."""


def _better(x: Numbers, y: Numbers, beyond: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    ties = tirx.EQ(x[1], y[1])
    if "float" in x[1].dtype:
        x_nan, y_nan = (tirx.isnan(pair[1].astype(_tested_as(pair[1].dtype))) for pair in (x, y))
        beyond = tirx.Or(beyond, tirx.And(x_nan, tirx.Not(y_nan)))
        ties = tirx.Or(ties, tirx.And(x_nan, y_nan))
    chosen = tirx.Or(beyond, tirx.And(ties, tirx.LT(x[0], y[0])))
    return tirx.Select(chosen, x[0], y[0]), tirx.Select(chosen, x[1], y[1])


def _tested_as(dtype: str) -> str:
    """TVM tells NaN in float32 and float64 only."""
    return dtype if dtype == "float64" else "float32"


def register(
    name: str, values: int, combined: Callable[..., Sequence[tirx.PrimExpr]], identity: Callable[..., Numbers]
) -> None:
    """Register a reduction of tuples of so many ``values`` by ``combined``, whose neutral tuple is ``identity``.

    TVM's table of reducers ends with the process, after the interpreter, which must outlive functions of Python's.
    Global functions are never ended.
    """
    functions = (
        tvm.register_global_func(f"tkc.reducers.{name}", lambda x, y: list(combined(x, y))),
        tvm.register_global_func(
            f"tkc.reducers.{name}.identity", lambda like: list(identity(*(value.dtype for value in like)))
        ),
    )
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(values, *functions)


register("max", 1, lambda x, y: [tirx.max(x[0], y[0])], lambda dtype: [lowest(dtype)])
register("min", 1, lambda x, y: [tirx.min(x[0], y[0])], lambda dtype: [highest(dtype)])
for _name, (_combined, _identity) in POSITIONS.items():
    register(_name, 2, _combined, _identity)
