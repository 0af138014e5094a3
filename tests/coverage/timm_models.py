"""Every module of ``timm.models`` as a source, by its model of the fewest parameters, on a small image."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import nn

from .modules import exported, filled, first, runs, weights
from .sources import Example, NotConstructibleError

SIZES = (64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
"""Sides of images, tried in this order: at 32, the last layers of most would see a single pixel."""

_LARGE = re.compile(r"base|large|huge|giant|enormous|so\d+m|\db_")


class Timm:
    """A model of each family."""

    def names(self) -> list[str]:
        """The modules of ``timm.models`` that register models."""
        import timm

        return sorted(name for name in timm.list_modules() if timm.list_models(module=name))

    def variants(self, name: str) -> tuple[str, ...]:
        """One call, of a batch of two images."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The family's smallest model with random weights, and images."""
        model = _smallest(name)

        def at(size: int, sized: dict[str, int]) -> Example:
            with torch.device("meta"):
                tried = _made(model, **sized)
                runs(tried, _images(tried, size))
            torch.manual_seed(0)
            module = filled(_made(model, **sized))
            args = _images(module, size)
            runs(module, args)
            return Example(module, args, export=exported)

        return first(partial(at, size, sized) for size in SIZES for sized in ({"img_size": size}, {}))


def _made(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10, **options).eval()


def _images(model: Any, size: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(2, model.default_cfg.get("input_size", (3,))[0], size, size),)


def _smallest(module: str) -> str:
    """The model of a module with the fewest parameters, among timm's own for tests or those not named large."""
    import timm

    every = timm.list_models(module=module)
    tests = [name for name in every if name.startswith("test_")]
    small = tests or [name for name in every if not _LARGE.search(name)] or every
    found: list[tuple[int, str]] = []
    for name in small:
        try:
            with torch.device("meta"):
                model: nn.Module = _made(name)
        except Exception:  # not every model can be made without memory
            continue
        found.append((weights(model), name))
    if not found:
        if len(small) == 1:
            return str(small[0])
        raise NotConstructibleError("none of its models can be made without memory")
    return min(found)[1]
