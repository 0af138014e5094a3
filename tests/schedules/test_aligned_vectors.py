"""Vectors at places that sizes of a call decide, in CUDA code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import tvm
from torch.export import Dim
from tvm import IRModule, tirx
from tvm.tirx.stmt_functor import substitute

import tkc
from tests.schedules.sources import generated_sources
from tkc.schedules.lowering.aligned_vectors import AlignVectors

Function = Callable[[torch.Tensor], torch.Tensor]

CASES: dict[str, Function] = {
    "flip": lambda x: torch.flip(x, (0,)),
    "flip of matrices": lambda x: torch.flip(x, (0, 1)),
    "a part along another axis": lambda x: torch.split(x, (1, 1), 0)[1],
    "an index along another axis": lambda x: x.select(0, 1),
    "a slice of the rows": lambda x: x[:, 1:],
    "roll": lambda x: torch.roll(x, 1, 1),
    "two parts": lambda x: torch.cat((x[1], x[0]), 0),
    "heads": lambda x: x.unflatten(2, (-1, x.shape[2] // 4)).transpose(1, 2).contiguous(),
    "heads side by side": lambda x: x.unflatten(2, (-1, x.shape[2] // 4)).transpose(0, 2).flatten(2),
}


class _Applied(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _compiled(name: str, dtype: torch.dtype, columns: int, target: str, device: str = "cpu") -> tkc.Executable:
    x = _input(dtype, 5, columns, device)
    rows = {1: Dim("rows", min=2, max=4096)}
    options = {"target": target, "kernels": "none", "database": False, "dynamic_shapes": (rows,)}
    return tkc.compile(_Applied(CASES[name]), (x,), **options)


def _input(dtype: torch.dtype, rows: int, columns: int, device: str = "cpu") -> torch.Tensor:
    return torch.randint(-99, 99, (2, rows, columns)).to(dtype).to(device)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_copied_by_whole_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight numbers at a time, wherever a size of the call puts the first of them."""
    sources = generated_sources(monkeypatch)
    _compiled(name, torch.float16, 128, "cuda:sm_90a")
    (source,) = sources
    assert "*(uint4*)" in source and "make_longlong" not in source


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 128), (torch.int8, 24), (torch.float32, 12)])
def test_copies_are_right_at_every_size(name: str, dtype: torch.dtype, columns: int) -> None:
    """On the GPU, for rows of whole vectors."""
    executable = _compiled(name, dtype, columns, "cuda", "cuda")
    for rows in (3, 5, 64, 129):  # of 2 one remains in the slice, which some versions of PyTorch export separately
        x = _input(dtype, rows, columns, "cuda")
        assert torch.equal(executable(x), CASES[name](x))


def _copying(place: Callable[[tirx.Var], tirx.PrimExpr], argument: Callable[[tirx.Var], tirx.PrimExpr]) -> IRModule:
    """Host code that launches a kernel, which copies eight numbers from ``place`` of what ``argument`` gives it."""
    given, held, size = tirx.Var("given", "int64"), tirx.Var("held", "int64"), tirx.Var("n", "int64")
    source, target = (tirx.decl_buffer((1 << 20,), "int8", name) for name in ("source", "target"))
    zero = tirx.const(0, "int64")
    load = tirx.BufferLoad(source, [tirx.Ramp(place(given), 1, 8)])
    kernel = tirx.PrimFunc([source.data, target.data, given], tirx.BufferStore(target, load, [tirx.Ramp(zero, 1, 8)]))
    on_gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    pointers = [tirx.Var(name, "handle") for name in ("a", "b")]
    launch = tirx.call_packed("kernel", *pointers, held)
    host = tirx.PrimFunc(
        [size, *pointers], tirx.SeqStmt([tirx.Bind(held, argument(size)), tirx.Evaluate(launch)]), ret_type=None
    )
    return IRModule({"host": host, "kernel": kernel.with_attr("target", on_gpu)})


@pytest.mark.parametrize(
    ("place", "argument", "shown"),
    [
        (lambda given: given, lambda n: n * 128, "// T.int64(16) * T.int64(16)"),
        (lambda given: given * 2 + 16, lambda n: n * 4 - 4, "// T.int64(4) * T.int64(4)"),
        (lambda given: tirx.const(7, "int64") % given * 8, lambda n: n * 2, None),  # is one, whatever is given
        (lambda given: given, lambda n: n * 4, ""),
        (lambda given: given + 1, lambda n: n * 8, ""),
    ],
)
def test_only_what_is_aligned_is_read_as_a_vector(
    place: Callable[[tirx.Var], tirx.PrimExpr], argument: Callable[[tirx.Var], tirx.PrimExpr], shown: str | None
) -> None:
    """What the host computes is looked up; what may lie within a vector is copied element by element. No place is
    another than it was."""
    before = _copying(place, argument)
    after = AlignVectors()(before)["kernel"]
    text = after.script(show_meta=False)
    if shown is not None:
        assert ("//" in text) == bool(shown) and shown in text
    assert text.count(" = source") == (8 if shown == "" else 1)
    for n in range(1, 40):
        given = int(_value(argument(tirx.const(n, "int64"))))
        assert _read(after, given) == _read(before["kernel"], given)


def _value(expr: tirx.PrimExpr) -> tirx.PrimExpr:
    return tvm.arith.Analyzer().simplify(expr)


def _read(kernel: tirx.PrimFunc, given: int) -> int:
    """The first element that ``kernel`` reads."""
    statement = kernel.body.seq[0] if isinstance(kernel.body, tirx.SeqStmt) else kernel.body
    (index,) = statement.value.indices
    first = index.base if isinstance(index, tirx.Ramp) else index
    return int(_value(substitute(first, {kernel.params[-1]: tirx.const(given, "int64")})))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 64, 129])
def test_rows_of_a_table_by_two_rows_of_indices(rows: int) -> None:
    """The host knows twice the number of rows, which is odd, and the vectors have four numbers."""
    model = torch.nn.Embedding.from_pretrained(torch.randn(7, 8, device="cuda"))
    example = torch.zeros(2, 9, dtype=torch.int64, device="cuda")
    shapes = ({1: Dim("rows", min=1, max=512)},)
    executable = tkc.compile(model, (example,), target="cuda", dynamic_shapes=shapes)
    indices = torch.randint(0, 7, (2, rows), device="cuda")
    assert torch.equal(executable(indices), model(indices))
