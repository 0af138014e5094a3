"""Where the C++ and CUDA compilers are, and what to say where they are not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tkc.errors import TargetError


@cache
def cxx() -> str:
    """The C++ compiler: ``$CXX``, else g++, else clang++; :class:`TargetError` if there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise TargetError("no C++ compiler found; install g++ (Debian: apt install g++) or set CXX to one")


@cache
def cuda_home() -> Path:
    """The CUDA toolkit: ``$CUDA_HOME``, nvcc's own, /usr/local/cuda, or the ``nvidia-cuda-nvcc`` wheel's."""
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    if on_path := shutil.which("nvcc"):
        candidates.append(str(Path(on_path).resolve().parents[1]))
    candidates.append("/usr/local/cuda")
    wheel = importlib.util.find_spec("nvidia")
    for location in (wheel.submodule_search_locations or []) if wheel else []:
        candidates.extend(str(folder) for folder in sorted(Path(location).glob("cu*"), reverse=True))
    for candidate in candidates:
        folder = Path(candidate or "")
        if candidate and (folder / "bin" / "nvcc").exists() and (folder / "include" / "cuda.h").exists():
            return folder
    raise TargetError(
        "no CUDA compiler found; install the CUDA toolkit 13 and put nvcc on the PATH, set CUDA_HOME, "
        "or `pip install nvidia-cuda-nvcc nvidia-cuda-runtime`"
    )


def nvcc() -> str:
    """The CUDA compiler; :class:`TargetError` if there is none."""
    return str(cuda_home() / "bin" / "nvcc")


def cudart() -> Path:
    """The CUDA runtime library of the toolkit, to link against and to load; :class:`TargetError` if there is none."""
    home = cuda_home()
    for pattern in ("lib64/libcudart.so", "lib/libcudart.so", "lib*/libcudart.so.*"):
        if found := sorted(home.glob(pattern)):
            return found[-1]
    raise TargetError(f"no libcudart.so under {home}; install the CUDA runtime (`pip install nvidia-cuda-runtime`)")


@cache
def version(compiler: str) -> str:
    """What ``compiler --version`` prints last that has a digit, for cache keys and reports."""
    output = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    lines = [line for line in output.splitlines() if any(c.isdigit() for c in line)]
    if not lines:
        return "unknown"
    return lines[0] if "nvcc" not in compiler else lines[-1]
