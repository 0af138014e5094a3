"""CUDA code as it is generated, without the time that nvcc takes for it."""

from __future__ import annotations

import pytest

from tkc.builder import generated_cuda
from tkc.compiler import code


def generated_sources(patch: pytest.MonkeyPatch) -> list[str]:
    """A list to which each compilation from now on adds its CUDA source; what is compiled cannot run."""
    sources: list[str] = []

    def seen(source: str, _: str) -> bytes:
        sources.append(source)
        return bytes(1)

    patch.setattr(generated_cuda, "compile_generated", seen)
    patch.setattr(code, "can_fork", lambda: False)  # a child would keep them to itself
    return sources
