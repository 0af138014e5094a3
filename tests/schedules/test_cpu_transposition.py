"""Transpositions on the CPU in tiles, and conditions of concatenations that are asked once for a vector."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch.export import Dim
from tvm import relax, s_tir, tirx
from tvm.relax import op

import tkc
from tests.schedules.graphs import CPU, Applied, build, fused, graph, scheduled, size
from tkc.schedules.blocks import child_blocks
from tkc.schedules.rules.cpu_transposition import transposed_axis

N = size("n")
MODELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.mT.contiguous(),
    "with what follows": lambda x: (x.mT * 2).bfloat16(),
    "and read as it lies": lambda x: x.mT + x.mT.contiguous()[:1],
    "three axes": lambda x: x.permute(2, 1, 0).contiguous(),
    "broadcast": lambda x: x.mT + x[:, :1, :1],
    "summed": lambda x: x.mT.contiguous().sum(-1),
}
SHAPES = [(2, 300, 500), (1, 257, 263), (3, 1000, 17), (1, 5, 2000), (1, 1031, 7)]


@pytest.mark.daily(3)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("name", MODELS)
def test_transposed_elements(name: str, is_open: bool) -> None:
    """In several dtypes, at sizes that tiles divide and others."""
    function = MODELS[name]
    sizes = {"args": ({1: Dim("rows", max=9999), 2: Dim("columns", max=9999)},)}
    for shape in SHAPES[:1] if is_open else SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = (torch.rand(shape) * 50).to(dtype)
            dynamic = sizes if is_open else None
            executable = tkc.compile(Applied(function), (x,), database=False, dynamic_shapes=dynamic)
            for given in (x, x[:, :3], x[:, :, :5], x[:, :31]) if is_open else (x,):
                torch.testing.assert_close(executable(given), function(given), rtol=2e-2, atol=0)


@pytest.mark.parametrize(
    ("shape", "order", "axis"),
    [
        ((512, 1024), [1, 0], 0),
        ((N, 1024), [1, 0], 0),
        ((8, 56, 56, 64), [0, 3, 1, 2], 1),
        ((8, 64, 56, 56), [0, 2, 3, 1], None),  # 64 lines stay in the cache
        ((4, 8, 128, 64), [0, 2, 1, 3], None),
    ],
)
def test_tiles_are_for_lines_that_would_leave_the_cache(
    shape: tuple[int, ...], order: list[int], axis: int | None
) -> None:
    """What is read along the last axis, or of few lines, is read row by row."""
    module = fused(graph([(shape, "float32")], lambda b, x: op.permute_dims(x, order)), CPU)
    (func,) = (func for func in module.functions.values() if isinstance(func, tirx.PrimFunc))
    sch = s_tir.Schedule(func)
    assert transposed_axis(sch.get(child_blocks(sch)[0])) == axis


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


CONCATENATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rotated": _rotated,
    "three parts": lambda x: torch.cat((x, x * 2, x[..., :3]), -1),
    "parts of vectors and others": lambda x: torch.cat((x[..., :16], x[..., :5], x), -1),
    "rolled": lambda x: x.roll(16, -1),
    "padded": lambda x: torch.nn.functional.pad(x, (16, 16)),
    "padded unevenly": lambda x: torch.nn.functional.pad(x, (3, 17)),
    "interleaved": lambda x: torch.stack((x, x + 1), -1).flatten(-2),
    "chosen by position": lambda x: torch.where(torch.arange(x.shape[-1]) <= 16, x, -x),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", CONCATENATIONS)
@pytest.mark.parametrize("length", [8, 16, 32, 48, 64, 100, 130])
def test_concatenated_elements(name: str, length: int) -> None:
    """Of lengths that are whole vectors, and of others."""
    function, x = CONCATENATIONS[name], torch.rand(3, 5, length)
    assert torch.equal(tkc.compile(Applied(function), (x,), database=False)(x), function(x))


def test_a_rotation_of_halves_is_of_vectors() -> None:
    """Each asks once which half it is in."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first, second = (b.emit(op.strided_slice(x, [1], [begin], [begin + 64])) for begin in (0, 64))
        return op.concat([b.emit(op.negative(second)), first], 1)

    module, _ = scheduled(graph([((512, 128), "float32")], body), CPU)
    source = build(module, CPU).mod.imports[0].inspect_source("ll")
    assert re.search(r"load <\d+ x float>", source) and "load float" not in source
