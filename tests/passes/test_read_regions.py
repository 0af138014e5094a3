"""What fused functions read and leave unread: one tensor as two operands, and parts of a split without a reader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from tvm import tirx
from tvm.ir import IRModule
from tvm.script import tirx as T

import tkc
from tests.schedules.graphs import Model
from tkc.passes.lowering.read_regions import ReadRegions
from tkc.passes.lowering.unread_blocks import RemoveUnreadBlocks
from tkc.schedules.blocks import nodes


def _blocks(func: tirx.PrimFunc) -> list[tirx.SBlock]:
    return [node for node in nodes(func.body) if isinstance(node, tirx.SBlock) and node.name_hint != "root"]


def test_a_tensor_that_is_read_twice_is_stated_whole() -> None:
    """As ``FuseTIR`` leaves ``cat((x, x))``; what is stated rightly stays as it is."""

    @T.prim_func(private=True, s_tir=True)
    def doubled(x: T.Buffer((2, 8), "float32"), y: T.Buffer((4, 8), "float32")) -> None:
        for i, j in T.grid(4, 8):
            with T.sblock("concat"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(x[v - 2, w])
                T.writes(y[v, w])
                y[v, w] = T.if_then_else(v >= 2, x[v - 2, w], x[v, w])

    (block,) = _blocks(ReadRegions()(IRModule({"main": doubled}))["main"])
    (read,) = block.reads
    assert [part.extent for part in read.region] == [3, 1]

    @T.prim_func(private=True, s_tir=True)
    def copied(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")) -> None:
        for i, j in T.grid(4, 8):
            with T.sblock("copy"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = x[v, w] + x[v, w]

    assert ReadRegions()(IRModule({"main": copied}))["main"].same_as(copied)


def test_what_nothing_reads_is_not_computed() -> None:
    """Nor what only that needs."""

    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        needed = T.sblock_alloc_buffer((8,), "float32")
        before = T.sblock_alloc_buffer((8,), "float32")
        unread = T.sblock_alloc_buffer((8,), "float32")
        for i in range(8):
            with T.sblock("needed"):
                v = T.axis.spatial(8, i)
                needed[v] = x[v] + T.float32(1)
        for i in range(8):
            with T.sblock("before"):
                v = T.axis.spatial(8, i)
                before[v] = x[v] + T.float32(2)
        for i in range(8):
            with T.sblock("unread"):
                v = T.axis.spatial(8, i)
                unread[v] = before[v] + needed[v]
        for i in range(8):
            with T.sblock("result"):
                v = T.axis.spatial(8, i)
                y[v] = needed[v] * T.float32(2)

    found = RemoveUnreadBlocks()(IRModule({"main": func}))["main"]
    assert [block.name_hint for block in _blocks(found)] == ["needed", "result"]
    assert len(found.body.block.alloc_buffers) == 1
    assert RemoveUnreadBlocks()(IRModule({"main": found}))["main"].same_as(found)


def test_what_a_call_may_read_by_its_address_is_computed() -> None:
    """No statement shows that it does."""

    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        own = T.sblock_alloc_buffer((8,), "float32")
        for i in range(8):
            with T.sblock("own"):
                v = T.axis.spatial(8, i)
                own[v] = x[v]
        T.evaluate(T.call_extern("int32", "copy", y.data, own.data))

    assert RemoveUnreadBlocks()(IRModule({"main": func}))["main"].same_as(func)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "joined to itself": lambda x: torch.cat((x, x)),
    "joined to itself and more": lambda x: torch.cat((x[:2], x, x[:2]), 0) * 2,
    "beside itself": lambda x: torch.cat((x, x), 1).relu(),
    "stacked": lambda x: torch.stack((x, x), 1) + 1,
    "chosen": lambda x: torch.where(x > 0, x, x.flip(0)),
    "times itself": lambda x: x @ x.t() + (x @ x.t()).t(),
    "a part of a split": lambda x: torch.split(F.pad(x, (2, 0, 2, 2)), (6, x.shape[1] - 4), 1)[1],
    "the other part": lambda x: (x * 2).chunk(2, 1)[0],
}


@pytest.mark.parametrize("name", ["joined to itself", "a part of a split"])
def test_they_compile_for_a_gpu(name: str) -> None:
    """With a size that is known when it is called."""
    program = torch.export.export(
        Model(CASES[name]), (torch.rand(6, 16),), dynamic_shapes=({0: torch.export.Dim("n", max=64)},)
    )
    tkc.compile(program, target="cuda:sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 16), (6, 32), (33, 8)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_on_a_gpu(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """They are PyTorch's."""
    x = torch.randn(shape, device="cuda").to(dtype)
    found = tkc.compile(Model(CASES[name]), (x,), target="cuda", kernels="none")(x)
    torch.testing.assert_close(found, CASES[name](x), rtol=2e-2, atol=2e-2)
