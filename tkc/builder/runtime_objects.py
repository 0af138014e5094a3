"""What is linked into the generated code of every model: C++ of ours that it calls when it runs."""

from __future__ import annotations

from pathlib import Path

from tkc.builder.compiled_once import compiled_once
from tkc.kernels import Target

_FOLDER = Path(__file__).parent


def runtime_objects(target: Target, *, control_flow: bool = False) -> list[str]:
    """The object files for ``target``: where CPU code has its threads from, where CUDA code its memory; and what
    chooses among functions of the program, repeats them and checks what it asserts, if it has ``control_flow``.

    Raises :class:`tkc.TargetError` where there is no C++ compiler, ``RuntimeError`` with its words if it fails.
    """
    sources = ["device_memory.cc" if target.is_cuda else "parallel.cc"]
    if control_flow:
        sources.append("control_flow.cc")
    return [str(compiled_once(_FOLDER / source)) for source in sources]
