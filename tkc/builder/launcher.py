"""What launches the CUDA kernels of a library: code that all libraries share, and the description of one's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tkc.builder import toolchain
from tkc.builder.compiled_once import compiled_once
from tkc.contracts import GLOBAL_SYMBOL, LAUNCH_PARAMETERS

_SOURCE = Path(__file__).with_name("launch.cc")
_LAUNCH_TAGS = {
    "blockIdx.x": "kGridX",
    "blockIdx.y": "kGridY",
    "blockIdx.z": "kGridZ",
    "threadIdx.x": "kBlockX",
    "threadIdx.y": "kBlockY",
    "threadIdx.z": "kBlockZ",
    "tir.cluster_dim_x": "kClusterX",
    "tir.cluster_dim_y": "kClusterY",
    "tir.cluster_dim_z": "kClusterZ",
    "tirx.use_dyn_shared_memory": "kDynamicSharedMemory",
    "tirx.use_cooperative_launch": "kCooperative",
}
_WAITS_FOR_PREVIOUS = "has_cuda_pdl_sync"  # marks a device function that may be launched before the one before it ends
_STUB = "tkc_stub"
_TENSOR_MAP = "uint8x128"  # how TileLang types the 128 bytes of a TMA descriptor


def launcher_object() -> Path:
    """``launch.cc`` as an object file; nothing in it depends on the kernel."""
    return compiled_once(_SOURCE, [toolchain.cuda_home() / "include"], [toolchain.nvcc()])


# What tensors without elements have in common (launch.cc): device code that every kernel has.
ZERO = 'extern "C" __device__ __align__(64) unsigned char tkc_zero[64] = {};\n'


def described(symbol: str, device_module: Any, cubin: Path) -> str:
    """C++ that defines what launch.h declares, the lowered device functions and the machine code in ``cubin``, and the
    function ``symbol``, which checks arguments before the host stub has them: :func:`stub_flags` renames that."""
    declared = []
    rows = []
    for i, function in enumerate(device_module.functions.values()):
        params = [_param_kind(var) for var in function.params]
        tags = [_LAUNCH_TAGS[str(tag)] for tag in function.attrs[LAUNCH_PARAMETERS]]
        if _WAITS_FOR_PREVIOUS in function.attrs:
            tags.append("kProgrammaticDependentLaunch")
        declared.append(f"const Param kParams{i}[] = {{{_members('Param', params)}}};")
        declared.append(f"const Launch kTags{i}[] = {{{_members('Launch', tags)}}};")
        rows.append(f'    {{"{function.attrs[GLOBAL_SYMBOL]}", kParams{i}, {len(params)}, kTags{i}, {len(tags)}}},')
    return "\n".join(
        [
            f'#include "{_SOURCE.with_suffix(".h")}"',
            "namespace tkc {",
            *declared,
            "const DeviceFunction device_functions[] = {",
            *rows,
            "};",
            f"const size_t num_device_functions = {len(rows)};",
            "}  // namespace tkc",
            "__asm__(",
            r'    ".section .rodata\n.globl tkc_cubin\n.hidden tkc_cubin\n.balign 64\ntkc_cubin:\n"',
            rf'    ".incbin \"{cubin}\"\n.byte 0\n.previous\n");',
            f"#undef {_entry(symbol)}",
            f'extern "C" int32_t {_STUB}(void*, void*, int32_t, void*);',
            f'extern "C" __attribute__((visibility("default"))) int32_t {_entry(symbol)}(',
            "    void* self, void* args, int32_t num_args, void* result) {",
            f"  return TKCCheckArguments(args, num_args) != 0 ? -1 : {_STUB}(self, args, num_args, result);",
            "}",
            "",
        ]
    )


def stub_flags(symbol: str) -> list[str]:
    """What the host stub is compiled with: its functions come from launch.cc, and its own name makes way."""
    return ["-DTVMBackendGetFuncFromEnv=TKCFindFunction", f"-D{_entry(symbol)}={_STUB}"]


def _entry(symbol: str) -> str:
    """The name by which tvm-ffi finds a function."""
    return f"__tvm_ffi_{symbol}"


def _members(enumeration: str, names: list[str]) -> str:
    return ", ".join(f"{enumeration}::{name}" for name in names)


def _param_kind(var: Any) -> str:
    if var.dtype == "handle":
        return "kTensorMap" if _TENSOR_MAP in str(var.type_annotation) else "kPointer"
    kinds = {"float32": "kFloat32", "float64": "kFloat64"}
    return kinds.get(str(var.dtype), "kInteger")
