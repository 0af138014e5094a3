"""What the benchmark of architectures calls models with, by family and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 1024
"""Small: what embeds tokens and what follows the layers is not what architectures differ in."""

PIXELS = 224
"""The side of an image, and of the only images that models with learned positions take."""

_SAMPLES = 160_000  # ten seconds of sound
_FRAMES = 3000  # of a spectrogram: 30 seconds
_SPECTROGRAM = (1024, 128)  # frames, of which models have learned positions, and frequencies


@dataclass(frozen=True)
class Size:
    """How many inputs there are and how large each is; a family has use for some of these."""

    batch: int = 1
    tokens: int = 0
    decoded: int = 0
    height: int = 0
    width: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Family:
    """Models that are called with the same: ``words`` of a size, its ``inputs``, and the ``axes`` that sizes change.

    ``sizes`` are a small one, an odd one and the largest, which is the one of rows that have one size. Each input's
    axes are names of attributes of :class:`Size`, in order.
    """

    sizes: tuple[Size, Size, Size]
    words: Callable[[Size], str]
    inputs: Callable[[Size, torch.device, torch.dtype], dict[str, Any]]
    axes: Mapping[str, Sequence[str | None]]

    @property
    def largest(self) -> Size:
        """The last of ``sizes``."""
        return self.sizes[-1]

    def dynamic_shapes(self, inputs: Mapping[str, Any], any_image: bool) -> dict[str, Any]:
        """For ``torch.export``: which axes may have any size up to the largest.

        Models may have bounds of their own for heights and widths of images; without ``any_image`` these are static.
        """
        bounded = {
            name: torch.export.Dim(name, max=getattr(self.largest, name))
            for name in ("batch", "tokens", "decoded", "samples")
            if getattr(self.largest, name) > 1
        }
        dims = bounded | ({"height": torch.export.Dim.AUTO, "width": torch.export.Dim.AUTO} if any_image else {})
        return {
            name: {axis: dims[size] for axis, size in enumerate(self.axes.get(name, ())) if size in dims} or None
            for name in inputs
        }


def _tokens(batch: int, tokens: int, device: torch.device, first: int = 3) -> torch.Tensor:
    """Random ones; smaller ones than ``first`` mean "padding" to some."""
    return torch.randint(first, VOCABULARY, (batch, tokens), device=device)


def _decoder_inputs(size: Size, device: torch.device, _: torch.dtype) -> dict[str, Any]:
    return {"input_ids": _tokens(size.batch, size.tokens, device, 0), "use_cache": False}


def _encoder_inputs(size: Size, device: torch.device, _: torch.dtype) -> dict[str, Any]:
    """Sequences of all lengths between an eighth of the longest and all of it, padded. A single one is whole."""
    lengths = torch.linspace(size.tokens, size.tokens // 8, size.batch, device=device).flip(0)
    return {
        "input_ids": _tokens(size.batch, size.tokens, device),
        "attention_mask": (torch.arange(size.tokens, device=device) < lengths[:, None]).long(),
    }


def _translator_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {**_encoder_inputs(size, device, dtype), **_decoded(size, device)}


def _speech_translator_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    features = torch.randn(size.batch, 80, _FRAMES, device=device, dtype=dtype)
    return {"input_features": features, **_decoded(size, device)}


def _speech_transcriber_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    features = torch.randn(size.batch, _FRAMES, 80, device=device, dtype=dtype)
    return {"input_features": features, **_decoded(size, device)}


def _decoded(size: Size, device: torch.device) -> dict[str, Any]:
    return {"decoder_input_ids": _tokens(size.batch, size.decoded, device), "use_cache": False}


def _vision_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(size.batch, 3, size.height, size.width, device=device, dtype=dtype)}


def _sound_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"input_values": torch.randn(size.batch, size.samples, device=device, dtype=dtype)}


def _spectrogram_inputs(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {"input_values": torch.randn(size.batch, *_SPECTROGRAM, device=device, dtype=dtype)}


def _image_words(size: Size) -> str:
    if size.height == size.width:
        return f"{size.batch} × {size.height}²"
    return f"{size.batch} × {size.height} × {size.width}"


_ENCODER_AXES = {"input_ids": ("batch", "tokens"), "attention_mask": ("batch", "tokens")}
_DECODED_AXES = {"decoder_input_ids": ("batch", "decoded")}

FAMILIES = {
    "decoder": Family(
        (Size(1, 16), Size(1, 333), Size(1, 4096)),
        lambda size: f"{size.batch} × {size.tokens:,} tokens",
        _decoder_inputs,
        {"input_ids": ("batch", "tokens")},
    ),
    "encoder": Family(
        (Size(1, 16), Size(3, 333), Size(8, 512)),
        lambda size: f"{size.batch} × {size.tokens:,} tokens",
        _encoder_inputs,
        _ENCODER_AXES,
    ),
    "translator": Family(
        (Size(1, 16, 1), Size(3, 333, 7), Size(8, 512, 128)),
        lambda size: f"{size.batch} × {size.tokens:,} to {size.decoded} tokens",
        _translator_inputs,
        {**_ENCODER_AXES, **_DECODED_AXES},
    ),
    "speech-translator": Family(
        (Size(1, decoded=1), Size(3, decoded=7), Size(8, decoded=128)),
        lambda size: f"{size.batch} × {_FRAMES:,} frames to {size.decoded} tokens",
        _speech_translator_inputs,
        {"input_features": ("batch",), **_DECODED_AXES},
    ),
    "speech-transcriber": Family(
        (Size(1, decoded=1), Size(3, decoded=7), Size(8, decoded=128)),
        lambda size: f"{size.batch} × {_FRAMES:,} frames to {size.decoded} tokens",
        _speech_transcriber_inputs,
        {"input_features": ("batch",), **_DECODED_AXES},
    ),
    "vision": Family(
        (
            Size(1, height=PIXELS, width=PIXELS),
            Size(3, height=225, width=231),
            Size(32, height=PIXELS, width=PIXELS),
        ),
        _image_words,
        _vision_inputs,
        {"pixel_values": ("batch", None, "height", "width")},
    ),
    "sound": Family(
        (Size(1, samples=_SAMPLES // 10), Size(3, samples=_SAMPLES // 3), Size(8, samples=_SAMPLES)),
        lambda size: f"{size.batch} × {size.samples:,} samples",
        _sound_inputs,
        {"input_values": ("batch", "samples")},
    ),
    "spectrogram": Family(
        (Size(1), Size(3), Size(8)),
        lambda size: f"{size.batch} × {_SPECTROGRAM[0]:,} frames",
        _spectrogram_inputs,
        {"input_values": ("batch",)},
    ),
}
"""By what :class:`tkc.bench.architectures.Architecture` names them."""
