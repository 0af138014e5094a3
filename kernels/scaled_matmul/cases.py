"""FP8 matmuls with block scales worth measuring: the layers of DeepSeek-V3, and a square."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tkc.kernels.cases import FamilyCases, of, shape_of
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.spec import TensorType

if TYPE_CHECKING:
    import torch

_case = of("matmul.scaled")
_BENCHMARKED = (
    (4096, 4096, (4096,)),
    (7168, 4096, (8192,)),
    (7168, 2048, (16, 128, 4096, 65536)),
    (4096, 7168, (16, 128, 4096, 65536)),
    (24576, 1536, (16, 128, 4096)),
)
_TUNED = ((4096, 4096), (7168, 2048), (4096, 7168), (24576, 1536))
_ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 8192)


def _input(
    parameters: ScaledMatmulParameters, tensor: TensorType, sizes: Mapping[str, int], device: torch.device
) -> torch.Tensor | None:
    """Scales are positive."""
    import torch

    return torch.rand(shape_of(tensor, sizes), device=device) + 0.5 if tensor.name.endswith("_scale") else None


CASES = FamilyCases(
    benchmarked=tuple(_case(ScaledMatmulParameters(n, k), {"m": m}) for n, k, rows in _BENCHMARKED for m in rows),
    tuned=tuple(_case(ScaledMatmulParameters(n, k), {"m": m}) for n, k in _TUNED for m in _ROWS),
    checked=(_case(ScaledMatmulParameters(136, 272), {"m": 3}),),
    told=("n", "k"),
    make_input=_input,
)
