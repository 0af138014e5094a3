"""What the rounding of coordinates may come to, at which operators read, and which sizes and factors alone give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_PLACES = (torch.ops.aten.arange.default, torch.ops.aten.arange.start_step, torch.ops.prims.iota.default)


class MovedCoordinates(TorchDispatchMode):
    """Inside, operators run in the steps that PyTorch knows of them, in float64.

    What steps compute of the places of elements (``arange``) alone is moved by ``step``, relative to it, each element
    in a random direction. ``found`` says whether there was anything.
    """

    def __init__(self, step: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of PyTorch
        self._step, self._generator = step, torch.Generator().manual_seed(seed)
        self._coordinates: dict[int, torch.Tensor] = {}
        self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The results of ``func``."""
        kwargs = kwargs or {}
        steps: Callable[..., Any] | None = torch._decomp.decomposition_table.get(func)
        if steps is not None:
            with self:
                found = steps(*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = func(*args, **kwargs)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(id(tensor) not in self._coordinates for tensor in given) or not (given or func in _PLACES):
            return found
        return pytree.tree_map_only(torch.Tensor, self._moved, found)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float64:
            self.found = True
            with _disable_current_modes():
                signs = torch.randint(0, 2, tensor.shape, generator=self._generator).to(tensor).mul(2).sub(1)
                tensor = tensor * (1 + self._step * signs)
        self._coordinates[id(tensor)] = tensor
        return tensor
