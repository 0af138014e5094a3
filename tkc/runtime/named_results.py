"""The results of a model that has no structure but the order and the names of its outputs, as ONNX models have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree as pytree

from tkc.errors import InputError


class NamedResults(tuple[Any, ...]):
    """The results in the model's order, of which each can be had by its name, too: ``results[0]``, ``results["y"]``."""

    names: tuple[str, ...]
    """The names, in the same order."""

    def __new__(cls, results: Sequence[Any], names: Sequence[str]) -> NamedResults:
        """The ``results``, of which each has one of ``names``."""
        made = super().__new__(cls, results)
        made.names = tuple(names)
        return made

    def __getitem__(self, key: Any) -> Any:
        """One result by its position or name, or several by a slice. Raises :class:`tkc.InputError` for other names."""
        return super().__getitem__(place_of(key, self.names) if isinstance(key, str) else key)

    def __reduce__(self) -> tuple[Any, ...]:
        """``pickle`` and ``copy`` keep the names."""
        return NamedResults, (tuple(self), self.names)


def place_of(name: str, names: Sequence[str]) -> int:
    """Where ``name`` is among ``names``. Raises :class:`tkc.InputError` where it is not."""
    if name not in names:
        raise InputError(f"the model has no output {name!r}; it has {', '.join(map(repr, names))}")
    return names.index(name)


pytree.register_pytree_node(
    NamedResults,
    lambda results: (list(results), results.names),
    lambda parts, names: NamedResults(list(parts), names),
    serialized_type_name="tkc.NamedResults",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)
