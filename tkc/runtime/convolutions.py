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
import threading
from collections.abc import Callable
from typing import Any

import torch

from tkc.errors import OutOfMemoryError
from tkc.runtime.input_checks import aligned

_Convolution = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MOST_SHAPES = 8
"""Of images, for which a weight is packed at a time."""

_REMEMBERED = 64  # shapes that came once


class PackedWeight:
    """A weight as oneDNN wants it for images of several shapes: for most, its layout is another one.

    With a weight that was packed for another shape, a convolution brings it to the right layout in each call, which
    takes up to thirty times as long as the convolution. So each shape has its own, from its second call on, and the
    first one at once. Of more than :data:`MOST_SHAPES` that which was packed first goes.
    """

    def __init__(self, plain: torch.Tensor) -> None:
        self.plain = plain
        """As the model has it. It is kept, so that nothing else has its address."""
        self._packed: dict[tuple[int, ...], torch.Tensor] = {}
        self._seen: dict[tuple[int, ...], None] = {}
        self._packing = threading.Lock()

    def of(self, image: torch.Tensor, pack: _Convolution) -> torch.Tensor | None:
        """The weight for ``image``, ``[batch, channels, ...]``; ``None`` for one whose shape may not come again."""
        shape = image.shape[2:]
        found = self._packed.get(shape)
        if found is not None:
            return found
        with self._packing:
            if self._packed and shape not in self._seen:
                self._seen[shape] = None
                _keep_latest(self._seen, _REMEMBERED)
                return None
            packed = pack(image, self.plain)
            layout = _layout(packed)
            packed = next((each for each in self._packed.values() if torch.equal(_layout(each), layout)), packed)
            self._packed[shape] = packed
            _keep_latest(self._packed, MOST_SHAPES)
        return packed


def _keep_latest(values: dict[tuple[int, ...], Any], most: int) -> None:
    if len(values) > most:
        del values[next(iter(values))]


Packed = dict[tuple[str, int], Any]
"""What libraries made of weights, by the description of the call and the weight's address."""


def convolve(packed: Packed | None, description: str, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What the description says of ``image`` and ``weight``.

    Weights are packed, in ``packed``, where they cannot change; ``None`` stands for weights that their owner may
    change. Raises :class:`OutOfMemoryError`.
    """
    plain, fast, is_constant = _prepared(description)
    second = image.movedim(-1, 1)
    try:
        if packed is None or not is_constant or fast is None or image.numel() == 0:
            return aligned(plain(second, weight).movedim(1, -1))
        key = description, weight.data_ptr()
        pack, packed_convolution = fast
        held: PackedWeight = packed.get(key) or packed.setdefault(key, PackedWeight(weight))
        fitting = held.of(second, pack)
        found = plain(second, weight) if fitting is None else packed_convolution(second, fitting)
        return aligned(found.movedim(1, -1))
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


def _layout(packed: torch.Tensor) -> torch.Tensor:
    """oneDNN's description of a packed weight, in bytes."""
    found: torch.Tensor = _onednn()._get_mkldnn_serialized_md(packed)
    return found


def _onednn() -> Any:
    return torch.ops.mkldnn


@functools.cache
def _has_onednn() -> bool:
    """Whether PyTorch has the operators that its own compiler calls for frozen weights."""
    names = ("_reorder_convolution_weight", "_convolution_pointwise", "_get_mkldnn_serialized_md")
    return torch.backends.mkldnn.is_available() and all(hasattr(_onednn(), name) for name in names)
