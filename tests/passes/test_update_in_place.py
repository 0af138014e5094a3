"""Updates of state: what becomes a write of a few rows, what a copy, and what is computed where the state is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from tvm import relax, tirx
from tvm.ir import IRModule

from tkc.compilation import Compilation
from tkc.frontend.torch.importer import import_torch
from tkc.kernels import Target
from tkc.pipeline import fusion_stages, substitution_stages
from tkc.schedules.estimate import parameter_bytes
from tkc.schedules.schedule_module import schedule_by_rules
from tkc.schedules.target import tvm_target
from tkc.stages import StageRunner

CPU = Target.parse("cpu")
ROWS, PLACES = torch.randn(3, 2, 4), torch.tensor([1, 4])
CACHE_BYTES = 3 * 6 * 4 * 4


class Cached(nn.Module):
    """A model whose forward pass is ``step(cache, *inputs)`` with a buffer ``cache [3, 6, 4]``."""

    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("cache", torch.randn(3, 6, 4))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The step."""
        return self.step(self.cache, *inputs)


def fused(step: Callable[..., Any], *inputs: torch.Tensor) -> IRModule:
    """The model as it is before its functions get schedules."""
    with torch.no_grad():
        return lowered(import_torch(Cached(step), inputs).module)


def lowered(module: IRModule) -> IRModule:
    """``module`` after all stages before scheduling, without kernels."""
    stages = [*substitution_stages(CPU, "none"), *fusion_stages()]
    with tvm_target(CPU):
        module = StageRunner().run_stages(Compilation(module), stages).module
    relax.analysis.well_formed(module)
    return module


def calls(module: IRModule) -> list[tuple[str, bool, list[str]]]:
    """The calls of functions, in their order: the function, whether it works in place, and the parameters it takes."""
    main = module["main"]
    parameters = {param: param.name_hint for param in main.params}
    found = []
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and value.op.name in ("relax.call_tir", "relax.call_tir_inplace"):
                taken = [parameters[arg] for arg in value.args[1].fields if arg in parameters]
                found.append((value.args[0].name_hint, value.op.name.endswith("inplace"), taken))
    return found


def copies(module: IRModule) -> int:
    """How many calls of functions that do nothing but copy there are."""
    return Counter(name for name, _, _ in calls(module))["copy"]


def put(cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes two rows."""
    cache.index_copy_(1, places, x)
    return cache.sum(-1)


def assign(cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes two rows, by assignment."""
    cache[:, places] = x
    return cache.sum(-1)


def put_transposed(cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes two rows into a view."""
    cache.transpose(0, 1).index_copy_(0, places, x.transpose(0, 1))
    return cache.sum(-1)


def put_slice(cache: torch.Tensor, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Writes two rows that are known when compiling."""
    cache[:, 3:5] = x
    return cache.sum(-1)


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", [put, assign, put_transposed, put_slice], ids=lambda step: step.__name__)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_only_the_new_rows_are_moved(step: Callable[..., Any], target: str) -> None:
    """By one function in place, which a rule schedules; nothing copies the cache."""
    module = fused(step, ROWS, PLACES)
    (write,) = (call for call in calls(module) if call[1])
    assert write[2][0] == "cache" and copies(module) == 0
    function = module[write[0]]
    assert parameter_bytes(function) <= 2 * ROWS.nbytes + PLACES.nbytes < CACHE_BYTES
    chosen = Target.parse(target)
    with tvm_target(chosen):
        default = schedule_by_rules(function, chosen, tvm_target(chosen))
    assert default.rule == ("gpu-elementwise" if chosen.is_cuda else "cpu-default")


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_every_dtype_is_written_in_place(dtype: torch.dtype, index: torch.dtype) -> None:
    """Of the rows and of their positions; the cache is an input with a symbolic batch."""

    class Put(nn.Module):
        def forward(self, cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            cache[:, places] = x
            return cache[:, 0]

    batch = Dim("batch", max=8)
    examples = (torch.zeros(3, 6, 4).to(dtype), ROWS.to(dtype), PLACES.to(index))
    module = lowered(import_torch(Put(), examples, dynamic_shapes=({0: batch}, {0: batch}, None)).module)
    (write,) = (call for call in calls(module) if call[1])
    assert write[2] == ["cache", "x"] and copies(module) == 0
    shape = next(iter(module[write[0]].buffer_map.values())).shape
    assert isinstance(shape[0], tirx.Var) and [int(size) for size in shape[1:]] == [6, 4]


def test_what_is_read_before_the_write_costs_no_copy() -> None:
    """The read stands before the write, and stays there."""

    def step(cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        total = cache.sum()
        cache.index_copy_(1, places, x + total)
        return total

    module = fused(step, ROWS, PLACES)
    readers = [place for place, call in enumerate(calls(module)) if "cache" in call[2]]
    (write,) = (place for place, call in enumerate(calls(module)) if call[1])
    assert len(readers) == 2 and readers[-1] == write and copies(module) == 0


def test_what_is_read_after_the_write_is_written_elsewhere() -> None:
    """Into a copy, which replaces the cache at the end."""

    def step(cache: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        before = cache.clone()
        cache.index_copy_(1, places, x)
        return (before * cache).sum()

    module = fused(step, ROWS, PLACES)
    found = calls(module)
    (write,) = (call for call in found if call[0].startswith("write_rows"))
    assert "cache" not in write[2] and copies(module) == 2
    assert found[-1] == ("copy", True, ["cache"])


def test_a_new_value_is_computed_where_the_old_one_is_not_needed() -> None:
    """A function puts its result into the state; where it reads the old value, the result is copied."""
    module = fused(lambda cache, x: cache.copy_(x * 2).sum(), torch.randn(3, 6, 4))
    assert [call[2] for call in calls(module) if call[1]] == [["x", "cache"]] or copies(module) == 0
    module = fused(lambda cache, x: cache.copy_(cache.flip(1) * x).sum(), torch.randn(3, 6, 4))
    assert calls(module)[-1] == ("copy", True, ["cache"])
