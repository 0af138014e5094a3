"""Networks that the CPU benchmark builds itself, since transformers has none of their kind."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import interpolate

_BLOCKS = [
    # kernel, expanded, out, squeezes, hard-swish, stride
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
]
"""MobileNetV3-Large's inverted residuals (Howard et al., 2019, table 1)."""


def _convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: nn.Module | None = None
) -> nn.Sequential:
    """A convolution that keeps the image's size (over ``stride``), its normalization, and an activation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [convolution, nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([] if activation is None else [activation]))


class _Squeeze(nn.Module):
    """Squeeze-and-excitation by a quarter of the channels, gated by a hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = (channels // 4 + 7) // 8 * 8
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = image * self.gate(image)
        return gated


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, kernel: int, wide: int, outputs: int, squeezes: bool, swish: bool, stride: int):
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        layers: list[nn.Module] = []
        if wide != inputs:
            layers.append(_convolution(inputs, wide, activation=activation()))
        layers.append(_convolution(wide, wide, kernel, stride, wide, activation()))
        if squeezes:
            layers.append(_Squeeze(wide))
        layers.append(_convolution(wide, outputs))
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(image)
        return image + found if self.adds else found


class MobileNetV3(nn.Module):
    """MobileNetV3-Large: images ``[batch, 3, rows, columns]`` to scores ``[batch, 1000]``."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 16, 3, 2, activation=nn.Hardswish())]
        inputs = 16
        for kernel, wide, outputs, squeezes, swish, stride in _BLOCKS:
            layers.append(_InvertedResidual(inputs, kernel, wide, outputs, squeezes, swish, stride))
            inputs = outputs
        layers.append(_convolution(inputs, 960, activation=nn.Hardswish()))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """The scores."""
        return (self.classifier(self.features(image).mean((2, 3))),)


class _CrossStage(nn.Module):
    """A cross-stage partial block (C2f): bottlenecks on half of the channels, of which all results are kept."""

    def __init__(self, inputs: int, outputs: int, count: int, adds: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.adds = adds
        self.first = _convolution(inputs, outputs, activation=nn.SiLU())
        self.bottlenecks = nn.ModuleList(
            nn.Sequential(
                _convolution(half, half, 3, activation=nn.SiLU()), _convolution(half, half, 3, activation=nn.SiLU())
            )
            for _ in range(count)
        )
        self.last = _convolution((2 + count) * half, outputs, activation=nn.SiLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(image).chunk(2, 1))
        for bottleneck in self.bottlenecks:
            found = bottleneck(parts[-1])
            parts.append(parts[-1] + found if self.adds else found)
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


class Detector(nn.Module):
    """A one-stage detector of YOLOv8n's shape: a cross-stage backbone, a path-aggregating neck, three heads.

    Images ``[batch, 3, 32 * n, 32 * m]`` to ``[batch, 144, places]``: for each place 64 values of boxes, 80 of classes.
    """

    def __init__(self) -> None:
        super().__init__()

        def down(inputs: int, outputs: int) -> nn.Sequential:
            return _convolution(inputs, outputs, 3, 2, activation=nn.SiLU())

        self.stem = nn.Sequential(down(3, 16), down(16, 32), _CrossStage(32, 32, 1, True))
        self.eighth = nn.Sequential(down(32, 64), _CrossStage(64, 64, 2, True))
        self.sixteenth = nn.Sequential(down(64, 128), _CrossStage(128, 128, 2, True))
        self.last = nn.Sequential(down(128, 256), _CrossStage(256, 256, 1, True))
        self.pooled = _convolution(256, 128, activation=nn.SiLU())
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.joined = _convolution(512, 256, activation=nn.SiLU())
        self.up_sixteenth = _CrossStage(384, 128, 1, False)
        self.up_eighth = _CrossStage(192, 64, 1, False)
        self.down_sixteenth = down(64, 64)
        self.out_sixteenth = _CrossStage(192, 128, 1, False)
        self.down_last = down(128, 128)
        self.out_last = _CrossStage(384, 256, 1, False)
        self.boxes = nn.ModuleList(_head(channels, 64, 64) for channels in (64, 128, 256))
        self.classes = nn.ModuleList(_head(channels, 80, 80) for channels in (64, 128, 256))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """What the three heads find."""
        eighth = self.eighth(self.stem(image))
        sixteenth = self.sixteenth(eighth)
        pools = [self.pooled(self.last(sixteenth))]
        for _ in range(3):
            pools.append(self.pool(pools[-1]))
        last = self.joined(torch.cat(pools, 1))
        up_sixteenth = self.up_sixteenth(torch.cat([interpolate(last, scale_factor=2.0), sixteenth], 1))
        small = self.up_eighth(torch.cat([interpolate(up_sixteenth, scale_factor=2.0), eighth], 1))
        middle = self.out_sixteenth(torch.cat([self.down_sixteenth(small), up_sixteenth], 1))
        large = self.out_last(torch.cat([self.down_last(middle), last], 1))
        found = [
            torch.cat([boxes(level), classes(level)], 1).flatten(2)
            for level, boxes, classes in zip((small, middle, large), self.boxes, self.classes, strict=True)
        ]
        return (torch.cat(found, 2),)


def _head(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(inputs, width, 3, activation=nn.SiLU()),
        _convolution(width, width, 3, activation=nn.SiLU()),
        nn.Conv2d(width, outputs, 1),
    )


class UNet(nn.Module):
    """A U-Net of four levels, 32 to 256 channels: images ``[batch, 3, 16 * n, 16 * m]`` to ``[batch, 2, ...]``."""

    def __init__(self) -> None:
        super().__init__()
        widths = [32, 64, 128, 256]
        self.downs = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = _double(256, 512)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths))
        self.joins = nn.ModuleList(_double(2 * width, width) for width in reversed(widths))
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(32, 2, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """Two scores for each pixel."""
        kept = []
        for down in self.downs:
            kept.append(down(image))
            image = self.pool(kept[-1])
        image = self.middle(image)
        for up, join in zip(self.ups, self.joins, strict=True):
            image = join(torch.cat([kept.pop(), up(image)], 1))
        return (self.last(image),)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(inputs, outputs, 3, activation=nn.ReLU()), _convolution(outputs, outputs, 3, activation=nn.ReLU())
    )


def three_layers() -> nn.Module:
    """A network so small that calling it is most of its time."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
