"""Functions on CUDA targets: every one runs in threads, and becomes code the CUDA compiler takes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import Input, build, error, fused, graph, random, scheduled, size
from tkc.builder import toolchain
from tkc.builder.runtime_objects import runtime_objects
from tkc.kernels.target import CUDA_ARCHITECTURES, Target
from tkc.passes.canonical.windows import Windows
from tkc.runtime.local_gpu import local_gpu
from tkc.schedules import schedule_module
from tkc.schedules.blocks import launches_threads, top_level_statements
from tkc.schedules.schedule_module import ScheduledFunction, ScheduleModule
from tkc.schedules.target import tvm_target

HOPPER = Target("cuda", "sm_90a")
BATCH, LENGTH = size("b"), size("s")


@dataclass(frozen=True)
class Case:
    """A graph of one dtype, the same in PyTorch, and the rule expected to schedule it, if it needs one."""

    name: str
    inputs: Callable[[str], Sequence[Input]]
    body: Callable[..., relax.Expr]
    reference: Callable[..., torch.Tensor]
    rule: str | None = None


def swiglu(b: relax.BlockBuilder, gate: relax.Var, up: relax.Var) -> relax.Expr:
    """``silu(gate) * up``."""
    return op.multiply(b.emit(op.nn.silu(gate)), up)


def running_sums(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Running sums, whose memory something else would have in the meantime if it were free."""
    dtype, other = x.struct_info.dtype, x
    sums = b.emit(op.astype(b.emit(op.cumsum(b.emit(op.astype(x, "float32")), -1)), dtype))
    for _ in range(3):
        other = b.emit(op.nn.softmax(other, -1))
    return op.add(sums, other)


def normalized_pixels(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Each channel of ``x``, which stands last, normalized over the pixels of an image."""
    wide = b.emit(op.astype(x, "float32"))
    centered = b.emit(op.subtract(wide, b.emit(op.mean(wide, [1], keepdims=True))))
    square = b.emit(op.mean(b.emit(op.multiply(centered, centered)), [1], keepdims=True))
    scale = b.emit(op.rsqrt(b.emit(op.add(square, relax.const(1e-5, "float32")))))
    return op.astype(b.emit(op.nn.relu(b.emit(op.multiply(centered, scale)))), x.struct_info.dtype)


def scaled_rows(b: relax.BlockBuilder, x: relax.Var, scale: relax.Var, bias: relax.Var) -> relax.Expr:
    """``relu(x * scale + bias)`` in float32, as batch normalization ends."""
    scaled = b.emit(op.multiply(b.emit(op.astype(x, "float32")), scale))
    shifted = b.emit(op.add(scaled, b.emit(op.astype(bias, "float32"))))
    return op.astype(b.emit(op.nn.relu(shifted)), x.struct_info.dtype)


def reversed_rows(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """``x``, each row's last number first, gathered by what is broadcast to all rows; and ``x`` added."""
    places = b.emit(op.broadcast_to(relax.const(np.arange(95, -1, -1)[None, None], "int64"), x.struct_info.shape))
    inside = b.emit(op.minimum(b.emit(op.maximum(places, relax.const(0, "int64"))), relax.const(95, "int64")))
    return op.add(b.emit(op.gather_elements(x, inside, axis=2)), x)


def summed_in_float32(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
    """A product as the pipeline has it, which widens it before."""
    return op.astype(b.emit(op.matmul(x, w, out_dtype="float32")), x.struct_info.dtype)


def windowed(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, groups: int, strides: tuple[int, ...]) -> relax.Expr:
    """``x`` convolved with ``w``, channels last, as the pass for convolutions writes it; half a window of zeros."""
    extents = tuple(int(extent) for extent in w.struct_info.shape.values[: len(strides)])
    zeros = tuple(extent // 2 for extent in extents)
    windows = Windows(extents, strides, (1,) * len(strides), zeros, zeros)
    dtype, attributes = x.struct_info.dtype, {"op_pattern": 4}
    name = f"sums_of_{groups}"  # unlike that of others, since tests put several graphs into one module
    return b.emit_te(windows.sums, x, w, groups, dtype, primfunc_name_hint=name, primfunc_attrs=attributes)


def convolved(x: torch.Tensor, w: torch.Tensor, groups: int, strides: tuple[int, ...]) -> torch.Tensor:
    """The same in PyTorch, whose convolutions of float32 on a GPU may be TensorFloat-32's."""
    function = functional.conv2d if len(strides) == 2 else functional.conv1d
    zeros = tuple(extent // 2 for extent in w.shape[: len(strides)])
    weight = w.double().movedim((-1, -2), (0, 1))
    return function(x.double().movedim(-1, 1), weight, None, strides, zeros, 1, groups).movedim(1, -1)


def rows(dtype: str) -> Input:
    """Rows of 96 numbers."""
    return ((BATCH, LENGTH, 96), dtype)


CASES = (
    Case("swiglu", lambda t: [rows(t)] * 2, swiglu, lambda g, u: functional.silu(g) * u, "gpu-elementwise"),
    Case(
        "bias",
        lambda t: [rows(t), ((96,), t)],
        lambda b, x, y: op.add(x, y),
        lambda x, y: x + y,
        "gpu-elementwise",
    ),
    Case(
        "rows of a large image",
        lambda t: [((4, 300, 100, 96), t), ((96,), "float32"), ((96,), t)],
        scaled_rows,
        lambda x, scale, bias: (x.float() * scale + bias.float()).relu().to(x.dtype),
        "gpu-elementwise",
    ),
    *(
        Case(
            name,
            lambda t, batch=batch: [((batch, 6, 17, 96), t)],  # type: ignore[misc]
            lambda b, x: op.nn.pad(b.emit(op.nn.relu(x)), (0, 0, 1, 0, 0, 2, 0, 0)),
            lambda x: functional.pad(x.relu(), (0, 0, 0, 2, 1, 0)),
            "gpu-elementwise",
        )
        for name, batch in (("padded pixels", 3), ("padded pixels of a batch", BATCH))
    ),
    Case(
        "slices of odd rows",
        lambda t: [((BATCH, 3, 99), t)],
        lambda b, x: op.nn.relu(b.emit(op.strided_slice(x, [2], [0], [96], [1]))),
        lambda x: x[..., :96].relu(),
        "gpu-elementwise",
    ),
    Case(
        "one vector",
        lambda t: [((4,), t)] * 2,
        lambda b, x, y: op.add(x, y),
        lambda x, y: x + y,
        "gpu-elementwise",
    ),
    Case(
        "odd rows",
        lambda t: [((LENGTH, 77), t)],
        lambda b, x: op.nn.relu(x),
        functional.relu,
        "gpu-elementwise",
    ),
    Case(
        "heads first",
        lambda t: [((BATCH, LENGTH, 4, 16), t)],
        lambda b, x: op.permute_dims(x, [0, 2, 1, 3]),
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
        "gpu-elementwise",
    ),
    Case(
        "transpose",
        lambda t: [rows(t)],
        lambda b, x: op.permute_dims(x, [0, 2, 1]),
        lambda x: x.transpose(1, 2).contiguous(),
        "gpu-elementwise",
    ),
    Case(
        "softmax",
        lambda t: [((BATCH, 4, LENGTH, LENGTH), t)],
        lambda b, x: op.nn.softmax(x, -1),
        lambda x: x.softmax(-1),
        "dlight-general-reduction",
    ),
    Case(
        "max pool",
        lambda t: [((BATCH, 6, 17, 16), t)],
        lambda b, x: op.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1)),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        "gpu-strided-reduction",
    ),
    Case(
        "convolution of each channel",
        lambda t: [((BATCH, 6, 9, LENGTH), t), ((6, 1, 3, 5), t)],
        lambda b, x, w: op.nn.relu(b.emit(op.nn.conv2d(x, w, padding=(1, 2), groups=6))),
        lambda x, w: functional.conv2d(x, w, padding=(1, 2), groups=6).relu(),
        "gpu-strided-reduction",
    ),
    Case(
        "convolution of each channel, channels last",
        lambda t: [((8, 30, 64, 144), t), ((3, 5, 1, 144), t), ((144,), t)],
        lambda b, x, w, bias: op.nn.relu(b.emit(op.add(windowed(b, x, w, 144, (2, 1)), bias))),
        lambda x, w, bias: (convolved(x, w, 144, (2, 1)) + bias).relu().to(x.dtype),
        "gpu-vector-reduction",
    ),
    Case(
        "convolution of small groups, channels last",
        lambda t: [((BATCH, 40, 64, 32), t), ((3, 3, 4, 64), t)],
        lambda b, x, w: op.nn.relu(windowed(b, x, w, 8, (1, 1))),
        lambda x, w: convolved(x, w, 8, (1, 1)).relu().to(x.dtype),
        "gpu-vector-reduction",
    ),
    Case(
        "convolution of a sequence, channels last",
        lambda t: [((1, 4096, 1536), t), ((4, 1, 1536), t)],
        lambda b, x, w: windowed(b, x, w, 1536, (1,)),
        lambda x, w: convolved(x, w, 1536, (1,)).to(x.dtype),
        "gpu-vector-reduction",
    ),
    Case(
        "sums of many elements",
        lambda t: [((40, 9, 70), t)],
        lambda b, x: op.nn.relu(b.emit(op.sum(b.emit(op.multiply(x, x)), [0, 1], keepdims=True))),
        lambda x: (x.float() * x).sum((0, 1), keepdim=True).to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "normalization over pixels",
        lambda t: [((BATCH, 999, 96), t)],
        normalized_pixels,
        lambda x: functional.instance_norm(x.float().mT).mT.relu().to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "argmax of columns",
        lambda t: [((BATCH, LENGTH, 96), t)],
        lambda b, x: op.astype(b.emit(op.argmax(x, 1)), x.struct_info.dtype),
        lambda x: x.argmax(1).to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "running sums that are read late",
        lambda t: [((BATCH, 3, 1100), t)],
        running_sums,
        lambda x: x.float().cumsum(-1).to(x.dtype) + x.softmax(-1).softmax(-1).softmax(-1),
        "dlight-general-reduction",
    ),
    Case("gather", lambda t: [rows(t)], reversed_rows, lambda x: x.flip(-1) + x, "gpu-elementwise"),
    Case("mean", lambda t: [rows(t)], lambda b, x: op.mean(x, axis=-1), lambda x: x.mean(-1), "dlight-reduction"),
    Case(
        "matmul",
        lambda t: [rows(t), ((96, 64), t)],
        lambda b, x, w: op.matmul(x, w),
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "wide products",
        lambda t: [((17, 200, 96), t), ((17, 96, 500), t)],
        summed_in_float32,
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "narrow products",
        lambda t: [((44, 70, 30), t), ((44, 30, 150), t)],
        summed_in_float32,
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "split",
        lambda t: [rows(t)],
        lambda b, x: op.concat(list(b.emit(op.split(x, 3, axis=-1)))[::-1], -1),
        lambda x: torch.cat(x.chunk(3, -1)[::-1], -1),
        "gpu-elementwise",
    ),
    Case(
        "masked columns",
        lambda t: [((96,), "bool"), rows(t)],
        lambda b, seen, x: op.where(seen, x, op.negative(x)),
        lambda seen, x: torch.where(seen, x, -x),
        "gpu-elementwise",
    ),
    Case(
        "masked",
        lambda t: [((BATCH, LENGTH, 96), "bool"), rows(t)],
        lambda b, seen, x: op.where(seen, x, op.negative(x)),
        lambda seen, x: torch.where(seen, x, -x),
        "gpu-elementwise",
    ),
)


def cuda_source(module: tvm.runtime.Module) -> str:
    """The CUDA source among ``module`` and what it imports."""
    if module.kind == "cuda":
        return module.inspect_source("cuda")
    return "\n".join(filter(None, map(cuda_source, module.imports)))


def assert_in_threads(module: tvm.IRModule, report: list[ScheduledFunction]) -> None:
    """No statement of the functions in ``report`` runs outside of GPU threads."""
    for entry in report:
        assert all(map(launches_threads, top_level_statements(module[entry.function]))), entry


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.daily(2)
def test_becomes_cuda_code(case: Case, dtype: str) -> None:
    """Scheduled by the rule meant for it, and lowered and generated in full."""
    module, report = scheduled(graph(case.inputs(dtype), case.body), HOPPER)
    assert case.rule in {entry.scheduled_by for entry in report}
    assert "fallback" not in {entry.scheduled_by for entry in report}
    assert_in_threads(module, report)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)


@pytest.mark.parametrize(("rows", "columns", "threads"), [(4096, 4096, 256), (2048, 1024, 64), (128, 4096, 128)])
def test_products_have_tiles_enough_for_the_device(rows: int, columns: int, threads: int) -> None:
    """As large as they can be, and DLight's own where there would be too few."""
    module, _ = scheduled(
        graph([((rows, 64), "float32"), ((64, columns), "float32")], lambda b, x, w: op.matmul(x, w)), HOPPER
    )
    assert f"__launch_bounds__({threads})" in cuda_source(build(module, HOPPER).mod)


@pytest.mark.parametrize(("dtype", "vector"), [("float32", "float4"), ("float16", "uint4"), ("bfloat16", "uint4")])
def test_contiguous_elements_move_16_bytes_at_a_time(dtype: str, vector: str) -> None:
    """Rows that vectors divide are loaded and stored as vectors, whatever is computed; odd ones are not."""
    for name, expected in (("swiglu", True), ("heads first", True), ("padded pixels", True), ("odd rows", False)):
        (case,) = [case for case in CASES if case.name == name]
        module, _ = scheduled(graph(case.inputs(dtype), case.body), HOPPER)
        kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
        assert (f"*({vector}*)" in kernel) == expected, kernel


def test_positions_of_a_window_share_what_they_read() -> None:
    """Four along a row of five: eight pixels and five of the weight, by vectors, beside the bias and four results."""
    (case,) = [case for case in CASES if case.name == "convolution of each channel, channels last"]
    module, _ = scheduled(graph(case.inputs("bfloat16"), case.body), HOPPER)
    kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
    assert kernel.count("= *(uint4*)(") == 8 + 5 + 1 + 4


@pytest.mark.parametrize(("images", "rows"), [(4, 4), (1, 1)], ids=["many", "few"])
def test_what_rows_share_is_loaded_once_for_several(images: int, rows: int) -> None:
    """Where there are rows enough for the device; what is wider than their elements takes two vectors."""
    inputs = [((images, 300, 100, 96), "bfloat16"), ((96,), "float32"), ((96,), "bfloat16")]
    module, _ = scheduled(graph(inputs, scaled_rows), HOPPER)
    kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
    assert kernel.count("= *(uint4*)(") == 1 + 2 * rows  # the bias, each row, and each row's result
    assert kernel.count("= *(float4*)(") == 2


def test_one_vector_is_stored_by_the_thread_that_computes_it() -> None:
    """Others would store what their registers happen to hold."""
    (case,) = [case for case in CASES if case.name == "one vector"]
    module, _ = scheduled(graph(case.inputs("float32"), case.body), HOPPER)
    assert "threadIdx" not in cuda_source(build(module, HOPPER).mod).split("__global__")[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gather_of_rows_moves_vectors_straight_to_their_place(dtype: str) -> None:
    """Not through an array that the row's number addresses, which the CUDA compiler would keep in memory."""
    inputs = [((LENGTH, 64), dtype), ((BATCH,), "int64")]
    module, _ = scheduled(graph(inputs, lambda b, x, i: op.take(x, i, axis=0, mode="clip")), HOPPER)
    kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
    assert "*(float4*)" in kernel or "*(uint4*)" in kernel
    assert "_local" not in kernel


WRITTEN_AS_LOOPS = {
    "argsort": ([((LENGTH, 64), "float32")], lambda b, x: op.argsort(x)),
    "sort": ([((LENGTH, 64), "bfloat16")], lambda b, x: op.sort(x)),
    "topk": ([((LENGTH, 64), "bfloat16")], lambda b, x: op.topk(x, 8, ret_type="values")),
    "cumsum": ([((LENGTH, 64), "float32")], lambda b, x: op.cumsum(x, axis=0)),
    "cumsum of rows": ([((LENGTH, 64), "float32")], lambda b, x: op.cumsum(x, axis=1)),
    "scatter": (
        [((64, 8), "float32"), ((20, 8), "int64"), ((20, 8), "float32")],
        lambda b, x, i, v: op.scatter_elements(x, i, v, axis=0),
    ),
    "index_put": (
        [((64, 64), "bfloat16"), ((5,), "int64"), ((5,), "bfloat16")],
        lambda b, x, i, v: op.index_put(x, (i, i), v, accumulate=True),
    ),
    "attention": ([((2, 32, 4, 16), "bfloat16")] * 3, lambda b, q, k, v: op.nn.attention(q, k, v)),
}


@pytest.mark.parametrize("name", WRITTEN_AS_LOOPS)
def test_odd_functions_run_in_threads_too(name: str) -> None:
    """Sorts, scans, scatters, and functions of many blocks: none is left to the host."""
    inputs, body = WRITTEN_AS_LOOPS[name]
    module, report = scheduled(graph(inputs, body), HOPPER)
    assert_in_threads(module, report)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)


@pytest.mark.parametrize("axis", [1, 2])
def test_scans_of_many_rows_launch_a_grid_that_is_wide_not_high(axis: int) -> None:
    """CUDA launches no more than 65,535 blocks along y."""
    sizes = (70000, 2048, 8) if axis == 1 else (70000, 8, 2048)
    module, _ = scheduled(graph([(sizes, "float32")], lambda b, x: op.cumsum(x, axis=axis)), HOPPER)
    lines = module.script().splitlines()
    along = {letter: [line for line in lines if f'"blockIdx.{letter}"' in line] for letter in "xy"}
    rows = ("T.int64(560000)", "T.thread_binding(m,")
    assert along["y"]
    assert not any(row in line for line in along["y"] for row in rows)
    assert any(row in line for line in along["x"] for row in rows)


SHORT_SCANS = (
    Case(
        "sums of columns",
        lambda t: [((BATCH, 33, 96), t)],
        lambda b, x: op.cumsum(x, 1),
        lambda x: x.float().cumsum(1).to(x.dtype),
    ),
    Case(
        "sums of rows",
        lambda t: [((BATCH, LENGTH, 128), t)],
        lambda b, x: op.cumsum(x, -1),
        lambda x: x.float().cumsum(-1).to(x.dtype),
    ),
    Case(
        "sums before each element",
        lambda t: [((5, BATCH, LENGTH), t)],
        lambda b, x: op.cumsum(x, 0, exclusive=True),
        lambda x: (x.float().cumsum(0) - x.float()).to(x.dtype),
    ),
    Case(
        "products",
        lambda t: [((BATCH, 9), t)],
        lambda b, x: op.cumprod(x, 1),
        lambda x: x.float().cumprod(1).to(x.dtype),
    ),
    Case(
        "counts",
        lambda t: [((BATCH, 17), "bool"), ((BATCH, 17), t)],
        lambda b, seen, x: op.add(op.astype(op.cumsum(seen, 1, dtype="int64"), x.struct_info.dtype), x),
        lambda seen, x: seen.cumsum(1).to(x.dtype) + x,
    ),
)


def test_a_gather_is_part_of_what_reads_it() -> None:
    """One function, and no tensor of indices for all that they are the same for."""
    module, report = scheduled(graph([rows("bfloat16")], reversed_rows), HOPPER)
    (entry,) = report
    indices = [buffer for buffer in module[entry.function].buffer_map.values() if buffer.dtype == "int64"]
    assert [list(map(int, buffer.shape)) for buffer in indices] in ([], [[1, 1, 96]])


@pytest.mark.parametrize("case", SHORT_SCANS, ids=lambda case: case.name)
def test_a_scan_along_a_short_axis_is_one_launch(case: Case) -> None:
    """Of a thread for each, over the tensor as it lies."""
    module, report = scheduled(graph(case.inputs("bfloat16"), case.body), HOPPER)
    scans = [function for name, function in module.functions_items() if name.name_hint == "scan"]
    assert [script.count("blockIdx.x") for script in map(str, scans)] == [1]
    assert not any("scan" in entry.function or "transpose" in entry.function for entry in report)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)


@pytest.mark.parametrize("keeps", [False, True], ids=["for each element", "for each sum"])
def test_no_sum_is_computed_again_for_each_element_that_reads_it(keeps: bool) -> None:
    """What follows is in the same kernel only where it has as many elements as there are sums."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        mean = b.emit(op.mean(x, 1, keepdims=True))
        return op.nn.relu(mean) if keeps else op.subtract(x, mean)

    module, report = scheduled(graph([((BATCH, LENGTH, 96), "float32")], body), HOPPER)
    (entry,) = report
    assert entry.scheduled_by == "gpu-strided-reduction"
    assert module[entry.function].script().count('thread="blockIdx.x"') == (1 if keeps else 2)


def test_views_that_scans_are_taken_of_share_memory_in_planning() -> None:
    """As reshapes; TVM's own calls would be taken for tensors with memory of their own."""
    module = fused(graph([((BATCH, LENGTH, 2048), "float32")], running_sums), HOPPER)
    assert "gpu_2d_continuous_cumsum" in module.script()
    assert "vm.builtin.reshape" not in module.script()


def test_a_schedule_that_takes_too_much_shared_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rule's is taken, and the reason says how much it was: DLight shares all of what a slice is taken of."""

    def sliced(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        convolved = b.emit(op.nn.conv1d(x, w, padding=(8, 8), groups=16))
        return op.strided_slice(convolved, [2], [0], [249])

    without = tuple(rule for rule in schedule_module.GPU_RULES if rule.name != "gpu-strided-reduction")
    monkeypatch.setattr(schedule_module, "GPU_RULES", without)
    _, report = scheduled(graph([((4, 128, 249), "float32"), ((128, 8, 16), "float32")], sliced), HOPPER)
    assert [entry.scheduled_by for entry in report] == ["dlight-fallback"]
    assert "dlight-general-reduction does not fit: it takes 128000 bytes of shared memory" in report[0].reason


def test_one_thread_is_said() -> None:
    """What only runs serially is reported as such."""
    _, report = scheduled(graph(*WRITTEN_AS_LOOPS["scatter"]), HOPPER)
    assert [entry.scheduled_by for entry in report] == ["fallback"]
    assert "one GPU thread" in report[0].reason


def test_what_needs_the_host_is_refused() -> None:
    """A function that calls into the host cannot run on a GPU; the error names it."""
    module = fused(graph([((8, 8), "float32")], lambda b, x: op.sort(x)), Target("cpu"))

    with pytest.raises(ValueError, match=r"function argsort cannot run on cuda:sm_90a.*host"):
        ScheduleModule(HOPPER, tvm_target(HOPPER))(module)


@pytest.mark.daily(2)
@pytest.mark.nvcc
@pytest.mark.parametrize("arch", CUDA_ARCHITECTURES)
def test_compiles_to_machine_code(arch: str, tmp_path: Path) -> None:
    """The CUDA compiler takes the code of every rule, in bfloat16, for every architecture."""
    target = Target("cuda", arch)
    functions = {}
    for number, case in enumerate(CASES):
        name = f"case{number}" if number else "main"
        for variable, function in graph(case.inputs("bfloat16"), case.body).functions_items():
            if variable.name_hint == "main":
                functions[tvm.ir.GlobalVar(name)] = function.with_attr("global_symbol", name)
            else:
                functions[variable] = function
    module, _ = scheduled(tvm.IRModule(functions), target)
    code = tmp_path / "kernels.cu"
    code.write_text(cuda_source(build(module, target).mod))
    command = [toolchain.nvcc(), f"-arch={arch}", "-cubin", str(code), "-o", str(tmp_path / "kernels.cubin")]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", (*CASES, *SHORT_SCANS), ids=lambda case: case.name)
def test_agrees_with_pytorch_on_the_gpu(case: Case, dtype: str, tmp_path: Path) -> None:
    """The same values as PyTorch's, at several sizes."""
    module, _ = scheduled(graph(case.inputs(dtype), case.body), local_gpu())
    library = tmp_path / "model.so"
    build(module, local_gpu()).export_library(str(library), addons=runtime_objects(local_gpu()))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cuda())
    for sizes in ({"b": 1, "s": 1}, {"b": 2, "s": 17}, {"b": 3, "s": 257}):
        inputs = []
        for seed, (shape, kind) in enumerate(case.inputs(dtype)):
            given = dtype if kind == "bool" else kind
            values = random([sizes[d.name] if isinstance(d, tirx.Var) else d for d in shape], given, seed=seed).cuda()
            inputs.append(values > 0 if kind == "bool" else values)
        found = machine["main"](*inputs)  # PyTorch's own, whose allocator the code takes its memory from
        tolerance = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}[dtype]
        assert error(found, case.reference(*inputs)) < tolerance
