"""Launches that may be empty are guarded on the host; others are left alone."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.launch_guards import guard_empty_launches


@T.prim_func(private=True, s_tir=True)
def rows(x_handle: T.handle, out_handle: T.handle) -> None:
    """A copy of ``[n, 64]``, one block a row."""
    n = T.int64()
    x = T.match_buffer(x_handle, (n, T.int64(64)), "float32")
    out = T.match_buffer(out_handle, (n, T.int64(64)), "float32")
    for block in T.thread_binding(n, thread="blockIdx.x"):
        for thread in T.thread_binding(T.int64(64), thread="threadIdx.x"):
            with T.sblock("copy"):
                row = T.axis.spatial(n, block)
                column = T.axis.spatial(T.int64(64), thread)
                out[row, column] = x[row, column]


@T.prim_func(private=True, s_tir=True)
def known(out: T.Buffer((T.int64(8),), "float32"), nothing: T.Buffer((T.int64(0),), "float32")) -> None:
    """A launch of eight threads, and one of no blocks."""
    for thread in T.thread_binding(T.int64(8), thread="threadIdx.x"):
        with T.sblock("fill"):
            i = T.axis.spatial(T.int64(8), thread)
            out[i] = T.float32(0)
    for block in T.thread_binding(T.int64(0), thread="blockIdx.x"):
        for thread in T.thread_binding(T.int64(32), thread="threadIdx.x"):
            with T.sblock("nothing"):
                i = T.axis.spatial(T.int64(0), block * T.int64(32) + thread)
                nothing[i] = T.float32(0)


def _loops(func: tirx.PrimFunc) -> list[tirx.For]:
    return [node for node in nodes(func.body) if isinstance(node, tirx.For)]


def test_a_grid_that_may_be_empty_is_launched_under_a_condition() -> None:
    """The condition stands outside of the launch, where the host evaluates it."""
    *launch, guard = _loops(guard_empty_launches(rows))
    assert [loop.thread_binding is not None for loop in launch] == [True, True]
    assert guard.thread_binding is None and "n > T.int64(0)" in str(guard.extent)


def test_known_grids_are_launched_or_gone() -> None:
    """No condition is evaluated where the answer is known."""
    (launch,) = _loops(guard_empty_launches(known))
    assert launch.thread_binding is not None and int(launch.extent) == 8
