"""What graphs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from .chains import chains
from .generate import generate
from .program import Program

Form = Literal["graphs", "fixed", "transformers", "chains"]
FORMS: dict[Form, Callable[[int, int], Program]] = {
    "graphs": generate,
    "fixed": lambda seed, index: _fixed(generate(seed, index), index),
    "transformers": lambda seed, index: generate(seed, index, motifs=True),
    "chains": chains,
}
"""Graph of a seed and an index: of any operators, at any sizes or at known ones, of many parts of transformers, or of
pairs that fusion joins."""


def _fixed(program: Program, index: int) -> Program:
    """``program`` at one of its calls' sizes, 0 and 1 among them, which the compiler knows."""
    return program.of_fixed_sizes(index % len(program.sizes.calls))


def default_form(target: str) -> Form:
    """On a GPU there are kernels for parts of transformers."""
    return "graphs" if target == "cpu" else "transformers"
