"""The kernel builder: builds once, survives crashes, hangs, damaged entries and racing processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import tvm_ffi

from tkc.builder import BuilderSettings, KernelBuilder, KernelCache, KernelLibrary
from tkc.builder import client as client_module
from tkc.errors import KernelBuildError
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.swiglu.parameters import SwiGLUParameters


def request(channels: int = 8, target: str = "cpu") -> KernelRequest:
    """A small SwiGLU kernel; another number of channels is another kernel."""
    spec, parameters, parsed = SPECS["swiglu"], SwiGLUParameters(channels, "float32"), Target.parse(target)
    return KernelRequest(spec.name, parameters, spec.configurations(parameters, parsed)[0], parsed)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    """An empty cache."""
    return KernelCache(tmp_path / "kernels")


def run(library: KernelLibrary) -> None:
    """Call the built kernel and compare with its reference."""
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    out = torch.empty(3, 8)
    asked = KernelRequest.from_json(library.request)
    tvm_ffi.load_module(str(library.path))[asked.symbol](gate, up, out)
    (expected,) = asked.spec.reference(asked.parameters, gate, up)
    torch.testing.assert_close(out, expected)


def test_equal_requests_are_built_once_and_then_found(cache: KernelCache) -> None:
    """Two equal requests are one library; a second builder finds it without starting a process."""
    seen: list[bool] = []
    with KernelBuilder(cache) as builder:
        libraries = builder.build([request(), request()], lambda _, found: seen.append(found))
    assert seen == [False] and len(libraries) == 1
    run(libraries[request()])
    with KernelBuilder(cache) as builder:
        builder.build([request()], lambda _, found: seen.append(found))
        assert not builder._workers
    assert seen == [False, True]


@pytest.mark.parametrize("damage", ["content", "record", "library"])
@pytest.mark.daily(2)
def test_a_damaged_entry_is_noticed_and_built_again(
    cache: KernelCache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped byte, an unreadable record or a missing file leads to a new build with the right result."""
    with KernelBuilder(cache) as builder:
        library = builder.build([request()])[request()]
    if damage == "content":
        content = bytearray(library.path.read_bytes())
        content[len(content) // 2] ^= 1
        library.path.write_bytes(content)
    elif damage == "record":
        (library.path.parent / "record.json").write_text("{")
    else:
        library.path.unlink()
    with KernelBuilder(cache) as builder:
        again = builder.build([request()])[request()]
    assert "damaged" in caplog.text
    assert json.loads((again.path.parent / "record.json").read_text())["sha256"] == library.sha256
    run(again)


def test_a_kernel_the_definition_rejects_names_it_and_the_log(cache: KernelCache) -> None:
    """The error names the kernel and its parameters, and the log has the traceback; the builder lives on."""
    spec = SPECS["swiglu"]
    parameters = SwiGLUParameters(8, "float99")  # type: ignore[arg-type]
    broken = KernelRequest("swiglu", parameters, spec.configuration_type(), Target("cpu"))
    with KernelBuilder(cache, BuilderSettings(workers=1)) as builder:
        with pytest.raises(KernelBuildError, match=r"(?s)swiglu\(channels=8, dtype=float99.*log: ") as raised:
            builder.build([broken])
        log = Path(str(raised.value).rpartition("log: ")[2])
        assert "Traceback" in log.read_text()
    with KernelBuilder(cache) as builder:
        run(builder.build([request()])[request()])


def test_a_killed_builder_is_an_error_and_the_next_build_works(cache: KernelCache) -> None:
    """SIGKILL in the middle of a build, as the kernel's out-of-memory killer sends it."""
    with KernelBuilder(cache, BuilderSettings(workers=1)) as builder:

        def kill() -> None:
            while not builder._workers:
                time.sleep(0.01)
            os.kill(builder._workers[0].pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(KernelBuildError, match=r"killed \(signal 9\), most likely .* ran out of memory"):
            builder.build([request()])
        killer.join()
        run(builder.build([request()])[request()])


def test_where_tilelang_does_not_load_the_error_names_the_log(
    cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a library that it needs is missing; the log says which."""
    (tmp_path / "tilelang.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        KernelBuilder(cache) as builder,
        pytest.raises(KernelBuildError, match=r"loads TileLang died with exit code 1") as raised,
    ):
        builder.build([request()])
    log = Path(str(raised.value).rpartition("log: ")[2])
    assert "libcuda.so.1" in log.read_text()
    log.unlink()


def test_builders_take_no_modules_from_the_current_folder(
    cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkout there would build its kernels, and the cache would take them for this one's."""
    (tmp_path / "tkc").mkdir()
    (tmp_path / "tkc" / "__init__.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.chdir(tmp_path)
    with KernelBuilder(cache) as builder:
        run(builder.build([request()])[request()])


def test_a_hanging_builder_is_stopped_at_the_time_limit(cache: KernelCache) -> None:
    """A limit shorter than the builder's start stands for a kernel that never finishes."""
    with KernelBuilder(cache, BuilderSettings(workers=1, timeout=0.05)) as builder:
        start = time.monotonic()
        with pytest.raises(KernelBuildError, match=r"did not finish within 0\.05 s"):
            builder.build([request()])
        assert time.monotonic() - start < 10
        assert not builder._workers[0].alive


def test_what_is_being_built_is_no_library_yet(cache: KernelCache) -> None:
    """Neither listed nor looked into: its folder may be gone the next moment."""
    with cache.building(request()) as scratch:
        built = scratch / "generated" / "kernel.so"
        built.parent.mkdir()
        built.write_bytes(b"code")
        assert cache.libraries() == []
        stored = cache.store(request(), built)
    assert cache.libraries() == [stored.path]


def test_nothing_half_built_stays_behind(cache: KernelCache) -> None:
    """After a failure the cache holds no scratch folder and no entry."""
    with KernelBuilder(cache, BuilderSettings(workers=1, timeout=0.05)) as builder, pytest.raises(KernelBuildError):
        builder.build([request()])
    assert not [path for path in cache.folder.iterdir() if path.is_dir()]


def test_two_processes_build_one_kernel_once(cache: KernelCache) -> None:
    """Both start at the same time on an empty cache; exactly one of them builds."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from test_builder import request; from tkc.builder import KernelBuilder, KernelCache, client;"
        "built = [];"
        "original = client._Worker.build;"
        "client._Worker.build = lambda *a: (built.append(1), original(*a))[1];"
        "cache = KernelCache(Path(sys.argv[1])); builder = KernelBuilder(cache);"
        "cache.find = lambda r, find=cache.find, first=[1]: None if first and first.pop() else find(r);"
        "library = builder.build([request()])[request()];"
        "print(len(built), library.sha256); builder.__exit__(None, None, None)"
    )
    arguments = [sys.executable, "-c", program, str(cache.folder), str(Path(__file__).parent)]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0].split() for process in processes]
    assert sorted(output[0] for output in outputs) == ["0", "1"]
    assert outputs[0][1] == outputs[1][1]


def test_the_key_follows_content(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another parameter, target or source gives another key; the same content the same one."""
    key = cache.key(request())
    assert key == cache.key(request())
    assert key != cache.key(request(channels=16))
    monkeypatch.setattr("tkc.builder.cache.sources_digest", lambda spec: "other sources")
    assert key != cache.key(request())


def test_cpu_kernels_refuse_other_tensors(cache: KernelCache) -> None:
    """Too few, no tensor, and tensors of another rank, dtype or size; the error names the kernel and the tensor."""
    with KernelBuilder(cache) as builder:
        library = builder.build([request()])[request()]
    kernel = tvm_ffi.load_module(str(library.path))[request().symbol]
    good = torch.empty(3, 8)
    for given, kind, message in (
        ((good, good), TypeError, "swiglu takes 3 tensors, and got 2 arguments"),
        ((good, 3, good), TypeError, "swiglu: up is no tensor"),
        ((good, good[0], good), ValueError, "swiglu: up has 1 axes, expected 2"),
        ((good, good, good.half()), TypeError, "swiglu: out has another dtype"),
        ((good[:, :7], good, good), ValueError, "swiglu: axis 1 of gate is 7, not 8"),
        ((good, good, good[:2]), ValueError, "swiglu: axis 0 of out is 2, not 3"),
    ):
        with pytest.raises(kind, match=message):
            kernel(*given)


@pytest.mark.nvcc
def test_cuda_libraries_are_machine_code_without_a_driver(cache: KernelCache) -> None:
    """A kernel for sm_90a builds here and holds a cubin for that architecture."""
    with KernelBuilder(cache) as builder:
        library = builder.build([request(target="cuda:sm_90a")])[request(target="cuda:sm_90a")]
    content = library.path.read_bytes()
    assert b"sm_90a" in content and request(target="cuda:sm_90a").symbol.encode() in content


def test_builders_do_not_outlive_their_block(cache: KernelCache) -> None:
    """Leaving the ``with`` block ends every process."""
    with KernelBuilder(cache) as builder:
        builder.build([request()])
        worker: client_module._Worker = builder._workers[0]
        server = builder._server
        assert worker.alive and server and server._process.poll() is None
    assert not worker.alive and server._process.poll() is not None
    assert not worker.log.exists() and not server.log.exists()


@pytest.mark.parametrize(("cores", "gibibytes", "workers"), [(4, 64, 4), (64, 16, 8), (2, 1, 1)])
def test_workers_are_bounded_by_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, gibibytes: int, workers: int
) -> None:
    """One a core, but no more than half of the memory has room for, and at least one."""
    sizes = {"SC_PHYS_PAGES": gibibytes << 18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert BuilderSettings().workers == workers


@pytest.mark.parametrize(
    ("target", "shared"), [("cpu", "arguments"), pytest.param("cuda:sm_90a", "launch", marks=pytest.mark.nvcc)]
)
@pytest.mark.daily(2)
def test_what_libraries_share_is_compiled_once(
    cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, shared: str
) -> None:
    """Two kernels of two builders share one object file, and each has its own machine code."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    libraries, objects = [], []
    for wanted in (request(8, target), request(16, target)):
        with KernelBuilder(cache) as builder:
            libraries.append(builder.build([wanted])[wanted].path)
        objects += (tmp_path / shared).glob("*.o")
    first, second = libraries
    assert len(objects) == 2 and objects[0] == objects[1]
    assert objects[0].stat().st_mtime < first.stat().st_mtime
    assert first.read_bytes() != second.read_bytes()
