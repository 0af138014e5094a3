"""What is read across its rows on a GPU goes through shared memory, tile by tile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from tvm import relax, tirx
from tvm.relax import op

import tkc
from tests.schedules.gpu_cases import HOPPER, cuda_source
from tests.schedules.graphs import Applied, Dimension, Input, build, fused, graph, scheduled, size
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target

RULE = "gpu-transposition"
BATCH, ROWS, COLUMNS = size("b"), size("rows"), size("columns")


def _gathered(b: relax.BlockBuilder, x: relax.Var, index: relax.Var, y: relax.Var) -> relax.Expr:
    """What ``index [1, columns, rows]`` chooses of each row of ``x [batch, columns, any]``, transposed, plus ``y``."""
    batch = next(iter(x.struct_info.shape))
    columns, rows = list(index.struct_info.shape)[1:]
    chosen = b.emit(op.gather_elements(x, b.emit(op.broadcast_to(index, (batch, columns, rows))), axis=2))
    return op.add(b.emit(op.permute_dims(chosen, [0, 2, 1])), y)


def _squared(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
    """The squares of ``x [columns, batch, rows]``, as ``[rows, batch, columns]``, plus ``y``."""
    return op.add(b.emit(op.permute_dims(b.emit(op.multiply(x, x)), [2, 1, 0])), y)


def _plain(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Nothing that is read across."""
    return op.add(op.multiply(x, x), op.permute_dims(y, [2, 1, 0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 64, 70), (BATCH, ROWS, COLUMNS), (BATCH, 512, 512)], ids=str)
def test_becomes_cuda_code(shape: tuple[Dimension, ...], dtype: str) -> None:
    """Whose shared memory is one tile, with a bank between its rows."""
    batch, rows, columns = shape
    index: Input = ((1, columns, rows), "int64")
    inputs: list[Input] = [((batch, columns, 8), dtype), index, ((batch, rows, columns), dtype)]
    module, report = scheduled(graph(inputs, _gathered), HOPPER)
    assert [entry.scheduled_by for entry in report] == [RULE]
    source = cuda_source(build(module, HOPPER).mod)
    pitch = {"float32": 33, "bfloat16": 34}[dtype]
    assert f"[{31 * pitch + 32}]" in source or f"[{32 * pitch}]" in source
    assert "__syncthreads" in source


@pytest.mark.parametrize(
    ("rows", "columns", "rule"),
    [
        (32, 64, RULE),
        (48, 64, RULE),
        (30, 64, "gpu-elementwise"),
        (36, 64, "gpu-elementwise"),
        (64, 8, "gpu-elementwise"),
    ],
)
def test_tiles_are_filled(rows: int, columns: int, rule: str) -> None:
    """Axes shorter than a tile, or a little longer than some, are left to other rules."""
    assert _rule([((columns, 3, rows), "float32"), ((rows, 3, columns), "float32")], _squared) == rule


def test_what_is_read_as_it_lies_is_not_staged() -> None:
    """A transposition of what memory holds is, where it is alone, a rule of DLight's."""
    assert _rule([((64, 3, 64), "float32"), ((64, 3, 64), "float32")], _plain) != RULE


def _rule(inputs: list[Input], body: Callable[..., relax.Expr]) -> str:
    module = fused(graph(inputs, body), HOPPER)
    (function,) = (function for _, function in module.functions_items() if isinstance(function, tirx.PrimFunc))
    return schedule_by_rules(function, HOPPER, tvm_target(HOPPER)).rule


def _relative(content: Tensor, position: Tensor, places: Tensor, scores: Tensor) -> Tensor:
    """Scores with those of relative positions, of keys to queries, as DeBERTa adds them."""
    found = torch.gather(position, -1, places.expand(position.shape[0], -1, -1))
    return (scores + found.transpose(-1, -2) / 8).float() + content


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_on_a_gpu(dtype: torch.dtype, symbolic: bool) -> None:
    """At sizes below and above tiles, none among them; NaN and infinities stay where they are."""
    batch, tokens = Dim("batch", min=0, max=64), Dim("tokens", min=2, max=4096)
    generator = torch.Generator().manual_seed(0)

    def tensors(count: int, length: int) -> tuple[Tensor, ...]:
        content = torch.randn(count, length, length, generator=generator)
        position = torch.randn(count, length, 64, generator=generator)
        position.flatten()[::97] = torch.nan
        position.flatten()[5::97] = torch.inf
        places = torch.randint(0, 64, (1, length, length), generator=generator)
        scores = torch.randn(count, length, length, generator=generator)
        return content.cuda(), position.to(dtype).cuda(), places.cuda(), scores.to(dtype).cuda()

    square = {0: batch, 1: tokens, 2: tokens}
    shapes = ((square, {0: batch, 1: tokens}, {1: tokens, 2: tokens}, square),) if symbolic else None
    executable = tkc.compile(
        Applied(_relative), tensors(3, 70), target="cuda", database=False, dynamic_shapes=shapes, kernels="none"
    )
    assert RULE in {entry.scheduled_by for entry in executable.report.scheduled}
    for count, length in ((3, 70), (1, 2), (2, 33), (0, 40), (5, 64), (1, 129)) if symbolic else ((3, 70),):
        given = tensors(count, length)
        torch.testing.assert_close(executable(*given), _relative(*given), rtol=2**-7, atol=2**-7, equal_nan=True)
