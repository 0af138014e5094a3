"""The weights that generated code's products pack on the CPU, of one loaded model (``tkc/builder/products.cc``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from tkc.contracts import PACKED, USE_PACKED


class PackedProducts:
    """Holds packed weights as long as a call may read them; none where the weights may change between two calls."""

    def __init__(self, make: Callable[[int], int], use: Callable[[int], int], *, shares_weights: bool) -> None:
        """``make`` and ``use`` are the code's :data:`~tkc.contracts.PACKED` and :data:`~tkc.contracts.USE_PACKED`."""
        self._make, self._use, self._shares_weights = make, use, shares_weights
        self._address = 0 if shares_weights else make(0)

    @classmethod
    def of(cls, code: Any, *, shares_weights: bool) -> Self | None:
        """Those of ``code``, a native library; ``None`` where it has no products."""
        try:
            make, use = code.get_function(PACKED), code.get_function(USE_PACKED)
        except AttributeError:
            return None
        return cls(make, use, shares_weights=shares_weights)

    def renewed(self) -> PackedProducts:
        """Those of other weights. Calls that run have the old ones."""
        return PackedProducts(self._make, self._use, shares_weights=self._shares_weights)

    def run(self, call: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """``call(*tensors)``, whose products find their weights here."""
        before = self._use(self._address)
        try:
            return call(*tensors)
        finally:
            self._use(before)

    def __del__(self) -> None:
        """Free the weights."""
        if self._address:
            self._make(self._address)
