"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """``old`` in ``file``, where it stands once, becomes ``new``; ``tests`` (pytest's ids) are to fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """Of the code: rules and passes, kernels, schedules, or the builder."""
        return self.file.split("/")[0].replace("tkc", "builder")

    def applied(self, text: str) -> str:
        """The ``file``'s text with the fault; :class:`ValueError` where ``old`` does not stand in it once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: the text to be replaced stands {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)
