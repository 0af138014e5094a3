"""What launches the CUDA kernels of a library: code that all libraries share, and the description of one's kernels."""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from tkc.builder import toolchain
from tkc.builder.cache import cache_folder
from tkc.builder.host_code import compile_host_code

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("launch.cc", "launch.h"))
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
_TENSOR_MAP = "uint8x128"  # how TileLang types the 128 bytes of a TMA descriptor


def launcher_object() -> Path:
    """``launch.cc`` as an object file, compiled by whichever process first needs it.

    Compiling it takes longer than the rest of a library's host code, and nothing in it depends on the kernel.
    """
    made_from = [source.read_text() for source in _SOURCES]
    made_from += [toolchain.version(toolchain.cxx()), toolchain.version(toolchain.nvcc())]
    made_from.append(importlib.metadata.version("apache-tvm-ffi"))
    folder = cache_folder() / "launcher"
    stored = folder / f"{hashlib.sha256(repr(made_from).encode()).hexdigest()[:32]}.o"
    if not stored.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(stored.with_suffix(".lock")):
            if not stored.exists():
                _compile_launcher(stored)
    return stored


def _compile_launcher(stored: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=stored.parent) as scratch:
        built = Path(scratch) / stored.name
        compile_host_code(["-O2", "-c", str(_SOURCES[0])], built, [toolchain.cuda_home() / "include"])
        built.rename(stored)


def described(device_module: Any, cubin: Path) -> str:
    """C++ that defines what launch.h declares: the lowered device functions, and the machine code in ``cubin``."""
    declared = []
    rows = []
    for i, function in enumerate(device_module.functions.values()):
        params = [_param_kind(var) for var in function.params]
        tags = [_LAUNCH_TAGS[str(tag)] for tag in function.attrs["tirx.kernel_launch_params"]]
        if _WAITS_FOR_PREVIOUS in function.attrs:
            tags.append("kProgrammaticDependentLaunch")
        declared.append(f"const Param kParams{i}[] = {{{_members('Param', params)}}};")
        declared.append(f"const Launch kTags{i}[] = {{{_members('Launch', tags)}}};")
        rows.append(f'    {{"{function.attrs["global_symbol"]}", kParams{i}, {len(params)}, kTags{i}, {len(tags)}}},')
    return "\n".join(
        [
            f'#include "{_SOURCES[1]}"',
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
            "",
        ]
    )


def _members(enumeration: str, names: list[str]) -> str:
    return ", ".join(f"{enumeration}::{name}" for name in names)


def _param_kind(var: Any) -> str:
    if var.dtype == "handle":
        return "kTensorMap" if _TENSOR_MAP in str(var.type_annotation) else "kPointer"
    kinds = {"float32": "kFloat32", "float64": "kFloat64"}
    return kinds.get(str(var.dtype), "kInteger")
