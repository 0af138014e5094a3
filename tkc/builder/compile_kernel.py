"""Turns one kernel into one shared library; runs in the builder process, the only one with TileLang."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilelang import tvm
from tilelang.backend.module import create_backend_context
from tilelang.contrib.nvcc import compile_cuda
from tilelang.engine.lower import device_codegen_without_compile, host_codegen, lower_to_host_device_ir
from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

from tkc.builder import toolchain
from tkc.builder.async_proxy import fenced_arrivals
from tkc.builder.compiled_once import compiled_once
from tkc.builder.dependent_launch import awaiting_previous_kernel
from tkc.builder.host_code import compile_host_code
from tkc.builder.launcher import ZERO, described, launcher_object, stub_flags
from tkc.builder.library_call import compile_library_call
from tkc.contracts import GLOBAL_SYMBOL
from tkc.kernels import KernelRequest, TensorType
from tkc.kernels.library_calls import LibraryCall
from tkc.kernels.overlap import FIRST_CAPABILITY

_ARGUMENTS = Path(__file__).with_name("arguments.cc")
_PRODUCT_TILE = Path(__file__).with_name("product_tile.h")
# TileLang's header of half-precision numbers takes longer to compile than most kernels, and few have such numbers.
_NO_HALF = "#define HALF_HALF_HPP\nnamespace half_float { class half; }\n"
_FENCED_ARRIVALS = tvm.tirx.transform.prim_func_pass(lambda function, *_: fenced_arrivals(function), opt_level=0)


def compile_kernel(request: KernelRequest, folder: Path) -> Path:
    """Build the request's kernel in ``folder`` and return the library, which exports ``request.symbol``.

    The function takes the spec's inputs, outputs and workspaces as tensors. Raises whatever TileLang or a
    compiler raises; the caller turns it into an error for the user.
    """
    library = folder / f"{request.symbol}.so"
    if isinstance(request.configuration, LibraryCall):
        compile_library_call(request, library)
        return library
    definition = importlib.import_module(request.spec.definition_module)
    function = definition.define(request.parameters, request.configuration, request.target)
    function = function.with_attr(GLOBAL_SYMBOL, request.symbol)
    if request.target.is_cuda:
        _compile_cuda(function, request, library)
    else:
        _compile_cpu(function, request, library)
    return library


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel's modules for the host and for the device, and the CUDA code of the latter."""

    host_module: Any
    device_module: Any
    context: Any
    source: str


def lower_cuda(function: Any, request: KernelRequest) -> LoweredKernel:
    """The CUDA code of a request's ``function``; needs no compiler and no GPU."""
    if request.target.compute_capability >= FIRST_CAPABILITY:
        function = awaiting_previous_kernel(function)
    target = tvm.target.Target({"kind": "cuda", "arch": request.target.generated_arch})
    with target:
        context = create_backend_context(target, None, "auto")
        host_module, device_module, *_ = lower_to_host_device_ir(function, context)
        device_module = _FENCED_ARRIVALS(device_module)
        source = device_codegen_without_compile(device_module, context).inspect_source()
    return LoweredKernel(host_module, device_module, context, source)


def _compile_cuda(function: Any, request: KernelRequest, library: Path) -> None:
    toolchain.nvcc()
    with ThreadPoolExecutor(1) as background:
        launcher = background.submit(launcher_object)  # needed last, and only the first time long in coming
        lowered = lower_cuda(function, request)
        # What the definition asked for by T.annotate_compile_flags; lowering leaves that to its caller.
        flags = [str(flag) for flag in function.attrs.get("tilelang_compile_flags", ())]
        # Not by TileLang's own step: its cache does not know which compiler made the machine code, and it asks for
        # C++20, in which the headers take a tenth to a fifth of the time longer.
        headers = [f"-I{folder}" for folder in (TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR)]
        options = ["-std=c++17", *headers, *flags]
        with lowered.context.target:
            machine_code = compile_cuda(lowered.source + ZERO, "cubin", [f"-arch={request.target.arch}"], options)
            host_code = host_codegen(lowered.host_module, lowered.context).inspect_source()
    stub, cubin, description = (library.with_suffix(suffix) for suffix in (".c", ".cubin", ".cc"))
    stub.write_text(host_code)
    cubin.write_bytes(machine_code)
    description.write_text(described(request.symbol, lowered.device_module, cubin))
    flags = ["-O2", "-shared", *stub_flags(request.symbol)]
    sources = ["-x", "c++", str(stub), str(description), "-x", "none"]
    compile_host_code([*flags, *sources, str(launcher.result()), str(toolchain.cudart())], library)


def _compile_cpu(function: Any, request: KernelRequest, library: Path) -> None:
    target = tvm.target.Target("c")
    with ThreadPoolExecutor(1) as background, target:
        checks = background.submit(compiled_once, _ARGUMENTS)  # needed last, and only the first time long in coming
        context = create_backend_context(target, None, "auto")
        _, device_module, *_ = lower_to_host_device_ir(function, context)
        # The lowered function's parameters are named after the definition's buffers and sizes.
        (device_function,) = device_module.functions.values()
        parameter_names = [var.name for var in device_function.params]
        name = next(iter(device_module.functions.keys())).name_hint
        source = device_codegen_without_compile(device_module, context).inspect_source()
    buffers = [function.buffer_map[var] for var in function.params]
    code = library.with_suffix(".cc")
    prologue = f'#include "{_PRODUCT_TILE}"\n' + ("" if "half" in source else _NO_HALF)
    code.write_text(prologue + source + _cpu_entry(request, name, parameter_names, buffers))
    # TileLang reinterprets values through pointers of another type, hence no strict aliasing.
    flags = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
    sources = [str(code), str(checks.result())]
    compile_host_code([*flags, "-shared", *sources], library, [Path(TILELANG_TEMPLATE_PATH)])


def _cpu_entry(request: KernelRequest, name: str, parameter_names: Sequence[str], buffers: Sequence[Any]) -> str:
    """C++ that says which tensors the spec wants, has them checked, and passes addresses and sizes to the kernel."""
    spec, parameters = request.spec, request.parameters
    types = (
        *spec.inputs(parameters),
        *spec.outputs(parameters),
        *spec.workspaces(parameters, request.configuration),
    )
    if len(types) != len(buffers):
        raise TypeError(f"{request.kernel}: the definition takes {len(buffers)} tensors, the spec lists {len(types)}")
    names = [buffer.name for buffer in buffers]
    if len(set(names)) != len(names):
        raise TypeError(f"{request.kernel}: the definition gives several tensors one name: {', '.join(names)}")
    values: dict[str, str] = {}
    for i, buffer in enumerate(buffers):
        values[buffer.name] = f"found[{i}]->data"
        for axis, extent in enumerate(buffer.shape):
            if isinstance(extent, tvm.tirx.Var):
                values.setdefault(extent.name, f"static_cast<int32_t>(found[{i}]->shape[{axis}])")
    arguments = ", ".join(f"Argument({values[parameter]})" for parameter in parameter_names)
    tensors = ",\n".join(f"    {_described(tensor, i)}" for i, tensor in enumerate(types))
    axes = "\n".join(_axes(i, tensor, types) for i, tensor in enumerate(types) if tensor.shape)
    return f"""
#include "{_ARGUMENTS.with_suffix(".h")}"

namespace tkc {{
{axes}
const char* const kernel = "{request.kernel}";
const Tensor tensors[] = {{
{tensors},
}};
const int num_tensors = {len(types)};
}}  // namespace tkc

namespace {{
struct Argument {{  // an address of any element type, or a size
  explicit Argument(void* address) : address(address) {{}}
  explicit Argument(int32_t size) : size(size) {{}}
  template <typename T> operator T*() const {{ return static_cast<T*>(address); }}
  operator int32_t() const {{ return size; }}
  void* address = nullptr;
  int32_t size = 0;
}};
}}  // namespace

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_{request.symbol}(
    void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {{
  const DLTensor* found[{len(types)}];
  if (tkc::ReadArguments(args, num_args, found) != 0) return -1;
  {name}({arguments});
  return 0;
}}
"""


def _described(tensor: TensorType, index: int) -> str:
    dtype = tvm.DataType(tensor.dtype)
    axes = f"kAxes{index}" if tensor.shape else "nullptr"
    return f'{{"{tensor.name}", {{{int(dtype.type_code)}, {dtype.bits}, 1}}, {axes}, {len(tensor.shape)}}}'


def _axes(index: int, tensor: TensorType, types: Sequence[TensorType]) -> str:
    sizes = [f"{{{dim}, 0, 0}}" if isinstance(dim, int) else _first_size(dim, types) for dim in tensor.shape]
    return f"const Axis kAxes{index}[] = {{{', '.join(sizes)}}};"


def _first_size(name: str, types: Sequence[TensorType]) -> str:
    places = ((i, axis) for i, t in enumerate(types) for axis, dim in enumerate(t.shape) if dim == name)
    return "{{-1, {}, {}}}".format(*next(places))
