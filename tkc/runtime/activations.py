"""The memory that a call allocates for what it computes, known before it runs: from the plan made when compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.filesize import decimal

from tkc.errors import OutOfMemoryError, UsageError
from tkc.runtime.random_inputs import described_range
from tkc.runtime.signature import Signature
from tkc.runtime.sizes import Formula

_NOMINAL_SIZE = 128


@dataclass(frozen=True)
class ActivationPlan:
    """What a model allocates while it computes, outputs included, and which of it at a time.

    ``sizes`` are bytes, numbers or formulas over the sizes of a call. ``moments`` are the sets of these, by position,
    of which one is the largest. ``besides`` says what else takes memory that only the call itself can tell: the plan is
    a lower bound then. Empty for artifacts of an earlier release, where ``is_known`` is false.
    """

    sizes: tuple[int | str, ...] = ()
    moments: tuple[tuple[int, ...], ...] = ()
    besides: tuple[str, ...] = ()
    is_known: bool = False

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` for sizes that are none, and for positions that there are not."""
        for size in self.sizes:
            if isinstance(size, str):
                Formula(size)
        if not all(0 <= position < len(self.sizes) for moment in self.moments for position in moment):
            raise ValueError("something is allocated that there is not")

    def peak(self, sizes: Mapping[str, int]) -> int:
        """The peak of what is allocated at a time, in bytes."""
        held = [size if isinstance(size, int) else max(int(Formula(size)(sizes)), 0) for size in self.sizes]
        return max((sum(held[position] for position in moment) for moment in self.moments), default=0)

    def told(self) -> str:
        """The bytes in words, where they depend on sizes with each of these at 128."""
        if not self.is_known:
            return "not known: the artifact is of an earlier release"
        names = sorted(self.names)
        where = ", ".join(f"{name} = {_NOMINAL_SIZE}" for name in names)
        text = f"{decimal(self.peak(dict.fromkeys(names, _NOMINAL_SIZE)))}{where and f' where {where}'}"
        return f"{text}, and {', '.join(self.besides)}" if self.besides else text

    @property
    def names(self) -> frozenset[str]:
        """The sizes of a call that it depends on."""
        return frozenset(name for size in self.sizes if isinstance(size, str) for name in Formula(size).names)


class Activations:
    """The plan of one executable, with the sizes that its calls have."""

    def __init__(self, plan: ActivationPlan, signature: Signature) -> None:
        self._plan = plan
        self._signature = signature
        self._axes = {
            dim: (position, axis)
            for position, spec in enumerate(signature.inputs)
            for axis, dim in enumerate(spec.shape)
            if isinstance(dim, str) and dim in signature.sizes
        }
        self._known: dict[tuple[int, ...], int] = {}

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """The bytes at given sizes; :class:`tkc.UsageError` for one that is missing, unknown or out of its range."""
        if not self._plan.is_known:
            raise UsageError(
                "this artifact does not say what a call allocates, as those of earlier releases: compile it again"
            )
        bounds = self._signature.sizes
        if unknown := sorted(sizes.keys() - bounds.keys()):
            raise UsageError(
                f"the model has no size {', '.join(unknown)}; its sizes are {', '.join(bounds) or 'fixed'}"
            )
        if missing := sorted(self._plan.names - sizes.keys()):
            raise UsageError(f"give the size {', '.join(missing)}, as in activation_bytes({missing[0]}=128)")
        for name, size in sizes.items():
            most = bounds[name].maximum
            if size < bounds[name].minimum or (most is not None and size > most):
                raise UsageError(
                    f"{name}={size} is out of range: the model takes {name} {described_range(bounds[name])}"
                )
        return self._plan.peak(sizes)

    def checked_limit(self, limit: int | None) -> int | None:
        """``limit`` as given; :class:`tkc.UsageError` for what is no number of bytes, and where no need is known."""
        if limit is None:
            return None
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise UsageError(f"limit_memory({limit!r}) is no number of bytes; give 0 or more, or None for no limit")
        if not self._plan.is_known or not self._plan.names <= self._axes.keys():
            raise UsageError(
                "this artifact does not say what a call allocates, so that nothing can limit it: compile it again"
            )
        return limit

    def check(self, inputs: Sequence[torch.Tensor], limit: int) -> None:
        """Raise :class:`tkc.OutOfMemoryError` if a call with checked ``inputs`` needs more than ``limit`` bytes."""
        found = tuple(int(inputs[position].shape[axis]) for position, axis in self._axes.values())
        needed = self._known.get(found)
        if needed is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            needed = self._known[found] = self._plan.peak(dict(zip(self._axes, found, strict=True)))
        if needed > limit:
            sizes = ", ".join(f"{name}={size}" for name, size in zip(self._axes, found, strict=True))
            least = "at least " if self._plan.besides else ""
            raise OutOfMemoryError(
                f"a call{f' with {sizes}' if sizes else ''} needs {least}{needed} bytes for what it computes, and the "
                f"limit is {limit}; call with smaller sizes, or raise the limit: limit_memory({needed})"
            )


_MOST_KNOWN = 1024
"""Sizes of calls whose bytes are remembered."""
