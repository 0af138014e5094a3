"""PyTorch's own layers, each with an ordinary call, as a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .sources import Example

_Made = tuple[nn.Module, tuple[Any, ...]]
_r = torch.randn


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 32, shape)


LAYERS: dict[str, Callable[[], _Made]] = {
    "AdaptiveAvgPool2d": lambda: (nn.AdaptiveAvgPool2d(3), (_r(2, 4, 9, 9),)),
    "AdaptiveMaxPool2d": lambda: (nn.AdaptiveMaxPool2d(3), (_r(2, 4, 9, 9),)),
    "AvgPool1d": lambda: (nn.AvgPool1d(3, 2), (_r(2, 4, 17),)),
    "AvgPool3d": lambda: (nn.AvgPool3d(2), (_r(2, 4, 6, 6, 6),)),
    "BatchNorm2d": lambda: (nn.BatchNorm2d(4), (_r(2, 4, 8, 8),)),
    "Bilinear": lambda: (nn.Bilinear(8, 6, 5), (_r(3, 8), _r(3, 6))),
    "ChannelShuffle": lambda: (nn.ChannelShuffle(2), (_r(2, 4, 5, 5),)),
    "Conv1d": lambda: (nn.Conv1d(4, 8, 3, padding="same"), (_r(2, 4, 16),)),
    "Conv2d": lambda: (nn.Conv2d(4, 8, 3, stride=2, padding=1), (_r(2, 4, 16, 16),)),
    "Conv2d grouped": lambda: (nn.Conv2d(8, 8, 3, groups=8, dilation=2), (_r(2, 8, 16, 16),)),
    "Conv2d reflect": lambda: (nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), (_r(2, 4, 8, 8),)),
    "Conv3d": lambda: (nn.Conv3d(2, 4, 3), (_r(2, 2, 6, 6, 6),)),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(4, 8, 4, stride=2), (_r(2, 4, 9),)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1), (_r(2, 4, 7, 7),)),
    "ConvTranspose3d": lambda: (nn.ConvTranspose3d(2, 4, 3), (_r(2, 2, 4, 4, 4),)),
    "CosineSimilarity": lambda: (nn.CosineSimilarity(), (_r(5, 8), _r(5, 8))),
    "Embedding": lambda: (nn.Embedding(32, 8, padding_idx=0), (_ids(2, 5),)),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(32, 8), (_ids(3, 5),)),
    "EmbeddingBag max": lambda: (nn.EmbeddingBag(32, 8, mode="max"), (_ids(3, 5),)),
    "EmbeddingBag offsets": lambda: (nn.EmbeddingBag(32, 8, mode="sum"), (_ids(9), torch.tensor([0, 4, 7]))),
    "Fold": lambda: (nn.Fold((6, 6), 3), (_r(2, 18, 16),)),
    "GLU": lambda: (nn.GLU(), (_r(3, 8),)),
    "GroupNorm": lambda: (nn.GroupNorm(2, 4), (_r(2, 4, 8, 8),)),
    "GRU": lambda: (nn.GRU(8, 16, 2, batch_first=True), (_r(2, 5, 8),)),
    "GRU bidirectional": lambda: (nn.GRU(8, 16, bidirectional=True), (_r(5, 2, 8),)),
    "GRUCell": lambda: (nn.GRUCell(8, 16), (_r(2, 8), _r(2, 16))),
    "InstanceNorm2d": lambda: (nn.InstanceNorm2d(4), (_r(2, 4, 8, 8),)),
    "LayerNorm": lambda: (nn.LayerNorm([4, 8]), (_r(3, 4, 8),)),
    "Linear": lambda: (nn.Linear(16, 8), (_r(3, 5, 16),)),
    "LocalResponseNorm": lambda: (nn.LocalResponseNorm(3), (_r(2, 8, 4, 4),)),
    "LSTM": lambda: (nn.LSTM(8, 16, 2), (_r(5, 2, 8),)),
    "LSTM bidirectional": lambda: (nn.LSTM(8, 16, bidirectional=True), (_r(5, 2, 8),)),
    "LSTM projected": lambda: (nn.LSTM(8, 16, proj_size=4), (_r(5, 2, 8), (_r(1, 2, 4), _r(1, 2, 16)))),
    "LSTMCell": lambda: (nn.LSTMCell(8, 16), (_r(2, 8), (_r(2, 16), _r(2, 16)))),
    "MaxPool2d": lambda: (nn.MaxPool2d(3, 2, 1), (_r(2, 4, 9, 9),)),
    "MaxPool2d indices": lambda: (nn.MaxPool2d(2, return_indices=True), (_r(2, 4, 8, 8),)),
    "MultiheadAttention": lambda: (nn.MultiheadAttention(16, 4, batch_first=True), (x := _r(2, 5, 16), x, x)),
    "PixelShuffle": lambda: (nn.PixelShuffle(2), (_r(2, 8, 4, 4),)),
    "PReLU": lambda: (nn.PReLU(4), (_r(2, 4, 5),)),
    "RMSNorm": lambda: (nn.RMSNorm(16), (_r(3, 16),)),
    "RNN": lambda: (nn.RNN(8, 16, 2), (_r(5, 2, 8),)),
    "RNN relu": lambda: (nn.RNN(8, 16, nonlinearity="relu"), (_r(5, 2, 8),)),
    "Transformer": lambda: (nn.Transformer(16, 4, 1, 1, 32, batch_first=True), (_r(2, 5, 16), _r(2, 4, 16))),
    "TransformerDecoder": lambda: (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2),
        (_r(2, 4, 16), _r(2, 5, 16)),
    ),
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        (_r(2, 5, 16),),
    ),
    "Unfold": lambda: (nn.Unfold(3, padding=1), (_r(2, 2, 6, 6),)),
    "Upsample bicubic": lambda: (nn.Upsample(scale_factor=2, mode="bicubic"), (_r(2, 4, 5, 5),)),
    "Upsample bilinear": lambda: (nn.Upsample(scale_factor=1.5, mode="bilinear"), (_r(2, 4, 6, 6),)),
}


class TorchLayers:
    """Layers of ``torch.nn``, in evaluation mode."""

    def names(self) -> list[str]:
        """The layers."""
        return sorted(LAYERS)

    def variants(self, name: str) -> tuple[str, ...]:
        """One call."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The layer and its call."""
        module, args = LAYERS[name]()
        return Example(module.eval(), args)
