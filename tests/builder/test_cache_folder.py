"""Cache folders that cannot be written: each is one error that names the folder, the cause and the setting."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tkc
from tests.command_line import tkc as tkc_command
from tkc.builder import KernelBuilder, KernelCache, cache, compiled_once, cuda_driver_stub, runtime_objects
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.swiglu.parameters import SwiGLUParameters


def _request() -> KernelRequest:
    spec, parameters, target = SPECS["swiglu"], SwiGLUParameters(8, "float32"), Target.parse("cpu")
    return KernelRequest(spec.name, parameters, spec.configurations(parameters, target)[0], target)


def _build_kernel() -> None:
    with KernelBuilder() as builder:
        builder.build([_request()])


def _store_kernel() -> None:
    library = Path(tempfile.mkdtemp()) / "kernel.so"
    library.write_bytes(os.urandom(1 << 18))
    KernelCache().store(_request(), library)
    shutil.rmtree(library.parent)


def _compile_runtime_objects() -> None:
    runtime_objects.runtime_objects(Target.parse("cpu"))


USES = [_build_kernel, _store_kernel, _compile_runtime_objects, cuda_driver_stub._stub]


@pytest.fixture(scope="module")
def mounted() -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk with the given options; skips where that is not allowed."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="tkc-test-disk-"))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            folder.rmdir()
            pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def _refused(use: Callable[[], object], folder: Path, reason: str) -> None:
    with pytest.raises(tkc.CacheError) as refusal:
        use()
    message = str(refusal.value)
    assert str(folder) in message and reason in message and "TKC_CACHE_DIR" in message
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("below", ["", "cache", "deep/cache"])
def test_a_file_where_the_folder_should_be(
    use: Callable[[], object], below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Itself, or one of those that it is to be in."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "file" / below))
    _refused(use, tmp_path / "file", os.strerror(errno.ENOTDIR))
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.daily(1)
@pytest.mark.parametrize("use", USES)
def test_a_full_disk(
    use: Callable[[], object], mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether TKC, the compiler or a builder process finds that it is; nothing is left on it."""
    disk = mounted("size=4k")
    monkeypatch.setenv("TKC_CACHE_DIR", str(disk))
    _refused(use, disk, os.strerror(errno.ENOSPC))
    assert not [path for path in disk.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("use", USES)
def test_a_read_only_disk(
    use: Callable[[], object], mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a container's image is."""
    disk = mounted("size=16k,ro")
    monkeypatch.setenv("TKC_CACHE_DIR", str(disk / "cache"))
    _refused(use, disk, os.strerror(errno.EROFS))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_whatever_the_system_answers(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no disk can be mounted, and permissions bind nobody."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "kernels"))

    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    _refused(_build_kernel, tmp_path, os.strerror(number))
    with pytest.raises(OSError, match="g\\+\\+"), cache.writing_to(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/usr/bin/g++")


def test_a_kernel_that_does_not_build_is_no_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own words stay."""
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path))
    (tmp_path / "broken.cc").write_text("this is no code")
    with pytest.raises(RuntimeError, match="this is no code"):
        compiled_once.compiled_once(tmp_path / "broken.cc")


def test_the_command_says_it_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 2: the setting is the user's."""
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(3),)), tmp_path / "relu.pt2")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TKC_CACHE_DIR", str(tmp_path / "file"))
    errors = tkc_command("compile", tmp_path / "relu.pt2", "-o", tmp_path / "relu.tkc", code=2).stderr
    assert str(tmp_path / "file") in errors.replace("\n", "") and "TKC_CACHE_DIR" in errors
    assert not (tmp_path / "relu.tkc").exists()
