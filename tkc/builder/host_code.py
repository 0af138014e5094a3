"""Runs the C++ compiler on the host's part of a kernel library, or of generated code."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi.libinfo

from tkc.builder import toolchain


def compile_host_code(arguments: Sequence[str], output: Path, includes: Sequence[Path] = ()) -> None:
    """Call the compiler with ``arguments``, and TVM's headers beside ``includes``, to make ``output``.

    Raises ``RuntimeError`` with the end of what it printed if it fails.
    """
    # TileLang's bundle has TVM's C headers, which its host stubs include. It is found without an import: the compiler
    # compiles here, too, and cannot load TileLang beside Apache TVM.
    tilelang = importlib.util.find_spec("tilelang")
    bundled = Path((tilelang and tilelang.origin) or "").parent / "3rdparty" / "tvm" / "include"
    command = [
        toolchain.cxx(),
        "-std=c++17",
        "-fPIC",
        "-w",
        # Error messages carry __FILE__; without the scratch folder's name in it, equal kernels are equal bytes.
        f"-ffile-prefix-map={output.parent}=.",
        *(f"-I{path}" for path in (bundled, *tvm_ffi.libinfo.include_paths(), *includes)),
        *arguments,
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
