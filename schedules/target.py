"""What TVM generates code for: its own target object, with the limits that schedule rules ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import tvm
from tvm import tirx
from tvm.target import codegen

from tkc.kernels.devices import STATIC_SHARED_MEMORY, WARP, Device
from tkc.kernels.target import Target

# LLVM's own vectorizer takes a loop over `x[i % 4]` for one over `x[i]`, behind a check that `i % 4` does not wrap; the
# check is made in two bits, and passes where the length is a multiple of 4: wrong numbers. Schedules vectorize what is
# worth it: eight models and ten other operators take 0.986 to 1.009 of the time without it.
_ONLY_VECTORS_OF_SCHEDULES = "-vectorize-loops:bool=0"

# By LLVM's names of instruction sets, the widest first.
_BFLOAT16_PRODUCTS = ("avx512bf16", "amx-bf16")
_X86_VECTORS = ((512, "avx512f"), (256, "avx"), (128, "sse2"))


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's target for ``target``; for a GPU with this machine's CPU as the host.

    Sums may be reordered on the CPU (``fast-math-reassoc``), as in every BLAS; infinities and NaNs keep their meaning.
    """
    if not target.is_cuda:
        return _cpu()
    return tvm.target.Target({"kind": "cuda", "arch": target.arch, **_limits(target.device)}, host=_cpu())


def is_gpu_code(func: object) -> bool:
    """Whether ``func`` is a function of a lowered module that is to run on a GPU."""
    target = (func.attrs or {}).get("target") if isinstance(func, tirx.PrimFunc) else None
    return target is not None and target.kind.name == "cuda"


def generation_target(target: Target) -> tvm.target.Target:
    """:func:`tvm_target`, for the step that makes machine code of scheduled functions.

    For a GPU LLVM makes only what launches kernels: checks of arguments, some 700 lines of its IR a function. To
    optimize these takes longer than nvcc takes for the kernels, and saves a call no time that can be measured.
    """
    if not target.is_cuda:
        return tvm_target(target)
    return tvm_target(target).with_host(_cpu({"opt-level": 0}))


def _limits(device: Device) -> dict[str, int]:
    """What schedule rules ask of a target. TVM's launcher does not ask the driver for more shared memory."""
    return {
        "max_threads_per_block": device.threads,
        "max_shared_memory_per_block": STATIC_SHARED_MEMORY,
        "registers_per_block": device.registers,
        "thread_warp_size": WARP,
    }


def vector_bits(target: tvm.target.Target) -> int:
    """Bits of a vector register. TVM 0.25 says 512 of every x86 CPU; tiles of that size do not stay in registers."""
    for bits, feature in _X86_VECTORS:
        if codegen.llvm_cpu_has_features(feature, target):
            return bits
    return int(codegen.llvm_get_vector_width(target))


def multiplies_bfloat16(target: tvm.target.Target) -> bool:
    """Whether a CPU has instructions that do. Without them oneDNN takes longer than code that multiplies in float32."""
    return any(codegen.llvm_cpu_has_features(feature, target) for feature in _BFLOAT16_PRODUCTS)


def same_vectors(measured_on: Mapping[str, Any], target: tvm.target.Target) -> bool:
    """Whether the CPU of a target, as records describe it, has vector registers as large as that of ``target``."""
    cpu = measured_on.get("mcpu")
    return target.kind.name != "llvm" or cpu in (None, target.attrs["mcpu"]) or _bits_of(cpu) == vector_bits(target)


@cache
def _bits_of(cpu: str) -> int:
    return vector_bits(tvm.target.Target({"kind": "llvm", "mcpu": cpu}))


def vector_lanes(target: tvm.target.Target, dtype: str) -> int:
    """How many numbers of ``dtype`` a vector register holds, one at the least."""
    lanes: int = vector_bits(target) // tvm.DataType(dtype).bits
    return max(lanes, 1)


def _cpu(options: Mapping[str, Any] | None = None) -> tvm.target.Target:
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mcpu": codegen.llvm_get_system_cpu(),
            "num-cores": os.cpu_count() or 1,
            "fast-math-reassoc": True,
            "cl-opt": [_ONLY_VECTORS_OF_SCHEDULES],
            **(options or {}),
        }
    )
