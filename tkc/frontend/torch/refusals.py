"""Refusals of a model, collected so that a single error names all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tkc.errors import UnsupportedModelError


class Refusals:
    """What a model is refused for.

    A refused node is replaced by zeros (:meth:`Emitter.stand_in`), so that the nodes after it are converted too and
    can be refused in their turn. The module that results is never used, since :meth:`collected` raises at its end.
    """

    def __init__(self) -> None:
        self._found: list[UnsupportedModelError] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps a refusal of the block for later."""
        try:
            yield
        except UnsupportedModelError as error:
            self._add(error)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Raises what was kept at the end of the block: a single refusal as it is, several as one error.

        An exception that ends the block after a refusal is replaced by the refusals: it may come from the zeros.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, UnsupportedModelError):
                self._add(error)
            if not self._found:
                raise
            raise self._error() from (None if error in self._found else error)
        if self._found:
            raise self._error()

    def _add(self, error: UnsupportedModelError) -> None:
        if str(error) not in map(str, self._found):
            self._found.append(error)

    def _error(self) -> UnsupportedModelError:
        return self._found[0] if len(self._found) == 1 else UnsupportedModelError("\n".join(map(str, self._found)))
