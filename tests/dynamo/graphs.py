"""The graphs that a test has compiled, and what the last call of one was handed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tkc.dynamo.graph import CompiledGraph


@dataclass
class Graphs:
    """``made`` are compiled graphs in the order in which they were made, ``arguments`` those of the last call."""

    made: list[CompiledGraph] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)

    def noting(self) -> type[CompiledGraph]:
        """A class of graphs that are noted here."""
        graphs = self

        class Noted(CompiledGraph):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                graphs.made.append(self)

            def __call__(self, arguments: list[Any]) -> list[Any]:
                graphs.arguments = list(arguments)
                return super().__call__(arguments)

        return Noted
