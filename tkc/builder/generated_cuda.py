"""Runs nvcc on the CUDA that TVM generates, with the arithmetic of IEEE 754 that PyTorch's own kernels have.

TVM's own call of it says ``--use_fast_math``: approximate divisions, square roots, exponentials, logarithms and
hyperbolic tangents (``tanh(2)`` off by 2e-6), sines that are wrong outside a few periods, and no subnormal numbers.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tkc.builder import toolchain
from tkc.builder.machine_code import code_key, store_code, stored_code

# TVM writes its vectors of 16-bit floats with the operators that some CUDA headers take away.
OPTIONS = (
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--ptxas-options=--register-usage-level=10",
)
"""Of nvcc, for every source."""


def compile_generated(source: str, arch: str) -> bytes:
    """The fat binary of CUDA ``source`` for ``arch``, such as ``sm_90a``; of equal source the one that is stored.

    Raises ``RuntimeError`` with the source and nvcc's words if it does not compile.
    """
    number = arch.removeprefix("sm_")
    arguments = ["--fatbin", f"-gencode=arch=compute_{number},code=sm_{number}", *OPTIONS]
    key = code_key(source, arguments)
    binary = stored_code(key)
    if binary is None:
        binary = _compiled(source, arguments)
        store_code(key, binary)
    return binary


def _compiled(source: str, arguments: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tkc-nvcc-") as folder:
        text, binary = Path(folder) / "tvm_kernels.cu", Path(folder) / "tvm_kernels.fatbin"
        text.write_text(source)
        command = [toolchain.nvcc(), *arguments, "-o", str(binary), str(text)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"{source}\nCompilation error:\n{done.stdout}")
        return binary.read_bytes()


def register() -> None:
    """Have TVM compile CUDA by :func:`compile_generated`, for the target that it generates code for."""
    import tvm.support.nvcc
    import tvm_ffi

    def compile_cuda(source: str) -> bytes:
        return compile_generated(source, str(tvm.target.Target.current().arch))

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_cuda, override=True)
