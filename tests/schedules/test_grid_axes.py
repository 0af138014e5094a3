"""Grids that may be higher than 65,535 blocks along their second or third axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import tvm
from torch.export import Dim
from tvm import IRModule, tirx
from tvm.tirx.stmt_functor import substitute
from tvm_ffi import structural_equal

import tkc
from tests.schedules.graphs import Applied
from tests.schedules.sources import generated_sources
from tkc.contracts import LAUNCH_PARAMETERS, THREAD_EXTENT
from tkc.schedules.blocks import nodes
from tkc.schedules.lowering.grid_axes import WidenGrids

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
HIGH = 70000
Lengths = dict[str, int | None]
"""How many blocks and threads there are along each axis, in the order of the launch; ``None``: a call knows."""

LAUNCHES: dict[str, Lengths] = {
    "along y": {"blockIdx.y": None, "threadIdx.x": 32},
    "along z": {"blockIdx.z": None, "threadIdx.x": 32},
    "along x and y": {"blockIdx.x": 3, "blockIdx.y": None, "threadIdx.x": 32},
    "along y and x": {"blockIdx.y": None, "blockIdx.x": None, "threadIdx.y": 4, "threadIdx.x": 8},
    "along one of x and z": {"blockIdx.x": 1, "blockIdx.z": None},
    "along all": {"blockIdx.z": None, "blockIdx.y": None, "blockIdx.x": None},
    "along a low y and z": {"blockIdx.x": None, "blockIdx.y": 5, "blockIdx.z": None},
    "along a high y": {"blockIdx.x": 2, "blockIdx.y": HIGH},
    "with shared memory": {"blockIdx.y": None, "threadIdx.x": 4, "tirx.use_dyn_shared_memory": 1024},
}


def _module(lengths: Lengths) -> IRModule:
    """Host code that launches a kernel, which stores at the place that each of its axes has, in the launch's order."""
    axes = [tag for tag in lengths if "Idx" in tag]
    host_sizes = {tag: tirx.Var(f"host_{tag[-1]}", "int64") for tag, length in lengths.items() if length is None}
    sizes = {tag: tirx.Var(f"n{tag[-1]}", "int64") for tag in host_sizes}
    places = {tag: tirx.Var(tag.replace(".", "_"), "int64") for tag in axes}
    out = tirx.decl_buffer([1 << 20] * len(axes), "float32", "out")
    body: tirx.Stmt = tirx.BufferStore(out, tirx.const(1.0, "float32"), [places[tag] for tag in axes])
    for tag in reversed(axes):
        axis = tirx.IterVar(None, places[tag], tirx.IterVar.ThreadIndex, tag)
        extent = sizes[tag] if tag in sizes else tirx.const(lengths[tag], "int64")
        body = tirx.AttrStmt(axis, THREAD_EXTENT, extent, body)
    kernel = tirx.PrimFunc([out.data, *sizes.values()], body).with_attrs(
        {"target": CUDA, LAUNCH_PARAMETERS: [*lengths]}
    )
    pointer = tirx.Var("p", "handle")
    launched = [host_sizes[tag] if tag in host_sizes else tirx.const(lengths[tag], "int64") for tag in lengths]
    launch = tirx.call_packed("kernel", pointer, *host_sizes.values(), *launched)
    host = tirx.PrimFunc([pointer, *host_sizes.values()], tirx.Evaluate(launch), ret_type=None)
    return IRModule({"host": host, "kernel": kernel})


def _stored(module: IRModule, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where all blocks of a launch, and the threads in each, store at ``sizes`` of the host."""
    host, kernel = module["host"], module["kernel"]
    given = dict(zip(host.params[1:], sizes, strict=True))
    arguments = [_value(argument, given) for argument in host.body.value.args[2:]]
    values = dict(zip(kernel.params[1:], arguments, strict=False))
    tags = list(map(str, kernel.attrs[LAUNCH_PARAMETERS]))
    lengths = dict(zip(tags, arguments[len(kernel.params) - 1 :], strict=True))
    assert all(lengths.get(tag, 0) <= 65535 for tag in ("blockIdx.y", "blockIdx.z"))
    launched = [node.node for node in nodes(kernel.body) if isinstance(node, tirx.AttrStmt)]
    axes = sorted(launched, key=lambda axis: str(axis.thread_tag))
    (store,) = (node for node in nodes(kernel.body) if isinstance(node, tirx.BufferStore))
    bound = [node for node in nodes(kernel.body) if isinstance(node, tirx.Bind)]
    found = []
    for place in itertools.product(*(range(lengths[axis.thread_tag]) for axis in axes)):
        known = values | {axis.var: number for axis, number in zip(axes, place, strict=True)}
        for each in bound:
            known[each.var] = _value(each.value, known)
        found.append(tuple(_value(index, known) for index in store.indices))
    return found


def _value(expr: tirx.PrimExpr | int, values: dict[tirx.Var, int]) -> int:
    if isinstance(expr, int):
        return expr
    constants = {variable: tirx.const(number, variable.dtype) for variable, number in values.items()}
    return int(tvm.arith.Analyzer().simplify(substitute(expr, constants)))


@pytest.mark.parametrize("name", [name for name in LAUNCHES if name != "along a high y"])
@pytest.mark.parametrize("open_size", [1, 2, 5])
def test_every_place_has_one_block(name: str, open_size: int) -> None:
    """Those of the first axis follow each other, as before."""
    lengths = LAUNCHES[name]
    module = WidenGrids()(_module(lengths))
    sizes = [open_size + number for number, length in enumerate(lengths.values()) if length is None]
    found = _stored(module, tuple(sizes))
    remaining = iter(sizes)
    all_places = [
        range(next(remaining) if length is None else length) for tag, length in lengths.items() if "Idx" in tag
    ]
    assert sorted(found) == sorted(itertools.product(*all_places))
    axes = [tag for tag in lengths if "Idx" in tag]
    slowest_first = sorted({tag for tag in axes if lengths[tag] in (None, 1, 3) and tag < "t"}, reverse=True)
    blocks = [tuple(place[axes.index(tag)] for tag in slowest_first) for place in found]
    assert blocks == sorted(blocks) or name == "along a low y and z"
    tags = list(map(str, module["kernel"].attrs[LAUNCH_PARAMETERS]))
    assert tags[0] == "blockIdx.x"
    assert not any(lengths.get(tag, 1) is None for tag in ("blockIdx.y", "blockIdx.z") if tag in tags)
    assert tags[1:] == [tag for tag in lengths if tag in tags and tag != "blockIdx.x"]


def test_what_is_known_to_be_high_is_moved() -> None:
    """More than a test counts one by one."""
    module = WidenGrids()(_module(LAUNCHES["along a high y"]))
    assert list(map(str, module["kernel"].attrs[LAUNCH_PARAMETERS])) == ["blockIdx.x"]
    assert int(module["host"].body.value.args[-1]) == 2 * HIGH


@pytest.mark.parametrize("rows", [HIGH, 2**31, 2**32 + 5])
def test_more_blocks_than_any_grid_has_are_not_wrapped(rows: int) -> None:
    """The launcher refuses them, and would launch what is left of a number in 32 bits."""
    module = WidenGrids()(_module(LAUNCHES["along x and y"]))
    host = module["host"]
    blocks = host.body.value.args[-2]
    assert _value(blocks, {host.params[1]: rows}) == 3 * rows


@pytest.mark.parametrize(
    "lengths",
    [{"blockIdx.y": 65535, "blockIdx.x": None}, {"blockIdx.x": None, "threadIdx.x": 32}, {"threadIdx.x": 32}],
)
def test_low_grids_stay_as_they_are(lengths: Lengths) -> None:
    """Division takes time."""
    module = _module(lengths)
    assert structural_equal(WidenGrids()(module), module)


ROWS = Dim("rows", min=2, max=1 << 20)
MODELS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "matrix products": (torch.bmm, [(HIGH, 3, 4), (HIGH, 4, 5)]),
    "sort": (lambda x: torch.sort(x, 1)[0], [(HIGH, 7)]),
    "sort of columns": (lambda x: torch.sort(x, dim=1, stable=True)[1], [(HIGH, 3, 2)]),
    "topk": (lambda x: torch.topk(x, 2, 1)[0], [(HIGH, 5)]),
    "scan": (lambda x: torch.cumsum(x, 1), [(HIGH, 600)]),
    "convolution": (lambda x, w: torch.conv2d(x, w, padding=1), [(HIGH, 3, 4, 4), (5, 3, 3, 3)]),
    "grouped convolution": (lambda x, w: torch.conv2d(x, w, groups=2), [(HIGH, 4, 4, 4), (6, 2, 3, 3)]),
    "layer norm of images": (lambda x: torch.layer_norm(x, (3, 4)), [(HIGH, 3, 4)]),
    "transposition": (lambda x: x.transpose(1, 2).contiguous(), [(HIGH, 3, 4)]),
    "softmax of columns": (lambda x: torch.softmax(x, 1), [(HIGH, 3, 4)]),
    "sums of columns": (lambda x: x.sum(1), [(HIGH, 9, 4)]),
}


def _compiled(name: str, open_rows: bool, target: str, device: str) -> tuple[tkc.Executable, tuple[torch.Tensor, ...]]:
    function, shapes = MODELS[name]
    args = tuple(torch.randint(-9, 9, shape, device=device).float() for shape in shapes)
    dynamic = None
    if open_rows:
        dynamic = {"args": tuple({0: ROWS} if shape[0] == HIGH else None for shape in shapes)}
    options = {"target": target, "kernels": "none", "database": False, "dynamic_shapes": dynamic}
    return tkc.compile(Applied(function), args, **options), args


@pytest.mark.parametrize("open_rows", [True, False])
@pytest.mark.parametrize("name", ["matrix products", "sort"])
def test_rows_are_along_the_first_axis(name: str, open_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched by a number of rows that a call knows, or that is too large, along another."""
    sources = generated_sources(monkeypatch)
    _compiled(name, open_rows, "cuda:sm_90a", "cpu")
    assert sources and not any("blockIdx.y" in source or "blockIdx.z" in source for source in sources)


@pytest.mark.gpu
@pytest.mark.parametrize("open_rows", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_more_rows_than_a_grid_is_high_on_a_gpu(name: str, open_rows: bool) -> None:
    """Each is computed."""
    executable, args = _compiled(name, open_rows, "cuda", "cuda")
    torch.testing.assert_close(executable(*args), MODELS[name][0](*args))
