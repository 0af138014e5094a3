"""Each kernel family over production shapes: checked against its reference, timed beside the best that others have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import tvm_ffi

from tkc.bench.contenders import contenders, known_references
from tkc.bench.plots import COPY, MATRIX_PRODUCT
from tkc.bench.tile_kernels_client import TileKernels
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.all_cases import benchmark_cases, cases_of
from tkc.kernels.cases import Case
from tkc.kernels.choices import RecordedChoices
from tkc.measure.chosen_cases import chosen_cases
from tkc.measure.clocks import watched
from tkc.measure.prepared_case import Prepared
from tkc.measure.record import Row
from tkc.measure.timing import Timing, kernel_timings, median_milliseconds

OURS = "tkc"
"""What our kernel is called among the contenders of a row."""


def bench_kernels(
    names: Sequence[str],
    target: Target,
    choices: RecordedChoices,
    every_configuration: bool,
    references: Sequence[str] = ("eager",),
    tile_kernels: TileKernels | None = None,
    dtype: str | None = None,
) -> Iterator[Row]:
    """Rows for the kernels called ``names`` (all if empty), in the configuration of ``choices``, or in every one.

    Of them, those alone whose operands are of ``dtype`` (``None``: any).

    ``references`` are keys of :data:`tkc.bench.contenders.PYTORCH`; the ratio is to the fastest contender of a row. The
    note ``spread`` is the distance between the quartiles of our times over their median, and contenders' likewise; what
    clock and power are noted is of all contenders, which take turns.
    """
    known_references(references)
    chosen = chosen_cases(benchmark_cases(), names, dtype)
    requests = [_requests(case, target, choices, every_configuration) for case in chosen]
    with KernelBuilder() as builder:
        libraries = builder.build(request for own in requests for request in own)
    functions = {r: tvm_ffi.load_module(str(library.path))[r.symbol] for r, library in libraries.items()}
    for case, own in zip(chosen, requests, strict=True):
        yield from _rows(case, own, functions, references, tile_kernels, every_configuration)
    yield from device_rows(torch.device("cuda" if target.is_cuda else "cpu"))


def device_rows(device: torch.device) -> list[Row]:
    """What the device can do at most: the speed of a copy, bytes read plus written, and PyTorch's matrix rate."""
    on_gpu = device.type == "cuda"
    source = torch.ones(2**28 if on_gpu else 2**25, dtype=torch.float32, device=device)
    copy = torch.empty_like(source)
    with watched(device) as copying_state:
        copying = median_milliseconds(lambda: copy.copy_(source), device)
    edge, dtype = (8192, torch.bfloat16) if on_gpu else (1024, torch.float32)
    a, b = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    with watched(device) as multiplying_state:
        multiplying = median_milliseconds(lambda: a @ b, device)
    return [
        Row(COPY, {"PyTorch": copying}, notes={"TB/s": 2.0 * source.nbytes / copying / 1e9, **copying_state}),
        Row(
            MATRIX_PRODUCT,
            {"PyTorch": multiplying},
            notes={
                "TFLOP/s": 2.0 * edge**3 / multiplying / 1e9,
                "dtype": str(dtype).removeprefix("torch."),
                **multiplying_state,
            },
        ),
    ]


def _requests(case: Case, target: Target, choices: RecordedChoices, every: bool) -> list[KernelRequest]:
    spec = SPECS[case.kernel]
    configurations = (
        spec.configurations(case.parameters, target)
        if every
        else (choices.configuration(spec, case.parameters, target, case.sizes),)
    )
    return [KernelRequest(case.kernel, case.parameters, c, target) for c in configurations]


def _rows(
    case: Case,
    requests: Sequence[KernelRequest],
    functions: Mapping[KernelRequest, Any],
    references: Sequence[str],
    tile_kernels: TileKernels | None,
    every: bool,
) -> Iterator[Row]:
    device = torch.device("cuda" if requests[0].target.is_cuda else "cpu")
    prepared = Prepared(case, device)
    others = contenders(prepared, references, tile_kernels)
    work = prepared.spec.work(case.parameters, case.sizes)
    for request in requests:
        calls, error = prepared.calls(functions[request], request.configuration)
        with watched(device) as state:
            timings = kernel_timings({OURS: calls, **others.calls}, device) | others.measured
        ours = timings[OURS].milliseconds
        notes: dict[str, float | str] = {"TFLOP/s": work.flops / ours / 1e9, "TB/s": work.bytes / ours / 1e9}
        if every:
            notes["configuration"] = str(request.configuration)
        yield kernel_row(row_name(case), timings, error, notes | others.notes | state)


def kernel_row(name: str, timings: Mapping[str, Timing], error: float | None, notes: Mapping[str, float | str]) -> Row:
    """The row of ``timings`` by contender, of which :data:`OURS` is one; the ratio is to the fastest other."""
    milliseconds = {contender: timing.milliseconds for contender, timing in timings.items()}
    others = [time for contender, time in milliseconds.items() if contender != OURS]
    spreads = {
        "spread" if contender == OURS else f"{contender} spread": timing.spread for contender, timing in timings.items()
    }
    ratio = min(others) / milliseconds[OURS] if others else None
    return Row(name, milliseconds, ratio, error, {**notes, **spreads})


def row_name(case: Case) -> str:
    """The kernel, what tells its rows apart, and the sizes. Numbers that only scale values are left out.

    So is bfloat16, which most are of; another dtype comes first.
    """
    parameters = {name: getattr(case.parameters, name, None) for name in cases_of(case.kernel).told}
    untold = (None, False, (), "bfloat16")
    told = {name: v for name, v in parameters.items() if v not in untold and not isinstance(v, float)}
    return " ".join([case.kernel, *(f"{name}={value}" for name, value in (told | dict(case.sizes)).items())])
