"""Which instruction sets this machine's CPU has, by LLVM's names."""

from __future__ import annotations


def cpu_features() -> frozenset[str]:
    """The features that code generated for this CPU may use (``avx2``, ``avx512f``, …)."""
    import tvm

    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(name) for name, present in features.items() if present)
