"""Lets TVM make CUDA machine code on a machine without a CUDA driver.

TVM serializes cubins only when its CUDA runtime library loads, and that library needs ``libcuda.so.1`` (and cudart);
without it, TVM keeps CUDA source, which would have to be compiled where the model runs. A stub of the driver that
defines the functions the library imports, and fails when one is called, is enough to load it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tkc.builder import toolchain
from tkc.builder.cache import cache_folder, touch, writing_to

# What libtvm_runtime_cuda.so of apache-tvm 0.25 imports from libcuda.so.1 (`nm -D --undefined-only`).
_DRIVER_FUNCTIONS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_CUDA_ERROR_STUB_LIBRARY = 34  # cudaErrorStubLibrary, what NVIDIA's own stubs return


@cache
def ensure_cuda_runtime() -> None:
    """Load TVM's CUDA runtime library, over a stub of the driver if the machine has none.

    Raises :class:`tkc.errors.TargetError` where no C++ compiler or no CUDA runtime library is found.
    """
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(str(_stub()), mode=ctypes.RTLD_GLOBAL)
    try:
        ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(str(toolchain.cudart()), mode=ctypes.RTLD_GLOBAL)
    spec = importlib.util.find_spec("tvm")
    assert spec is not None and spec.origin is not None
    import tvm  # the runtime library below needs the libraries that this import loads

    del tvm
    ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtvm_runtime_cuda.so"), mode=ctypes.RTLD_GLOBAL)


def _stub() -> Path:
    library = cache_folder() / "libcuda-stub" / "libcuda.so.1"
    if library.exists():
        touch(library)
        return library
    source = "".join(f"int {name}(void) {{ return {_CUDA_ERROR_STUB_LIBRARY}; }}\n" for name in _DRIVER_FUNCTIONS)
    with writing_to(library.parent), tempfile.TemporaryDirectory(dir=library.parent) as folder:
        code, built = Path(folder) / "stub.c", Path(folder) / library.name
        code.write_text(f'extern "C" {{\n{source}}}\n')
        command = [
            toolchain.cxx(),
            "-x",
            "c++",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcuda.so.1",
            str(code),
            "-o",
            str(built),
        ]
        subprocess.run(command, check=True, capture_output=True)
        built.rename(library)
    return library
