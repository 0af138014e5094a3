"""Where in a model each variable of its Relax module comes from."""

from __future__ import annotations

from typing import Any

from tvm import relax


class SourceBuilder(relax.BlockBuilder):
    """A block builder that notes, for each variable that it binds, the node of the model that it was bound for."""

    def __init__(self) -> None:
        super().__init__()
        self.source = ""
        """The node that is being converted, as messages name it; nothing is noted where it is empty."""
        self.sources: dict[str, str] = {}
        """The nodes by the names of their variables, which are unique in the module."""

        self._parts = 0
        self._variables = 0

    def part_name(self, base: str) -> str:
        """A name for a function besides ``main``, which no other gets."""
        self._parts += 1
        return f"part_{self._parts}_{base}"

    def emit(self, expr: Any, name_hint: str = "") -> relax.Var:
        """Bind ``expr`` to a new variable.

        Its name is one that no pass makes: a variable of a later graph with this name holds what this one holds.
        """
        return self._noted(super().emit(expr, name_hint or self._name()))

    def match_cast(self, value: relax.Expr, struct_info: relax.StructInfo, name_hint: str = "") -> relax.Var:
        """Bind ``value``, of which ``struct_info`` is known, to a new variable."""
        return self._noted(super().match_cast(value, struct_info, name_hint or self._name()))

    def _name(self) -> str:
        self._variables += 1
        return f"node{self._variables}_"

    def _noted(self, variable: relax.Var) -> relax.Var:
        if self.source:
            self.sources.setdefault(variable.name_hint, self.source)
        return variable
