"""What functions on CUDA targets load and store: vectors of 16 bytes, each element once, and no more than fits."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax import op

from tests.schedules.gpu_cases import BATCH, CASES, HOPPER, LENGTH, cuda_source, scaled_rows
from tests.schedules.graphs import build, graph, scheduled
from tkc.schedules import schedule_module


@pytest.mark.daily(1)
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


def test_a_schedule_that_takes_too_much_shared_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rule's is taken, and the reason says how much it was: DLight shares all of what a slice is taken of."""

    def sliced(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        convolved = b.emit(op.nn.conv1d(x, w, padding=(8, 8), groups=16))
        return op.strided_slice(convolved, [2], [0], [249])

    others = ("gpu-strided-reduction", "gpu-row-reduction")
    without = tuple(rule for rule in schedule_module.GPU_RULES if rule.name not in others)
    monkeypatch.setattr(schedule_module, "GPU_RULES", without)
    _, report = scheduled(graph([((4, 128, 249), "float32"), ((128, 8, 16), "float32")], sliced), HOPPER)
    assert [entry.scheduled_by for entry in report] == ["dlight-fallback"]
    assert "dlight-general-reduction does not fit: it takes 128000 bytes of shared memory" in report[0].reason
