"""What graphs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from .chains import chains
from .generate import generate
from .program import Program

Form = Literal["graphs", "transformers", "chains"]
FORMS: dict[Form, Callable[[int, int], Program]] = {
    "graphs": generate,
    "transformers": lambda seed, index: generate(seed, index, motifs=True),
    "chains": chains,
}
"""Graph of a seed and an index: of any operators, of many parts of transformers, or of pairs that fusion joins."""


def default_form(target: str) -> Form:
    """On a GPU there are kernels for parts of transformers."""
    return "graphs" if target == "cpu" else "transformers"
