"""The weights that generated code's products pack on the CPU, of one loaded model (``tkc/builder/products.cc``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from tkc.contracts import PACKED, USE_PACKED


class PackedProducts:
    """Holds packed weights as long as a call may read them; none where the weights may change between two calls."""

    def __init__(self, make: Callable[[int], int], use: Callable[[int, int], int], *, shares_weights: bool) -> None:
        """``make`` and ``use`` are the code's :data:`~tkc.contracts.PACKED` and :data:`~tkc.contracts.USE_PACKED`."""
        self._make, self._use, self._shares_weights = make, use, shares_weights
        self._address = 0 if shares_weights else make(0)
        self._is_told = bool(os.environ.get("TVM_NUM_THREADS"))

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
        """``call(*tensors)``, whose products find their weights here.

        They take as many threads as PyTorch's operators would, unless ``$TVM_NUM_THREADS`` says how many.
        """
        before = self._use(self._address, 0 if self._is_told else torch.get_num_threads())
        try:
            return call(*tensors)
        finally:
            self._use(before, 0)

    def __del__(self) -> None:
        """Free the weights."""
        if self._address:
            self._make(self._address)
