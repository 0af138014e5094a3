"""Reductions among the threads of a block: lowered, and written where there is a place.

TVM's own lowering wrote places outside of the result where threads have more rows than there are, and left what it
could not read to threads that added to one place at once.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import tvm
from torch import nn
from tvm import arith, relax, s_tir, tirx
from tvm.relax import op

import tkc
from tests.conformance.results import ROOT
from tests.schedules.gpu_cases import HOPPER
from tests.schedules.graphs import fused, graph, size
from tests.schedules.random_schedules import the_function
from tests.schedules.sources import generated_sources
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.thread_reductions import UnreducedError, reduce_among_threads
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target


def _product(b: relax.BlockBuilder, x: relax.Var, weight: relax.Var) -> relax.Expr:
    return op.matmul(x, b.emit(op.permute_dims(weight)))


def _windows(b: relax.BlockBuilder, x: relax.Var, weight: relax.Var) -> relax.Expr:
    return op.nn.conv1d(x, weight)


def _scheduled(body: Callable[..., relax.Expr], x: tuple[int, ...], weight: tuple[int, ...]) -> tirx.PrimFunc:
    _, func = the_function(fused(graph([(x, "float32"), (weight, "float32")], body), HOPPER))
    found = schedule_by_rules(func, HOPPER, tvm_target(HOPPER))
    assert found.rule == "dlight-gemv"
    return found.scheduled


def _written(func: tirx.PrimFunc) -> list[int]:
    """The places that the threads write into the last parameter of ``func``, a block at a time."""
    output = func.buffer_map[func.params[-1]]
    loops = {node.loop_var: int(node.extent) for node in nodes(func.body) if isinstance(node, tirx.For)}
    analyzer = arith.Analyzer()
    written = []
    for realize in (node for node in nodes(func.body) if isinstance(node, tirx.SBlockRealize)):
        store = realize.block.body
        if not isinstance(store, tirx.BufferStore) or store.buffer != output:
            continue
        bound = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        place = tirx.stmt_functor.substitute(store.indices[-1], bound)
        used = [
            loop for loop in loops if loop in tirx.analysis.undefined_vars(place + tirx.Select(realize.predicate, 1, 0))
        ]
        for values in itertools.product(*(range(loops[loop]) for loop in used)):
            at = {loop: tirx.IntImm(loop.dtype, value) for loop, value in zip(used, values, strict=True)}
            if analyzer.simplify(tirx.stmt_functor.substitute(realize.predicate, at)):
                written.append(int(analyzer.simplify(tirx.stmt_functor.substitute(place, at))))
    return written


@pytest.mark.parametrize(
    ("body", "x", "weight", "places"),
    [
        (_product, (1, 64), (7, 64), 7),
        (_product, (1, 32), (33, 32), 33),
        (_windows, (1, 1, 9), (1, 1, 3), 7),
    ],
)
def test_each_place_is_written_once(
    body: Callable[..., relax.Expr], x: tuple[int, ...], weight: tuple[int, ...], places: int
) -> None:
    """Threads take sixteen rows at a time, and write those that there are."""
    assert sorted(_written(reduce_among_threads(_scheduled(body, x, weight)))) == list(range(places))


def test_a_size_that_only_a_call_knows_is_a_bound_of_steps() -> None:
    """It is no loop, so that a condition about it and about steps says nothing of the place."""
    module = graph([((size("rows"), size("length"), 24), "float32")], lambda b, x: op.sum(x, [0, 1]))
    _, func = the_function(fused(module, HOPPER))
    found = schedule_by_rules(func, HOPPER, tvm_target(HOPPER))
    assert (found.rule, found.reason) == ("gpu-split-reduction", None)


def _with_realize(func: tirx.PrimFunc, changed: Callable[[tirx.SBlockRealize], tirx.SBlockRealize]) -> tirx.PrimFunc:
    """``func`` with its blocks that reduce ``changed``."""

    def replaced(realize: tirx.SBlockRealize) -> tirx.SBlockRealize | None:
        reduces = any(axis.iter_type == tirx.IterVar.CommReduce for axis in realize.block.iter_vars)
        return changed(realize) if reduces else None

    return func.with_body(tirx.stmt_functor.ir_transform(func.body, None, replaced, ["tirx.SBlockRealize"]))


def test_a_bound_of_places_and_steps_together_is_refused() -> None:
    """It cannot be put back where the steps are over; the error is of its own type, for the next schedule's sake."""

    def triangular(realize: tirx.SBlockRealize) -> tirx.SBlockRealize:
        together = tirx.LT(realize.iter_values[0] + realize.iter_values[-1], tirx.IntImm("int64", 20))
        return tirx.SBlockRealize(realize.iter_values, tirx.all(realize.predicate, together), realize.block)

    with pytest.raises(UnreducedError, match="what is written and what is reduced"):
        reduce_among_threads(_with_realize(_scheduled(_product, (1, 64), (7, 64)), triangular))


def test_what_tvm_does_not_reduce_is_refused() -> None:
    """A quotient that is hidden from TVM in a bound made it leave the reduction as it was."""

    def hidden(realize: tirx.SBlockRealize) -> tirx.SBlockRealize:
        value = tirx.call_intrin("int64", "tirx.likely", realize.iter_values[-1])
        return tirx.SBlockRealize([*realize.iter_values[:-1], value], realize.predicate, realize.block)

    with pytest.raises(UnreducedError):
        reduce_among_threads(_with_realize(_scheduled(_product, (1, 64), (7, 64)), hidden))


def test_a_reduction_that_begins_elsewhere_is_refused() -> None:
    """Without a first value of its own TVM does not take it for a reduction."""
    sch = s_tir.Schedule(_scheduled(_product, (1, 64), (7, 64)))
    block = sch.get_sblock("NT_matmul")
    sch.decompose_reduction(block, sch.get_loops(block)[-1])
    with pytest.raises(UnreducedError, match="begins elsewhere"):
        reduce_among_threads(sch.mod["main"])


class _Applied(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.function(x, weight)


MODELS = {
    "a row by 1003 of 4096": (F.linear, (1, 4096), (1003, 4096)),
    "a row by 1000 of 512": (F.linear, (1, 512), (1000, 512)),
    "a row by 7 of 64": (F.linear, (1, 64), (7, 64)),
    "a channel of 2": (lambda x, weight: F.conv1d(x, weight, stride=2), (4, 5), (1, 4, 3)),
    "a channel of 36": (F.conv1d, (3, 40), (1, 3, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_threads_exchange_what_they_reduce(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever form a function comes to code generation, also where its quotients are hidden."""
    function, x, weight = MODELS[name]
    sources = generated_sources(monkeypatch)
    tkc.compile(_Applied(function), (torch.ones(x), torch.ones(weight)), target="cuda:sm_90a", kernels="none")
    (source,) = sources
    assert "__shfl_down_sync" in source


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu(name: str) -> None:
    """The same numbers as PyTorch, many times."""
    function, *shapes = MODELS[name]
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, device="cuda") for shape in shapes)
    executable = tkc.compile(_Applied(function), (x, weight), target="cuda", kernels="none")
    expected = function(x.double(), weight.double())
    for _ in range(20):
        torch.testing.assert_close(executable(x, weight).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_positions_are_reduced_by_the_first_model_of_a_process(dtype: str) -> None:
    """TVM has to be told of such reductions, once; it was by what only code generation imported."""
    text = f"""
import torch, tkc
class Model(torch.nn.Module):
    def forward(self, x):
        return x.argmax(-1), x.min(-1)
tkc.explain(Model(), (torch.ones(6, 500, dtype=torch.{dtype}),), target="cuda:sm_90a")
"""
    subprocess.run([sys.executable, "-c", text], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_nothing_is_reduced() -> None:
    """A function without such a reduction stays as it is."""
    func = tvm.te.create_prim_func([tvm.te.placeholder((4,), name="x")] * 1)
    assert reduce_among_threads(func).same_as(func)
