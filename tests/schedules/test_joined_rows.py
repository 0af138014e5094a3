"""Rows that are concatenated of parts, on GPUs: each part by whole vectors where it begins at one, and right always."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import tvm
from tvm import relax, tirx
from tvm.relax import op

import tkc
from tests.schedules.gpu_cases import HOPPER, LENGTH
from tests.schedules.graphs import Input, fused, graph, random
from tests.schedules.interpreted import run
from tests.schedules.sources import generated_sources
from tkc.schedules.blocks import nodes
from tkc.schedules.rules.gpu_elementwise import schedule_gpu_elementwise
from tkc.schedules.target import tvm_target

Body = Callable[..., relax.Expr]
_ROWS = 5


def _every_other(b: relax.BlockBuilder, x: relax.Var, first: int) -> relax.Expr:
    return b.emit(op.strided_slice(x, [x.struct_info.ndim - 1], [first], [x.struct_info.shape[-1]], [2]))


def _interleaved(b: relax.BlockBuilder, x: relax.Var, cos: relax.Var, sin: relax.Var) -> relax.Expr:
    """The rotary embedding of DeepSeek-V3: the last half of a row, of pairs; the first half is as it was."""
    half = int(x.struct_info.shape[-1]) // 2
    kept, turned = (b.emit(op.strided_slice(x, [1], [first], [first + half])) for first in (0, half))
    even, odd = (_every_other(b, turned, first) for first in (0, 1))
    real = b.emit(op.subtract(b.emit(op.multiply(even, cos)), b.emit(op.multiply(odd, sin))))
    other = b.emit(op.add(b.emit(op.multiply(odd, cos)), b.emit(op.multiply(even, sin))))
    return op.concat([kept, b.emit(op.concat([real, other], -1))], -1)


def _interleaved_in_pytorch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    kept, turned = x.chunk(2, -1)
    even, odd = turned[..., ::2], turned[..., 1::2]
    return torch.cat([kept, even * cos - odd * sin, odd * cos + even * sin], -1)


def _halves_turned(b: relax.BlockBuilder, x: relax.Var, cos: relax.Var, sin: relax.Var) -> relax.Expr:
    """The rotary embedding of Llama: a row that is concatenated is multiplied and added to."""
    width = int(x.struct_info.shape[-1])
    first, second = (b.emit(op.strided_slice(x, [1], [begin], [begin + width // 2])) for begin in (0, width // 2))
    turned = b.emit(op.concat([b.emit(op.negative(second)), first], -1))
    return op.add(b.emit(op.multiply(x, cos)), b.emit(op.multiply(turned, sin)))


def _halves_turned_in_pytorch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _joined(b: relax.BlockBuilder, *parts: relax.Var) -> relax.Expr:
    return op.concat([*parts], -1)


def _shifted(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
    """Three of a row, then five: a vector of eight has both."""
    return op.concat([b.emit(op.strided_slice(x, [1], [0], [3])), b.emit(op.strided_slice(y, [1], [3], [8]))], -1)


_CASES: dict[str, tuple[Sequence[tuple[int, ...]], Body, Callable[..., torch.Tensor], bool]] = {
    "interleaved": ([(32,), (8,), (8,)], _interleaved, _interleaved_in_pytorch, True),
    "halves": ([(32,), (32,), (32,)], _halves_turned, _halves_turned_in_pytorch, True),
    "two parts": ([(16,), (24,)], _joined, lambda *parts: torch.cat(parts, -1), True),
    "parts of a vector and of less": ([(8,), (4,), (8,)], _joined, lambda *parts: torch.cat(parts, -1), True),
    "ten parts": ([(8,)] * 10, _joined, lambda *parts: torch.cat(parts, -1), True),
    "twenty parts": ([(8,)] * 20, _joined, lambda *parts: torch.cat(parts, -1), False),
    "odd parts": ([(5,), (11,)], _joined, lambda *parts: torch.cat(parts, -1), False),
    "a boundary in a vector": ([(8,), (8,)], _shifted, lambda x, y: torch.cat([x[:, :3], y[:, 3:]], -1), False),
}


@pytest.mark.parametrize("rows", ["any number of rows", "a known number"])
@pytest.mark.parametrize("name", [name for name, (*_, by_vectors) in _CASES.items() if by_vectors])
def test_each_part_is_right(name: str, rows: str) -> None:
    """Run in Python: a vector that is not within its row, or a register that nothing was written to, is an error."""
    widths, body, reference, _ = _CASES[name]
    number = LENGTH if rows == "any number of rows" else _ROWS
    inputs: list[Input] = [((number, *width), "float32") for width in widths]
    tensors = [random((_ROWS, *width), seed=seed) for seed, width in enumerate(widths)]
    with tvm_target(HOPPER):
        scheduled = fused(graph(inputs, body), HOPPER)
        assert run(scheduled, tensors, reference(*tensors), "gpu-elementwise") == 0


def test_a_row_alone() -> None:
    """Of tensors of one axis, which have no rows: the same."""
    parts = [random((16,)), random((8,), seed=1)]
    with tvm_target(HOPPER):
        scheduled = fused(graph([((16,), "float32"), ((8,), "float32")], _joined), HOPPER)
        assert run(scheduled, parts, torch.cat(parts), "gpu-elementwise") == 0


@pytest.mark.parametrize("rows", ["any number of rows", "a known number"])
@pytest.mark.parametrize("name", _CASES)
def test_parts_that_begin_at_vectors_are_vectors(name: str, rows: str) -> None:
    """All that is read and written of rows is, then; else a known number of rows is computed as before."""
    widths, body, _, by_vectors = _CASES[name]
    inputs: list[Input] = [((LENGTH if "any" in rows else _ROWS, *width), "float32") for width in widths]
    (function,) = (each for each in fused(graph(inputs, body), HOPPER).functions.values() if _is_tir(each))
    with tvm_target(HOPPER):
        scheduled = schedule_gpu_elementwise(function, tvm.target.Target.current())
    assert scheduled is not None
    assert (_alone(scheduled.mod["main"]) == 0) == by_vectors


def _is_tir(function: object) -> bool:
    return isinstance(function, tirx.PrimFunc)


def _alone(function: tirx.PrimFunc) -> int:
    """How many accesses to memory are of one element."""
    vectors = [n for n in nodes(function.body) if isinstance(n, tirx.For) and n.kind == tirx.ForKind.VECTORIZED]
    return _accesses(function.body) - sum(_accesses(loop.body) for loop in vectors)


def _accesses(statement: tirx.Stmt) -> int:
    found = (node for node in nodes(statement) if isinstance(node, tirx.BufferLoad | tirx.BufferStore))
    return sum(access.buffer.scope() == "global" for access in found)


class _Rotary(torch.nn.Module):
    """Heads of 24 numbers, of which the last 16 are turned in pairs, and stand before the rows."""

    def forward(self, q: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        kept, turned = q.transpose(1, 2).split([8, 16], -1)
        even, odd, cos, sin = turned[..., ::2], turned[..., 1::2], angles.cos(), angles.sin()
        return torch.cat([kept, even * cos - odd * sin, odd * cos + even * sin], -1)


def _compiled(dtype: torch.dtype, symbolic: bool, target: str, device: str = "cpu") -> tkc.Executable:
    example = torch.randn(1, 6, 4, 24, dtype=dtype, device=device), torch.randn(6, 8, dtype=dtype, device=device)
    rows = torch.export.Dim("rows", max=512)
    shapes = {"q": {1: rows}, "angles": {0: rows}} if symbolic else None
    return tkc.compile(_Rotary(), example, target=target, dynamic_shapes=shapes, kernels="none", database=False)


@pytest.mark.parametrize("symbolic", [False, True])
def test_pairs_are_loaded_as_vectors(symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen bytes of them at a time, in the CUDA code, too."""
    sources = generated_sources(monkeypatch)
    _compiled(torch.bfloat16, symbolic, "cuda:sm_90a")
    assert any(source.count("*(uint4*)") >= 5 for source in sources)


@pytest.mark.gpu
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_rotary_embedding_of_pairs(dtype: torch.dtype, symbolic: bool) -> None:
    """On the GPU, at several numbers of rows."""
    executable = _compiled(dtype, symbolic, "cuda", "cuda")
    for rows in (1, 2, 6, 129) if symbolic else (6,):
        q = torch.randn(1, rows, 4, 24, dtype=dtype, device="cuda")
        angles = torch.randn(rows, 8, dtype=dtype, device="cuda")
        expected = _Rotary()(q.double(), angles.double())
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(executable(q, angles).double(), expected, rtol=tolerance, atol=tolerance)
