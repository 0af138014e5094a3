"""Convolutions by PyTorch's library on the CPU, called by generated code.

Generated code calls :data:`~tkc.contracts.CONVOLVE` with a description, in JSON, an image ``[batch, ..., channels]``
and a weight ``[out, channels / groups, ...]`` of float32, and gets ``[batch, ..., out]``. A description is
``{"strides": [...], "padding": [...], "dilation": [...], "groups": n, "transposed": ..., "output_padding": [...],
"is_constant": ...}``; the last says whether the weight is a constant, or a parameter that the model does not update.
Weights of transposed convolutions are ``[channels, out / groups, ...]``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from tkc.errors import OutOfMemoryError
from tkc.runtime.input_checks import aligned

Packed = dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]]
"""Weights as oneDNN wants them, by the description and the address of the weight, which is kept beside it: nothing else
can have its address meanwhile."""

_Convolution = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def convolve(packed: Packed | None, description: str, image: Any, weight: Any) -> torch.Tensor:
    """What the description says of ``image`` and ``weight``.

    Weights are packed once, in ``packed``, where they cannot change; ``None`` stands for weights that their owner may
    change. Raises :class:`OutOfMemoryError`.
    """
    plain, fast, is_constant = _prepared(description)
    last, given = from_dlpack(image), from_dlpack(weight)
    second = last.movedim(-1, 1)
    try:
        with torch.no_grad():
            if packed is None or not is_constant or fast is None or last.numel() == 0:
                return aligned(plain(second, given).movedim(1, -1))
            key = description, given.data_ptr()
            pack, packed_convolution = fast
            if key not in packed:
                packed[key] = pack(second, given), given
            return aligned(packed_convolution(second, packed[key][0]).movedim(1, -1))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"there is not enough memory for a convolution: {error}") from error


@functools.lru_cache(maxsize=4096)
def _prepared(description: str) -> tuple[_Convolution, tuple[_Convolution, _Convolution] | None, bool]:
    """The convolution; where PyTorch has oneDNN, packing and the convolution of packed weights; whether to pack."""
    call = json.loads(description)
    strides, padding, dilation, groups = (call[name] for name in ("strides", "padding", "dilation", "groups"))
    transposed, extra = call["transposed"], call["output_padding"]

    def plain(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.convolution(image, weight, None, strides, padding, dilation, transposed, extra, groups)

    def pack(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shape = list(image.shape)
        packed: torch.Tensor = _onednn()._reorder_convolution_weight(weight, padding, strides, dilation, groups, shape)
        return packed

    def of_packed(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _onednn()._convolution_pointwise(
            image, weight, None, padding, strides, dilation, groups, "none", [], ""
        )
        return found

    # Packing the weights of a transposed convolution gains nothing.
    fast = (pack, of_packed) if _has_onednn() and len(strides) > 1 and not transposed else None
    return plain, fast, bool(call["is_constant"])


def _onednn() -> Any:
    return torch.ops.mkldnn


@functools.cache
def _has_onednn() -> bool:
    """Whether PyTorch has the operators that its own compiler calls for frozen weights."""
    names = ("_reorder_convolution_weight", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(_onednn(), name) for name in names)
