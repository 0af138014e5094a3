"""GPU functions of sizes that only calls know: right at every size, inside of all tensors, and by vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import relax, tirx
from tvm.relax import op
from tvm.tirx.stmt_functor import ir_transform

import tkc
from tests.schedules.gpu_cases import BATCH, HOPPER, LENGTH, convolved, cuda_source, windowed
from tests.schedules.graphs import Input, build, fused, graph, random, scheduled, size
from tests.schedules.interpreted import run
from tkc.passes.canonical.windows import Windows
from tkc.passes.lowering.widened_softmax import WidenedSoftmax
from tkc.schedules import schedule_module
from tkc.schedules.lowering.pipeline import LOWERING
from tkc.schedules.target import tvm_target

WIDTH = size("w")
Body = Callable[..., relax.Expr]


def difference(
    inputs: Sequence[Input], body: Body, tensors: Sequence[torch.Tensor], expected: torch.Tensor, rule: str
) -> float:
    """How far the scheduled function is from ``expected``, run in Python."""
    with tvm_target(HOPPER):
        return run(fused(WidenedSoftmax()(graph(inputs, body)), HOPPER), tensors, expected, rule)


def image(channels: int, dtype: str = "float32") -> Input:
    """Images of any size, channels last."""
    return ((BATCH, LENGTH, WIDTH, channels), dtype)


@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "stride", "pixels"),
    [
        (16, 16, 7, 1, (2, 5, 7)),
        (16, 16, 7, 1, (1, 1, 1)),
        (12, 12, 3, 2, (2, 8, 3)),
        (24, 24, 5, 2, (1, 3, 10)),
        (6, 6, 3, 1, (1, 2, 5)),
        (32, 4, 3, 1, (1, 3, 5)),
        (32, 2, 3, 2, (2, 4, 5)),
        (16, 8, 1, 1, (1, 2, 3)),
        (8, 8, 18, 1, (1, 2, 3)),
    ],
)
def test_windows_of_images_of_any_size(
    channels: int, groups: int, kernel: int, stride: int, pixels: tuple[int, ...]
) -> None:
    """Of each channel and of groups: with a bias and a ReLU, at positions that four do not divide."""
    weight = (kernel, kernel, channels // groups, channels)
    tensors = [random((*pixels, channels)), random(weight, seed=1), random((channels,), seed=2)]
    expected = (convolved(*tensors[:2], groups, (stride, stride)).float() + tensors[2]).relu()

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, bias: relax.Var) -> relax.Expr:
        return op.nn.relu(b.emit(op.add(windowed(b, x, w, groups, (stride, stride)), bias)))

    inputs = [image(channels), (weight, "float32"), ((channels,), "float32")]
    assert difference(inputs, body, tensors, expected, "gpu-windows") < 1e-5


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (7, 1)])
def test_windows_of_images_whose_size_is_a_formula(kernel: int, stride: int) -> None:
    """Of what a strided convolution leaves of any image, with zeros around it."""
    size = (LENGTH - 1) // 4 + 1, (WIDTH - 1) // 4 + 1
    tensors = [random((2, 5, 3, 16)), random((kernel, kernel, 1, 16), seed=1), random((16,), seed=2)]
    expected = convolved(*tensors[:2], 16, (stride, stride)).float() + tensors[2]

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, bias: relax.Var) -> relax.Expr:
        return op.add(windowed(b, x, w, 16, (stride, stride)), bias)

    inputs: list[Input] = [((BATCH, *size, 16), "float32"), ((kernel, kernel, 1, 16), "float32"), ((16,), "float32")]
    assert difference(inputs, body, tensors, expected, "gpu-windows") < 1e-5


def _clipped(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
    """A window of each channel between 0 and 6, which are tensors without axes, as PyTorch's ``hardtanh`` has them."""
    least, most = relax.const(0.0, "float32"), relax.const(6.0, "float32")
    return op.minimum(b.emit(op.maximum(windowed(b, x, w, 16, (1, 1)), least)), most)


def test_windows_that_are_clipped() -> None:
    """Numbers that have no place are no vectors."""
    x, weight = 20 * random((1, 3, 5, 16)), random((3, 3, 1, 16), seed=1)
    expected = convolved(x, weight, 16, (1, 1)).float().clamp(0, 6)
    inputs = [image(16), ((3, 3, 1, 16), "float32")]
    assert difference(inputs, _clipped, [x, weight], expected, "gpu-windows") < 1e-5


@pytest.mark.daily(1)
def test_registers_whose_number_only_a_call_knows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rule that would ask for them, the report says so, and another is taken."""
    others = tuple(rule for rule in schedule_module.GPU_RULES if rule.name != "gpu-windows")
    monkeypatch.setattr(schedule_module, "GPU_RULES", others)
    halves = torch.nn.Sequential(
        torch.nn.MaxPool2d(2),
        torch.nn.ZeroPad2d(1),
        torch.nn.Conv2d(32, 32, 3, groups=32, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU6(),
    )
    any_image = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    exe = tkc.compile(
        halves.eval().bfloat16(),
        (torch.randn(2, 32, 30, 34, dtype=torch.bfloat16),),
        dynamic_shapes={"input": any_image},
        target="cuda:sm_90a",
        database=False,
    )
    assert any("in registers that is only known" in (entry.reason or "") for entry in exe.report.scheduled)


def test_windows_without_zeros_around_them_stay_inside() -> None:
    """Of positions beyond the end, nothing is read; a residual is added, and the window has gaps."""
    windows = Windows((3, 2), (1, 1), (2, 3), (0, 0), (0, 0))
    x, weight = random((1, 6, 9, 8)), random((3, 2, 1, 8), seed=1)
    expected = functional.conv2d(
        x.double().permute(0, 3, 1, 2), weight.double().permute(3, 2, 0, 1), None, 1, 0, (2, 3), 8
    ).permute(0, 2, 3, 1)
    residual = random(tuple(expected.shape), seed=2)

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, residual: relax.Var) -> relax.Expr:
        attributes = {"op_pattern": 4}
        sums = b.emit_te(windows.sums, x, w, 8, "float32", primfunc_name_hint="sums", primfunc_attrs=attributes)
        return op.add(sums, residual)

    rest: Input = ((BATCH, LENGTH - 4, WIDTH - 3, 8), "float32")
    inputs = [image(8), ((3, 2, 1, 8), "float32"), rest]
    found = difference(inputs, body, [x, weight, residual], (expected + residual).float(), "gpu-windows")
    assert found < 1e-5


def test_windows_are_read_by_vectors_and_once_for_four_positions() -> None:
    """Four along a row of five: eight pixels and five of the weight, by vectors, beside the bias and four results."""
    inputs = [image(96, "bfloat16"), ((5, 5, 1, 96), "bfloat16"), ((96,), "bfloat16")]

    def body(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, bias: relax.Var) -> relax.Expr:
        return op.add(windowed(b, x, w, 96, (1, 1)), bias)

    module, _ = scheduled(graph(inputs, body), HOPPER)
    kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
    assert kernel.count("= *(uint4*)(") == 8 + 5 + 1 + 4
    assert "min(" not in kernel  # what is read under a condition needs no other bounds


LENGTHS = (1, 31, 129, 257, 513, 1025, 2049, 4099)
ROWS: tuple[Input, ...] = (((BATCH, LENGTH, WIDTH), "float32"),)


@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_of_rows_of_any_length(length: int) -> None:
    """In each of the variants: with a warp or a block to a row, which holds it or reads it again."""
    x = random((1, 3, length)) * 3
    assert difference(ROWS, lambda b, x: op.nn.softmax(x, -1), [x], x.softmax(-1), "gpu-rows") < 1e-6


@pytest.mark.parametrize("length", [2, 31, 257, 1025])
def test_softmax_of_rows_of_a_known_length(length: int) -> None:
    """In the one variant that holds them."""
    x = random((2, 3, length)) * 3
    inputs = [((BATCH, 3, length), "float32")]
    assert difference(inputs, lambda b, x: op.nn.softmax(x, -1), [x], x.softmax(-1), "gpu-rows") < 1e-6


@pytest.mark.parametrize("length", [7, 600])
@pytest.mark.parametrize("infinite", [False, True])
def test_softmax_in_16_bits(length: int, infinite: bool) -> None:
    """It reads what the model widens, and multiplies by a reciprocal; half a row may be masked."""
    x = (random((1, 2, length)) * 3).half()
    x[0, 0, length // 2 :] = -torch.inf if infinite else 1

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.astype(b.emit(op.nn.softmax(b.emit(op.astype(x, "float32")), -1)), "float16")

    inputs = [((BATCH, LENGTH, WIDTH), "float16")]
    expected = x.float().softmax(-1).half()
    assert difference(inputs, body, [x], expected, "gpu-rows") < 1e-3


@pytest.mark.parametrize("length", [1, 40, 300])
@pytest.mark.parametrize(
    ("body", "reference"),
    [
        (lambda b, x: op.sum(x, [-1]), lambda x: x.sum(-1)),
        (lambda b, x: op.max(x, [-1], keepdims=True), lambda x: x.amax(-1, keepdim=True)),
        (lambda b, x: op.min(x, [-1]), lambda x: x.amin(-1)),
    ],
    ids=["sum", "maximum", "minimum"],
)
def test_reductions_of_rows_of_any_length(
    body: Body, reference: Callable[[torch.Tensor], torch.Tensor], length: int
) -> None:
    """One thread of a row stores its result."""
    x = random((2, 3, length))
    assert difference(ROWS, body, [x], reference(x), "gpu-rows") < 1e-5


ELEMENTWISE: dict[str, tuple[Body, Callable[..., torch.Tensor]]] = {
    "rows and columns": (
        lambda b, x, y, m, i: op.add(x, b.emit(op.permute_dims(y, [0, 2, 1]))),
        lambda x, y, m, i: x + y.mT,
    ),
    "mask": (
        lambda b, x, y, m, i: op.where(m, x, b.emit(op.negative(x))),
        lambda x, y, m, i: torch.where(m, x, -x),
    ),
    "one shape": (lambda b, x, y, m, i: op.multiply(x, x), lambda x, y, m, i: x * x),
    "zeros around": (
        lambda b, x, y, m, i: op.nn.pad(x, (0, 0, 1, 0, 0, 2)),
        lambda x, y, m, i: functional.pad(x, (0, 2, 1, 0)),
    ),
    "gathered": (
        lambda b, x, y, m, i: op.gather_elements(x, b.emit(op.broadcast_to(i, x.struct_info.shape)), axis=2),
        lambda x, y, m, i: x.gather(2, i.expand_as(x)),
    ),
}


@pytest.mark.parametrize("length", [1, 63, 65, 300])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elements_of_rows_of_any_length(name: str, length: int) -> None:
    """Short rows have a thread for each element among all, long ones a warp for each part."""
    body, reference = ELEMENTWISE[name]
    inputs: list[Input] = [
        ((BATCH, LENGTH, WIDTH), "float32"),
        ((BATCH, WIDTH, LENGTH), "float32"),
        ((BATCH, 1, WIDTH), "bool"),
        ((1, LENGTH, WIDTH), "int64"),
    ]
    tensors = [
        random((2, 9, length)),
        random((2, length, 9), seed=1),
        random((2, 1, length), seed=2) > 0,
        torch.arange(9 * length).reshape(1, 9, length) % length,
    ]
    assert difference(inputs, body, tensors, reference(*tensors), "gpu-elementwise") == 0


@pytest.mark.parametrize("pixels", [(1, 1), (3, 5), (8, 2)])
def test_vectors_of_channels_of_images_of_any_size(pixels: tuple[int, int]) -> None:
    """Zeros around an image, whose pixels beyond the end are not read."""
    x = random((2, *pixels, 16))
    found = difference(
        [image(16)],
        lambda b, x: op.nn.pad(b.emit(op.nn.relu(x)), (0, 0, 1, 0, 0, 2, 0, 0)),
        [x],
        functional.pad(x.relu(), (0, 0, 0, 2, 1, 0)),
        "gpu-elementwise",
    )
    assert found == 0


def test_few_divisions_find_a_place() -> None:
    """One by each size but the outermost, and without selections by signs."""
    inputs: list[Input] = [((BATCH, LENGTH, WIDTH, 16), "float16"), ((BATCH, 1, WIDTH, 16), "float16")]
    module, _ = scheduled(graph(inputs, lambda b, x, y: op.add(x, y)), HOPPER)
    kernel = cuda_source(build(module, HOPPER).mod).split("__global__")[-1]
    assert "rmod" not in kernel and "*(uint4*)" in kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_of_nothing_begin(dtype: str) -> None:
    """In a thread that finds its place by dividing by sizes; the threads one after the other, on the CPU."""
    inputs = [((BATCH, 8, LENGTH, WIDTH), dtype)]
    module, report = scheduled(graph(inputs, lambda b, x: op.mean(x, [1, 2])), HOPPER)
    (entry,) = report
    assert entry.scheduled_by == "gpu-strided-reduction"

    def in_turn(loop: tirx.For) -> tirx.For | None:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return None
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    func = module[entry.function]
    on_cpu = func.with_body(ir_transform(func.body, None, in_turn, ["tirx.For"])).with_attr("target", None)
    code = tvm.compile(on_cpu.with_attr("global_symbol", "main"), target="llvm", tir_pipeline=LOWERING)
    for length in (0, 1, 5):
        x = random((2, 8, length, 3), dtype)
        found = tvm.runtime.tensor(np.full((2, 3), 7, dtype))
        code["main"](tvm.runtime.tensor(x.numpy()), found)
        torch.testing.assert_close(torch.from_numpy(found.numpy()), x.mean((1, 2)), equal_nan=True)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_over_a_known_axis_and_another_become_code(dtype: str) -> None:
    """Parts of a loop that is written out may be of a length that only a call knows."""
    module, _ = scheduled(graph([((BATCH, 8, LENGTH, WIDTH), dtype)], lambda b, x: op.sum(x, [1, 2])), HOPPER)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)
