"""Functions on CUDA targets: every one runs in threads, and becomes code the CUDA compiler takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.gpu_cases import CASES, HOPPER, LENGTH, SHORT_SCANS, Case, cuda_source
from tests.schedules.graphs import build, error, fused, graph, random, scheduled
from tkc.builder import toolchain
from tkc.builder.runtime_objects import runtime_objects
from tkc.kernels.target import CUDA_ARCHITECTURES, Target
from tkc.runtime.local_gpu import local_gpu
from tkc.schedules.blocks import launches_threads, top_level_statements
from tkc.schedules.schedule_module import ScheduledFunction, ScheduleModule
from tkc.schedules.target import tvm_target


def assert_in_threads(module: tvm.IRModule, report: list[ScheduledFunction]) -> None:
    """No statement of the functions in ``report`` runs outside of GPU threads."""
    for entry in report:
        statements = top_level_statements(module[entry.function])
        done = [statement for statement in statements if not isinstance(statement, tirx.DeclBuffer)]
        assert done and all(map(launches_threads, done)), entry


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


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", WRITTEN_AS_LOOPS)
def test_odd_functions_run_in_threads_too(name: str) -> None:
    """Sorts, scans, scatters, and functions of many blocks: none is left to the host."""
    inputs, body = WRITTEN_AS_LOOPS[name]
    module, report = scheduled(graph(inputs, body), HOPPER)
    assert_in_threads(module, report)
    assert "__global__" in cuda_source(build(module, HOPPER).mod)


def test_one_thread_is_said() -> None:
    """What only runs serially is reported as such."""
    _, report = scheduled(graph(*WRITTEN_AS_LOOPS["index_put"]), HOPPER)
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
