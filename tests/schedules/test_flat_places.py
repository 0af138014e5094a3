"""Places that TVM gets wrong when memory becomes flat or loops are written out: remainders that do not divide."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import tvm
from torch import Tensor
from torch.nn import functional as F
from tvm import te, tirx
from tvm.script import tirx as T

import tkc
from tests.schedules.graphs import Model
from tkc.schedules.lowering.composed_places import hide_composed_divisions
from tkc.schedules.lowering.flat_places import same_places
from tkc.schedules.lowering.index_divisions import hide_failing_divisions
from tkc.schedules.lowering.simplified_places import simplifies_rightly

Position = Callable[[tirx.Var], tirx.PrimExpr]

PLACES: dict[str, tuple[Position, bool]] = {
    "the position itself": (lambda i: i, True),
    "rows and columns": (lambda i: i // 8 * 8 + i % 8, True),
    "halves of columns": (lambda i: i // 8 * 4 + i % 8 // 2, True),
    "halves of columns from the second": (lambda i: i // 8 * 4 + (i % 8 + 1) // 2, False),
    "thirds of columns": (lambda i: i // 8 * 3 + i % 8 // 3, True),
    "a remainder that does not divide": (lambda i: i % 64 % 7, False),
    "one after a sum": (lambda i: (i % 16 + 3) % 5, False),
    "of quotients": (lambda i: i // 4 % 8 % 3, False),
    "before the first": (lambda i: (i % 8 + 7) // 4, False),
}
"""Where an element is read for the position ``i`` of 128, and whether TVM 0.25 keeps it when memory becomes flat."""


def _copying(place: Position) -> tirx.PrimFunc:
    """A loop over 128 elements, each read at such a place."""
    source, target = (tirx.decl_buffer((128,), "float32", name) for name in ("source", "target"))
    i = tirx.Var("i", "int64")
    body = tirx.BufferStore(target, tirx.BufferLoad(source, [place(i)]), [i])
    loop = tirx.For(i, tirx.IntImm("int64", 0), tirx.IntImm("int64", 128), tirx.ForKind.SERIAL, body)
    given = [tirx.Var(name, "handle") for name in ("a", "b")]
    return tirx.PrimFunc(given, loop, buffer_map=dict(zip(given, (source, target), strict=True)))


def _flat(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return tirx.transform.FlattenBuffer()(tvm.IRModule({"main": func}))["main"]


@pytest.mark.parametrize("name", PLACES)
def test_other_places_are_found_and_mended(name: str) -> None:
    """What TVM rewrites wrongly is told from what it rewrites, and stays what it is once quotients are hidden."""
    place, kept = PLACES[name]
    func = _copying(place)
    assert same_places(func, _flat(func)) == kept
    mended = hide_failing_divisions(func)
    assert same_places(mended, _flat(mended))
    assert mended.same_as(func) == kept


LANES: dict[str, tuple[Callable[[tirx.Var, tirx.Var], tirx.PrimExpr], bool]] = {
    "third of six": (lambda t, lane: (t * 4 + lane) % 6 // 3, False),
    "two of a third": (lambda t, lane: (t * 4 + lane) // 3 % 2, False),
    "four of ten": (lambda t, lane: (t * 6 + lane) % 10 % 4, False),
    "one more": (lambda t, lane: ((t * 6 + lane) % 10 + 1) // 5, False),
    "third of twelve": (lambda t, lane: (t * 4 + lane) % 12 // 3, True),
    "half of six": (lambda t, lane: (t * 3 + lane) % 6 // 2, True),
    "without the lane": (lambda t, lane: t * 4 % 6 // 2 + lane, True),
    "halves by powers of two": (lambda t, lane: (t * 8 + lane) % 16 // 2, True),
}
"""Places of a thread's lane, and whether TVM 0.25 keeps them where lanes are written out."""


@pytest.mark.parametrize("name", LANES)
def test_lanes_whose_bounds_tvm_gets_wrong(name: str) -> None:
    """Quotients that are hidden it leaves."""
    place, right = LANES[name]
    func = _written_out(place)
    assert simplifies_rightly(func) == right
    assert simplifies_rightly(hide_failing_divisions(func))


SHORT: dict[str, tuple[Callable[[tirx.Var, tirx.Var], tirx.PrimExpr], int, bool]] = {
    "two rows of five taps": (lambda t, lane: (t * 16 + lane) // 5 % 2, 2, False),
    "two rows of three taps": (lambda t, lane: (t * 16 + lane) // 3 % 2, 3, False),
    "two rows of three taps, in two steps": (lambda t, lane: (t * 16 + lane) // 3 % 2, 2, True),
    "four rows of three taps": (lambda t, lane: (t * 16 + lane) // 3 % 4, 3, True),
    "channels of ten taps": (lambda t, lane: (t * 16 + lane) // 10, 2, True),
}
"""The same in a loop of a few steps, of which TVM may take one apart, or none."""


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL], ids=["serial", "parallel"])
@pytest.mark.parametrize("name", SHORT)
def test_lanes_of_short_loops(name: str, kind: int) -> None:
    """With the loop's position as a constant all are right, and nobody knows whether it will be one."""
    place, steps, right = SHORT[name]
    func = _written_out(place, lanes=16, steps=steps, kind=kind)
    assert simplifies_rightly(func) == right
    assert simplifies_rightly(hide_failing_divisions(func))


def _written_out(
    place: Callable[[tirx.Var, tirx.Var], tirx.PrimExpr],
    lanes: int = 4,
    steps: int = 32,
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.PrimFunc:
    """A function that reads at ``place`` of a loop of ``steps`` and of one of ``lanes`` in it that is unrolled."""
    source, target = (tirx.decl_buffer((256,), "float32", name) for name in ("source", "target"))
    t, lane = tirx.Var("t", "int64"), tirx.Var("lane", "int64")
    body: tirx.Stmt = tirx.BufferStore(target, tirx.BufferLoad(source, [place(t, lane)]), [t * lanes + lane])
    for variable, extent, how in ((lane, lanes, tirx.ForKind.UNROLLED), (t, steps, kind)):
        body = tirx.For(variable, tirx.IntImm("int64", 0), tirx.IntImm("int64", extent), how, body)
    given = [tirx.Var(name, "handle") for name in ("a", "b")]
    return tirx.PrimFunc(given, body, buffer_map=dict(zip(given, (source, target), strict=True)))


@pytest.mark.parametrize(("stride", "size"), [(4, 6), (4, 10), (4, 14), (6, 8), (6, 10), (8, 12)])
def test_positions_of_vectors_are_divided_by_their_lanes(stride: int, size: int) -> None:
    """TVM keeps ``(t * 4 + 2) % 6``, and takes half of it, the number of a pair, for 0."""
    source, target = (tirx.decl_buffer((512,), "float32", name) for name in ("source", "target"))
    t, pair, lane = (tirx.Var(name, "int64") for name in ("t", "pair", "lane"))
    place = t * 16 + tirx.floormod(t * stride + pair * 2 + lane, size)
    body: tirx.Stmt = tirx.BufferStore(target, tirx.BufferLoad(source, [t * stride + pair * 2 + lane]), [place])
    kinds = {lane: (2, "VECTORIZED"), pair: (stride // 2, "UNROLLED"), t: (32, "SERIAL")}
    for variable, (extent, kind) in kinds.items():
        ends = (tirx.IntImm("int64", 0), tirx.IntImm("int64", extent))
        body = tirx.For(variable, *ends, getattr(tirx.ForKind, kind), body)
    given = [tirx.Var(name, "handle") for name in ("a", "b")]
    func = tirx.PrimFunc(given, body, buffer_map=dict(zip(given, (source, target), strict=True)))
    assert not simplifies_rightly(func)
    assert simplifies_rightly(hide_failing_divisions(func))


@pytest.mark.parametrize(
    ("shape", "start", "step", "columns"),
    [((6, 5, 10), 6, 8, 5), ((6, 6, 5, 2), 2, 4, 5), ((9, 6), 4, 9, 3), ((5, 2, 3), 2, 4, 2), ((4, 10, 3), 1, 12, 5)],
)
def test_every_few_elements_of_a_tensor(shape: tuple[int, ...], start: int, step: int, columns: int) -> None:
    """TVM simplifies the places before it flattens memory: ``(i * 8 + 6) % 50 // 10`` it takes for 0."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        chosen = x.flatten()[start::step]
        return chosen[: len(chosen) // columns * columns].reshape(-1, columns) * 2 + 1

    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    compiled = tkc.compile(Model(rows), (x,), target="cpu")
    torch.testing.assert_close(compiled(x), rows(x), rtol=0, atol=0)
    both = Model(lambda x: (rows(x), rows(x) @ torch.ones(columns, 3)))
    torch.testing.assert_close(tkc.compile(both, (x,), target="cpu")(x), both(x))


def _windows(x: torch.Tensor) -> torch.Tensor:
    windows = torch.cat([x, x[..., :4] * 2], 3).unfold(3, 4, 1)
    return windows.reshape(9, 2112)[:, 5::6] * 1.0


COMPOSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "every sixth of windows of a concatenation": (_windows, (9, 4, 12, 10)),
    "every fourth of padded rows": (lambda x: F.pad(x, (1, 1)).flatten()[2::4].softmax(0), (5, 4)),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_places_that_inlining_composes(name: str) -> None:
    """A schedule simplifies them when it inlines one part into another: a condition was gone, and half the tensor."""
    function, shape = COMPOSED[name]
    x = torch.randn(shape)
    torch.testing.assert_close(tkc.compile(Model(function), (x,), target="cpu")(x), function(x))


@pytest.mark.parametrize(
    ("step", "first", "hides"), [(4, 2, True), (6, 5, True), (2, 1, False), (10, 3, False), (1, 0, False)]
)
def test_only_what_tvm_would_get_wrong_is_hidden(step: int, first: int, hides: bool) -> None:
    """Quotients that schedules know of stay."""
    flat = te.placeholder((60,), name="flat")
    rows = te.compute((6, 10), lambda i, j: flat[i * 10 + j], name="rows")
    chosen = te.compute((5,), lambda i: rows[(i * step + first) // 10, (i * step + first) % 10], name="chosen")
    func = te.create_prim_func([flat, chosen])
    assert hide_composed_divisions(func).same_as(func) != hides


def test_functions_that_differ_elsewhere() -> None:
    """In what they store, and in a condition."""

    @T.prim_func(private=True, s_tir=True)
    def one(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        for i in range(8):
            if i < 7:
                b[i] = a[i] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def other(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        for i in range(8):
            if i < 7:
                b[i] = a[i] * T.float32(3)

    @T.prim_func(private=True, s_tir=True)
    def third(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        for i in range(8):
            if i < 6:
                b[i] = a[i] * T.float32(2)

    assert same_places(one, one)
    assert not same_places(one, other) and not same_places(one, third)


MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed convolution": lambda x: F.conv_transpose1d(x[:, None], x.new_ones(1, 2, 3), None, 2, 1, 1),
    "the same, flat": lambda x: F.conv_transpose1d(x[:, None], x.new_ones(1, 2, 3), None, 2, 1, 1).reshape(-1) * 2,
    "in two dimensions": lambda x: (
        F.conv_transpose2d(x[None, None], x.new_ones(1, 2, 3, 3), None, 2, 1, 1).flatten() * 2
    ),
    "in three": lambda x: F.conv_transpose3d(
        x[: x.shape[0] // 2 * 2].reshape(1, 1, 2, -1, x.shape[1]), x.new_ones(1, 2, 3, 4, 5), None, 2, 1, 1
    ),
    "windows of two by three": lambda x: F.conv2d(x[None, None], x.new_ones(3, 1, 2, 3), None, 1, 1),
    "by thirds": lambda x: F.conv_transpose1d(x[:, None], x.new_ones(1, 2, 4), None, 3, 2, 2).reshape(-1) * 2,
    "enlarged without the first": lambda x: F.interpolate(x[None, None], scale_factor=3.0)[..., 1:].reshape(-1) * 2,
    "repeated without the first": lambda x: x.repeat_interleave(2, 1)[:, 1:].reshape(-1) + 1,
    "tiled and cut": lambda x: x.repeat(1, 3)[:, 2:].reshape(-1) * 2,
    "rolled": lambda x: x.roll(3, 1).repeat_interleave(3, 1).reshape(-1) * 2,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(6, 4), (4, 8)], ids=str)
@pytest.mark.daily(2)
def test_models_on_the_cpu(name: str, shape: tuple[int, int]) -> None:
    """Results are PyTorch's."""
    x = torch.rand(shape)
    torch.testing.assert_close(tkc.compile(Model(MODELS[name]), (x,))(x), MODELS[name](x))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(6, 4), (4, 8), (33, 7)], ids=str)
def test_models_on_a_gpu(name: str, shape: tuple[int, int]) -> None:
    """There loops are joined and divided anew, which gives more such places. PyTorch's own would round to TF32."""
    x = torch.rand(shape)
    found = tkc.compile(Model(MODELS[name]), (x.cuda(),), target="cuda")(x.cuda())
    torch.testing.assert_close(found.cpu(), MODELS[name](x))
