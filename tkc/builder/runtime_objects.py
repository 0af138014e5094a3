"""What is linked into the generated code of every model: C++ of ours that it calls when it runs."""

from __future__ import annotations

from pathlib import Path

from tkc.builder.compiled_once import compiled_once
from tkc.kernels import Target

_FOLDER = Path(__file__).parent


# By the floats of a vector register. Sums may be fused with products, as PyTorch's are.
_VECTORS = {
    16: ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"),
    8: ("-mavx2", "-mfma"),
    4: (),
}


def runtime_objects(target: Target, *, control_flow: bool = False, product_lanes: int | None = None) -> list[str]:
    """The object files for ``target``: where CPU code has its threads from, where CUDA code its memory; what
    chooses among functions of the program, repeats them and checks what it asserts, if it has ``control_flow``; and
    what convolves and multiplies by weights, where it does that in vectors of ``product_lanes`` floats (16 with
    AVX-512, 8 with AVX2 and FMA, 4).

    Raises :class:`tkc.TargetError` where there is no C++ compiler, ``RuntimeError`` with its words if it fails.
    """
    sources = ["device_memory.cc" if target.is_cuda else "parallel.cc"]
    if control_flow:
        sources.append("control_flow.cc")
    objects = [str(compiled_once(_FOLDER / source)) for source in sources]
    if product_lanes is not None:
        options = ("-O3", f"-DTKC_LANES={product_lanes}", *_VECTORS[product_lanes])
        objects.append(str(compiled_once(_FOLDER / "products.cc", options=options)))
    return objects
