"""The data that graphs are made of: inputs, and operators applied to values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .types import Shape

Attributes = tuple[tuple[str, Any], ...]
Role = Literal["input", "parameter", "buffer"]


@dataclass(frozen=True)
class Input:
    """A tensor that a graph is given: how it is made, and what is known of it.

    ``values`` names a kind of elements (see :mod:`tests.fuzz.tensors`), ``bound`` is its parameter where it has one;
    ``layout`` says how it lies in memory; ``same`` is an input that is given again in its place.
    """

    id: int
    shape: Shape
    dtype: str
    values: str
    layout: str = "contiguous"
    role: Role = "input"
    bound: int = 0
    same: int | None = None

    @property
    def name(self) -> str:
        """Its name in the source."""
        return f"v{self.id}" if self.role == "input" else f"self.v{self.id}"


@dataclass(frozen=True)
class Node:
    """An operator of the table in :mod:`tests.fuzz.operators`, applied to values."""

    op: str
    args: tuple[int, ...]
    attributes: Attributes
    results: tuple[int, ...]


def attributes(values: Mapping[str, Any]) -> Attributes:
    """The hashable form of an operator's attributes."""
    return tuple(values.items())
