"""Builds kernels that are calls of a library: host code alone, without TileLang and without machine code of ours."""

from __future__ import annotations

from pathlib import Path

from tkc.builder import toolchain
from tkc.builder.compiled_once import compiled_once
from tkc.builder.host_code import compile_host_code
from tkc.kernels import KernelRequest
from tkc.kernels.library_calls import LIBRARIES, WORKSPACE_BYTES, Library

_SOURCE = Path(__file__).with_name("cublaslt.cc")
_DTYPES = {"float16": "kDLFloat", "bfloat16": "kDLBfloat"}


def compile_library_call(request: KernelRequest, library: Path) -> None:
    """Build ``library``, whose function takes the tensors of the ``request``'s kernel and calls cuBLASLt.

    Raises :class:`TypeError` for a kernel that is no matmul; whatever a compiler raises.
    """
    if request.kernel != "matmul":
        raise TypeError(f"{request.kernel} has no configuration that calls {request.configuration}")
    described = library.with_suffix(".cc")
    described.write_text(_described(request, LIBRARIES[request.configuration.library]))
    shared = compiled_once(_SOURCE, [toolchain.cuda_home() / "include"], [toolchain.nvcc()])
    sources = [str(described), str(shared), str(toolchain.cudart())]
    compile_host_code(["-O2", "-shared", *sources, "-ldl"], library)


def _described(request: KernelRequest, library: Library) -> str:
    """C++ that defines what cublaslt.h declares, and the function that the library exports."""
    p = request.parameters
    flags = ", ".join(str(flag).lower() for flag in (p.weight_layout == "nk", p.bias, p.residual))
    return f"""#include "{_SOURCE.with_suffix(".h")}"

namespace tkc {{
const Matmul matmul = {{
    "{request.kernel}", {p.n}, {p.k}, {{{_DTYPES[p.dtype]}, 16, 1}}, {flags}, {WORKSPACE_BYTES}}};
const char* const library_names[] = {{{", ".join(f'"{name}"' for name in library.sonames)}, nullptr}};
const char* const library_cure = "{library.cure}";
}}  // namespace tkc

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_{request.symbol}(
    void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {{
  return tkc::CallMatmul(args, num_args);
}}
"""
