"""Inputs at random that fit a signature."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tkc.errors import UsageError
from tkc.runtime.signature import Signature, SizeRange, TensorSpec
from tkc.runtime.sizes import Formula


def random_inputs(signature: Signature, sizes: Mapping[str, int], seed: int) -> list[torch.Tensor]:
    """Tensors that fit ``signature``: normal floats, integers 0 or 1 (valid as indices and as masks), in ``sizes``.

    A size not given is the smallest its range allows, but at least 2 where it may be. Raises :class:`UsageError` for a
    given one outside of its range.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, size in sizes.items():
        bounds = signature.sizes[name]
        if size < bounds.minimum or (bounds.maximum is not None and size > bounds.maximum):
            raise UsageError(f"--size {name}={size}: the model was compiled for {name} {described_range(bounds)}")
    chosen = {name: sizes.get(name, _small(bounds)) for name, bounds in signature.sizes.items()}

    def draw(spec: TensorSpec) -> torch.Tensor:
        shape = [dim if isinstance(dim, int) else Formula(dim)(chosen) for dim in spec.shape]
        dtype = getattr(torch, spec.held)
        if dtype.is_complex:
            return torch.randn(shape, generator=generator, dtype=dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    return [draw(spec) for spec in signature.inputs]


def checked_sizes(sizes: Mapping[str, int], signature: Signature) -> Mapping[str, int]:
    """``sizes``, if they are those of symbolic sizes of ``signature``; :class:`UsageError` names those that it has."""
    for name in sizes:
        if name not in signature.sizes:
            known = ", ".join(f"{size} {described_range(bounds)}" for size, bounds in signature.sizes.items()) or "none"
            raise UsageError(f"the model has no symbolic size {name}; its sizes are {known}")
    return sizes


def _small(bounds: SizeRange) -> int:
    size = max(2, bounds.minimum)
    return size if bounds.maximum is None else min(size, bounds.maximum)


def described_range(bounds: SizeRange) -> str:
    """The bounds of a size in words."""
    return f"from {bounds.minimum} on" if bounds.maximum is None else f"from {bounds.minimum} to {bounds.maximum}"
