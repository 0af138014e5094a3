"""Every model of torchvision as a source: images, segmentation, detection, optical flow, video, quantized."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from .modules import exported, filled, first, runs, weights
from .sources import Example, NotConstructibleError

SIZES = (64, 80, 96, 128, 224, 256, 299)
"""Sides of images, tried in this order."""

MOST_WEIGHTS = 100_000_000
"""A model larger than this is not made; its family has smaller ones."""

_VIDEO = ("mc3", "mvit", "r2plus1d", "r3d", "s3d", "swin3d")
_DETECTION = ("fasterrcnn", "fcos", "keypointrcnn", "maskrcnn", "retinanet", "ssd")
_SEGMENTATION = ("deeplabv3", "fcn", "lraspp")


class Torchvision:
    """All models that torchvision lists."""

    def names(self) -> list[str]:
        """As ``torchvision.models.list_models`` has them."""
        from torchvision import models

        return sorted(models.list_models())

    def variants(self, name: str) -> tuple[str, ...]:
        """One call, of a batch of two."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The model with random weights, and small images, frames or videos."""
        with torch.device("meta"):
            count = 0 if name.startswith("quantized") else weights(_model(name))
        if count > MOST_WEIGHTS:
            raise NotConstructibleError(f"{count / 1e6:.0f} million weights; smaller models of its family are made")
        torch.manual_seed(0)
        module = _model(name)
        if not name.startswith("quantized"):  # its weights are packed
            filled(module)

        def of(args: tuple[Any, ...]) -> Example:
            runs(module, args)
            return Example(module, args, export=exported)

        return first(partial(of, args) for args in _calls(name))


def _model(name: str) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {"weights": None}
    if name.startswith(_DETECTION + _SEGMENTATION):
        options["weights_backbone"] = None
    if name.startswith(_DETECTION):
        options["num_classes"] = 5
        if not name.startswith("ssd300"):  # its anchors are of images of 300
            options |= {"min_size": 64, "max_size": 64} if not name.startswith("ssd") else {}
    elif name.startswith("quantized"):
        options["quantize"] = True
    elif name in ("googlenet", "inception_v3"):
        options["init_weights"] = True
    model: nn.Module = models.get_model(name, **options)
    return model.eval()


def _calls(name: str) -> list[tuple[Any, ...]]:
    torch.manual_seed(2)
    if name.startswith("raft"):  # the correlation pyramid asks for images of 128
        return [(torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))]
    if name.startswith(_DETECTION):
        return [([torch.rand(3, 64, 64), torch.rand(3, 64, 48)],)]
    if name.startswith(_VIDEO):
        return [(torch.rand(1, 3, 16, size, size),) for size in SIZES]
    return [(torch.rand(2, 3, size, size),) for size in SIZES]
