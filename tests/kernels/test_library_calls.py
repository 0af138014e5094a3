"""cuBLASLt as a configuration of the matmul kernel: where it is offered, how it is written down, built and reported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tkc
from tests.kernels.matmul_checks import CPU, HOPPER, SPEC, request_for
from tkc.builder import KernelBuilder
from tkc.compiler.report import requirements_of
from tkc.kernels import Choice, KernelDispatch, KernelRequest, Target
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.library_calls import WORKSPACE_BYTES, LibraryCall, called_libraries, without_libraries
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.spec import MatmulConfiguration
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.records import KernelRecord, read_records, write_records
from tkc.runtime.report_rows import KernelUse
from tkc.runtime.report_tables import kernels_table
from tkc.schedules.database_folders import target_folder

LIBRARY = LibraryCall("cublaslt")
PLAIN = MatmulParameters(64, 64, "bfloat16")
SMALL = Tiling(16, 64, 128, stages=4, threads=128)


def record(m: int, configuration: MatmulConfiguration, parameters: MatmulParameters = PLAIN) -> KernelRecord:
    """A measurement at ``m`` rows."""
    return KernelRecord(
        *("matmul", dataclasses.asdict(parameters), dataclasses.asdict(configuration), str(HOPPER)),
        *({"m": m}, 1.0, "GPU", {}, "2026-01-01T00:00:00+00:00"),
    )


@pytest.mark.parametrize(
    ("changes", "target", "offered"),
    [
        ({}, "cuda:sm_90a", True),
        ({"dtype": "float16", "out_dtype": "float16"}, "cuda:sm_80", True),
        ({"bias": True, "residual": True, "weight_layout": "kn"}, "cuda:sm_90a", True),
        ({"n": 1000, "k": 104}, "cuda:sm_90a", True),
        ({"n": 1001}, "cuda:sm_90a", False),
        ({"k": 100}, "cuda:sm_90a", False),
        ({}, "cpu", False),
        ({"dtype": "float32"}, "cuda:sm_90a", False),
        ({"out_dtype": "float32"}, "cuda:sm_90a", False),
        ({"out_dtype": "float16"}, "cuda:sm_90a", False),
        ({"activation": "relu"}, "cuda:sm_90a", False),
        ({"activation": "gelu_tanh"}, "cuda:sm_90a", False),
        ({"outputs": (32, 32)}, "cuda:sm_90a", False),
    ],
)
def test_it_is_offered_last_where_it_computes_the_same(changes: dict[str, Any], target: str, offered: bool) -> None:
    """Never first, which is what is taken where nothing was measured."""
    configurations = SPEC.configurations(dataclasses.replace(PLAIN, **changes), Target.parse(target))
    assert isinstance(configurations[0], Tiling)
    assert (configurations[-1] == LIBRARY) == offered
    assert called_libraries(configurations) == (("cublaslt",) if offered else ())
    assert without_libraries(configurations) == configurations[: len(configurations) - offered]


@pytest.mark.parametrize("configuration", [LIBRARY, SMALL, Tiling()], ids=str)
def test_requests_are_read_as_they_were_written(configuration: MatmulConfiguration) -> None:
    """Both kinds, by themselves and as choices of one kernel; their functions have other names."""
    request = request_for(PLAIN, configuration, HOPPER)
    assert KernelRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert request.symbol != request_for(PLAIN, Tiling(64), HOPPER).symbol
    dispatch = KernelDispatch("matmul", PLAIN, (Choice(SMALL, 8), Choice(LIBRARY, 64), Choice(configuration)), HOPPER)
    assert KernelDispatch.from_json(json.loads(json.dumps(dispatch.to_json()))) == dispatch


@pytest.mark.parametrize("written", [{"library": "cublaslt"}, {"block_m": 64}, {}])
def test_what_is_read_is_either(written: dict[str, Any]) -> None:
    """As records have it, older ones among them, which say less than a tiling has today."""
    data = {**request_for(PLAIN, SMALL, HOPPER).to_json(), "configuration": written}
    read = KernelRequest.from_json(data).configuration
    assert read == (LIBRARY if "library" in written else Tiling(**written))


@pytest.mark.parametrize("library", ["cudnn", None, ""])
def test_a_library_that_there_is_not_is_an_error(library: Any) -> None:
    """A record of it is passed over."""
    data = {**request_for(PLAIN, SMALL, HOPPER).to_json(), "configuration": {"library": library}}
    with pytest.raises(ValueError, match="cublaslt"):
        KernelRequest.from_json(data)
    unknown = dataclasses.replace(record(64, SMALL), configuration={"library": library})
    assert RecordedChoices([unknown])(SPEC, PLAIN, HOPPER)[0].configuration == SPEC.configurations(PLAIN, HOPPER)[0]


def test_records_choose_it(tmp_path: Path) -> None:
    """For the sizes they tell of; other kernels, for which it is not offered, take what is."""
    write_records(tmp_path, [record(16, SMALL), record(64, LIBRARY), record(1024, SMALL)])
    records = read_records(tmp_path)
    choose = RecordedChoices(records)
    assert choose(SPEC, PLAIN, HOPPER) == (Choice(SMALL, 32), Choice(LIBRARY, 256), Choice(SMALL))
    assert choose.chosen(SPEC, PLAIN, HOPPER, {"m": 64}).origin == "own"
    near = dataclasses.replace(PLAIN, n=128, residual=True)
    assert choose.configuration(SPEC, near, HOPPER, {"m": 64}) == LIBRARY
    relu = dataclasses.replace(PLAIN, activation="relu")
    assert choose(SPEC, relu, HOPPER) == (Choice(SMALL),)
    assert RecordedChoices([])(SPEC, PLAIN, HOPPER) == (Choice(SPEC.configurations(PLAIN, HOPPER)[0]),)


def test_it_is_left_out_where_the_kernels_are_to_be_ours_or_the_batch_must_not_matter() -> None:
    """Its algorithm goes by the number of rows."""
    records = [record(16, SMALL), record(64, LIBRARY)]
    assert SPEC.reduction_order(PLAIN, LIBRARY, HOPPER) is None
    for choose in (RecordedChoices(records, batch_invariant=True), RecordedChoices(records, libraries=False)):
        assert choose(SPEC, PLAIN, HOPPER) == (Choice(SMALL),)
        assert choose.ranked(SPEC, PLAIN, HOPPER, {"m": 64}) == (SMALL,)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which it is the fastest from 33 to 256 rows."""
    folder = tmp_path_factory.mktemp("database")
    write_records(target_folder(folder, HOPPER), [record(16, SMALL), record(64, LIBRARY), record(1024, SMALL)])
    return folder


def explained(database: Path, **options: Any) -> tkc.Report:
    """The report of two layers for Hopper, of any number of rows."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to(torch.bfloat16)
    shapes = {"input": {0: torch.export.Dim("rows", max=4096)}}
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    return tkc.explain(model, (x,), target=str(HOPPER), database=database, dynamic_shapes=shapes, **options)


def libraries(report: tkc.Report) -> list[Any]:
    """What the choices of the report's kernels call, ``None`` for kernels of ours."""
    return [choice.get("library") for use in report.uses for choice in use.configurations]


def test_the_report_says_at_which_sizes(database: Path) -> None:
    """And its workspace is one for all calls."""
    report = explained(database)
    assert {None, "cublaslt"} == set(libraries(report)) and report.uses[0].calls == 2
    assert "cuBLASLt at" in str(report)
    assert report.activations is not None and list(report.activations.sizes).count(WORKSPACE_BYTES) == 1


def test_pieces_of_sizes_share_a_workspace(tmp_path: Path) -> None:
    """A call takes one of them."""
    pieces = [record(m, c) for m, c in ((1, LIBRARY), (64, SMALL), (1024, LIBRARY))]
    write_records(target_folder(tmp_path, HOPPER), pieces)
    report = explained(tmp_path)
    found = libraries(report)
    assert found.count("cublaslt") >= 2 and None in found[found.index("cublaslt") :]
    assert report.activations is not None and list(report.activations.sizes).count(WORKSPACE_BYTES) == 1


@pytest.mark.parametrize("options", [{"kernels": "all"}, {"batch_invariant": True}])
def test_options_that_leave_it_out(database: Path, options: dict[str, Any]) -> None:
    """In whole compilations, too."""
    report = explained(database, **options)
    assert report.uses and set(libraries(report)) == {None}
    assert "cuBLASLt" not in str(report)


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ([(None, "cublaslt")], "matmul (cuBLASLt)"),
        ([(32, None), (256, "cublaslt"), (None, None)], "matmul (cuBLASLt at sizes 33 to 256)"),
        ([(32, "cublaslt"), (64, None), (None, "cublaslt")], "matmul (cuBLASLt at sizes 0 to 32, from 65)"),
        ([(None, "another")], "matmul (another)"),
        ([(None, None)], "matmul"),
    ],
)
def test_what_the_table_of_kernels_says(choices: list[tuple[int | None, str | None]], told: str) -> None:
    """A library by its name, one that this version does not know as it is written, and at which sizes."""
    configurations = tuple({"most": most} | ({"library": name} if name else {}) for most, name in choices)
    use = KernelUse("rule", "matmul", {}, configurations, 1, ())
    table = kernels_table("", [use], tkc.Report("cpu", "auto").kernel_coverage, ())
    assert list(map(str, table.columns[0].cells)) == [told]


def test_requirements_name_it() -> None:
    """Once, whichever of the kernels' sizes it serves."""
    ours = KernelDispatch("matmul", PLAIN, (Choice(SMALL),), HOPPER)
    mixed = dataclasses.replace(ours, choices=(Choice(LIBRARY, 8), Choice(SMALL, 64), Choice(LIBRARY)))
    assert requirements_of((), [ours]).shared_libraries == ()
    assert requirements_of((), [ours, mixed, mixed]).shared_libraries == ("cublaslt",)


def test_it_has_a_workspace() -> None:
    """Which our kernels have none of."""
    (workspace,) = SPEC.workspaces(PLAIN, LIBRARY)
    assert workspace.shape == (WORKSPACE_BYTES,) and workspace.dtype == "uint8"
    assert SPEC.workspaces(PLAIN, SMALL) == ()
    assert LIBRARY not in SPEC.configurations(PLAIN, CPU)


@pytest.mark.nvcc
def test_it_is_built_without_a_gpu(builder: KernelBuilder) -> None:
    """A library that exports the request's function, and needs neither cuBLASLt nor machine code to be made."""
    parameters = MatmulParameters(1000, 104, "float16", "kn", bias=True, residual=True)
    request = request_for(parameters, LIBRARY, HOPPER)
    library = builder.build([request])[request]
    content = library.path.read_bytes()
    assert f"__tvm_ffi_{request.symbol}".encode() in content and b"libcublasLt.so.13" in content
    assert b"sm_90a" not in content
    assert KernelRequest.from_json(library.request) == request
