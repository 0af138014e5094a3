"""Code generation: the toolchain, and the shared library of a scheduled model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.child import ChildStuckError, can_fork, in_child
from tkc.kernels import Target

if TYPE_CHECKING:
    from tvm import IRModule


GENERATE_CODE = "generate code"
_LOG = logging.getLogger(__name__)


def prepare_toolchain(target: Target) -> None:
    """Make sure that this process can generate code for ``target``; :class:`tkc.TargetError` names what is missing."""
    from tkc.builder import toolchain

    toolchain.cxx()
    if target.is_cuda:
        from tkc.builder import generated_cuda
        from tkc.builder.cuda_driver_stub import ensure_cuda_runtime

        os.environ["PATH"] = f"{Path(toolchain.nvcc()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        ensure_cuda_runtime()
        generated_cuda.register()


def export_code(module: IRModule, target: Target, path: Path) -> None:
    """:func:`write_code` in a process of its own: LLVM ends the one that it runs in where it finds itself in error."""
    if not can_fork():
        write_code(module, target, path)
        return
    # What the child would load or look up first, it would for every compilation anew; it would also be taken for stuck
    # while it waited for what is compiled here.
    from tkc.schedules.lowering import pipeline as lowering  # noqa: F401

    _linked_objects(module, target)
    try:
        in_child(lambda: write_code(module, target, path))
    except ChildStuckError:
        _LOG.warning("code generation was stuck in a process of its own, and is done in this one")
        write_code(module, target, path)


def write_code(module: IRModule, target: Target, path: Path) -> None:
    """Write the shared library of ``module``, whose functions are scheduled, to ``path``."""
    vm_executable(module, target).export_library(str(path), addons=_linked_objects(module, target))


def _linked_objects(module: IRModule, target: Target) -> list[str]:
    """The object files of what the code of ``module`` calls."""
    from tvm import relax

    from tkc.builder.runtime_objects import runtime_objects
    from tkc.passes.graph.branches import calls_control_flow, calls_products

    functions = [function for function in module.functions.values() if isinstance(function, relax.Function)]
    return runtime_objects(
        target,
        control_flow=any(map(calls_control_flow, functions)),
        product_lanes=product_lanes(target) if any(map(calls_products, functions)) else None,
    )


def product_lanes(target: Target) -> int:
    """The floats of a vector, for the products that are compiled beside generated code."""
    from tvm.target import codegen

    from tkc.schedules.target import tvm_target, vector_lanes

    generated_for = tvm_target(target)
    lanes = vector_lanes(generated_for, "float32")
    has = {name: codegen.llvm_cpu_has_features(name, generated_for) for name in ("avx2", "fma", *_AVX512)}
    if lanes >= 16 and all(has.values()):
        return 16
    return 8 if has["avx2"] and has["fma"] else 4


_AVX512 = ("avx512f", "avx512dq", "avx512bw", "avx512vl")


def vm_executable(module: IRModule, target: Target) -> Any:
    """The generated code of ``module``, as Relax's virtual machine runs it."""
    from tvm import relax

    from tkc.schedules.lowering.pipeline import LOWERING
    from tkc.schedules.target import generation_target

    generated_for = generation_target(target)
    with generated_for:
        # The pipeline has run: what is left is code generation.
        return relax.build(module, target=generated_for, relax_pipeline=None, tir_pipeline=LOWERING)
