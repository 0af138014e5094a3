"""Inputs at random that fit a signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tkc.errors import UsageError
from tkc.runtime.signature import Signature, SizeRange, TensorSpec
from tkc.runtime.sizes import Formula

_WORDS = ("one", "some text", "Another TEXT, of words")
_MOST_WORDS = 64


def random_inputs(signature: Signature, sizes: Mapping[str, int], seed: int) -> list[Any]:
    """Tensors that fit ``signature``: normal floats, integers 0 or 1 (valid as indices and as masks), in ``sizes``.

    Strings are arrays of those that the model holds, and of others.

    A size not given is the smallest its range allows, but at least 2 where it may be. Raises :class:`UsageError` for a
    given one that the model does not have, and outside of its range.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, size in sizes.items():
        if name not in signature.sizes:
            known = ", ".join(f"{other} {described_range(bounds)}" for other, bounds in signature.sizes.items())
            raise UsageError(
                f"{name}={size}: the model has no symbolic size {name}; its sizes are {known or 'fixed'}. A .pt2 file "
                "does not keep the names of its Dims; tkc compile --size-name SIZE=NAME gives them back"
            )
        bounds = signature.sizes[name]
        if size < bounds.minimum or (bounds.maximum is not None and size > bounds.maximum):
            raise UsageError(
                f"the size {name}={size} is out of range: the model takes {name} {described_range(bounds)}"
            )
    chosen = {name: sizes.get(name, _small(bounds)) for name, bounds in signature.sizes.items()}

    words = np.array([*(signature.strings or ())[:_MOST_WORDS], *_WORDS], object)

    def draw(spec: TensorSpec) -> torch.Tensor | np.ndarray:
        shape = [dim if isinstance(dim, int) else Formula(dim)(chosen) for dim in spec.shape]
        if spec.is_text:
            return np.asarray(words[torch.randint(len(words), shape, generator=generator).numpy()], object)
        dtype = getattr(torch, spec.held)
        if dtype.is_complex:
            return torch.randn(shape, generator=generator, dtype=dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    return [draw(spec) for spec in signature.inputs]


def _small(bounds: SizeRange) -> int:
    size = max(2, bounds.minimum)
    return size if bounds.maximum is None else min(size, bounds.maximum)


def described_range(bounds: SizeRange) -> str:
    """The bounds of a size in words."""
    return f"from {bounds.minimum} on" if bounds.maximum is None else f"from {bounds.minimum} to {bounds.maximum}"
