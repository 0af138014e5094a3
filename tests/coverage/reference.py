"""What a model's results are compared with, by the bound of :mod:`tests.conformance.comparison`.

The reference is the model in float64. An element of a result may be off by the most that PyTorch's own float32 result
is off by, or by the most that the float64 result moves when every weight and every input moves by float32's precision,
in random directions (times a factor). Models whose code does not run in float64, or overflows there alone, are
measured in float32. Models of bfloat16 are measured by bfloat16's precision.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.conformance.comparison import compare, example

DIRECTIONS = 3


class Reference:
    """The results of a call in PyTorch. Raises what PyTorch raises."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module, self._call = module, (args, kwargs)
        floats = [weight.dtype for weight in module.parameters() if weight.dtype.is_floating_point]
        self._eps = torch.finfo(max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)).eps
        self.paths, self.eager = _run(module, self._call)
        again = _run(module, self._call)[1]
        self.random = any(not _equal(one, other) for one, other in zip(self.eager, again, strict=True))
        """Only shapes and dtypes can be compared."""
        self._bounds: tuple[list[torch.Tensor | None], list[torch.Tensor | None]] | None = None

    def difference(self, result: Any) -> str | None:
        """What is wrong with ``result``, in words; ``None`` if nothing is."""
        values = [leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(result)]
        if len(values) != len(self.eager):
            return f"{len(values)} results instead of {len(self.eager)}"
        exact, spread = self._measured()
        for path, value, eager, own, moved in zip(self.paths, values, self.eager, exact, spread, strict=True):
            if reason := self._leaf(value, eager, own, moved):
                return f"{path}: {reason}"
        return None

    def _leaf(self, value: Any, eager: Any, exact: torch.Tensor | None, spread: torch.Tensor | None) -> str | None:
        if not isinstance(eager, torch.Tensor):
            return None if self.random or _equal(value, eager) else f"{value!r} instead of {eager!r}"
        if not isinstance(value, torch.Tensor):
            return f"a {type(value).__name__} instead of a tensor"
        if value.dtype != eager.dtype:
            return f"dtype {value.dtype} instead of {eager.dtype}"
        if value.shape != eager.shape:
            return f"shape {list(value.shape)} instead of {list(eager.shape)}"
        if self.random or not value.numel():
            return None
        if not eager.dtype.is_floating_point:
            wrong = value != eager
            return example(wrong, value, eager) if wrong.any() else None
        # The largest of the result, not each element's own: which element a normalization or a softmax puts the most
        # error into is chance, and PyTorch's largest is 10 times its average.
        most = torch.zeros((), dtype=torch.float64)
        if exact is not None:
            most = torch.maximum(most, (eager.double() - exact).abs().nan_to_num(0, 0, 0).max())
        if spread is not None:
            most = torch.maximum(most, spread.max())
        return compare(value, eager, exact, most)

    def _measured(self) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Each leaf in float64, and how far it moves."""
        if self._bounds is None:
            nothing: list[torch.Tensor | None] = [None] * len(self.eager)
            self._bounds = nothing, nothing
            if not self.random:
                try:
                    wide = self._measured_in(torch.float64)
                except Exception:  # code that names float32 does not run in float64
                    wide = None
                # Nor does a mask of float32 times float64's least number, which is infinite there (and 0 of it NaN).
                if wide is None or self._lost(wide[0]):
                    self._bounds = nothing, self._measured_in(torch.float32)[1]
                else:
                    self._bounds = wide
        return self._bounds

    def _lost(self, exact: list[torch.Tensor | None]) -> bool:
        """Whether a leaf is not finite in float64 where PyTorch's own is."""
        return any(
            bool((eager.isfinite() & ~own.isfinite()).any())
            for eager, own in zip(self.eager, exact, strict=True)
            if own is not None
        )

    def _measured_in(self, dtype: torch.dtype) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        module = copy.deepcopy(self._module).to(dtype)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: _in(dtype, t), copy.deepcopy(self._call))
        with _default(dtype):
            exact = self._floats(_run(module, (args, kwargs))[1])
            spread = [None if leaf is None else torch.zeros_like(leaf) for leaf in exact]
            weights = [weight.detach().clone() for weight in module.parameters()]
            generator = torch.Generator().manual_seed(3)
            for _ in range(DIRECTIONS):
                with torch.no_grad():
                    for weight, was in zip(module.parameters(), weights, strict=True):
                        weight.copy_(self._moved(generator, was))
                call = pytree.tree_map_only(
                    torch.Tensor, partial(self._moved, generator), copy.deepcopy((args, kwargs))
                )
                for own, leaf, moved in zip(spread, exact, self._floats(_run(module, call)[1]), strict=True):
                    if own is not None and leaf is not None and moved is not None:
                        torch.maximum(own, (moved - leaf).abs().nan_to_num(0, 0, 0), out=own)
        return exact, spread

    def _moved(self, generator: torch.Generator, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype) * 2 - 1
        return tensor * (1 + self._eps * signs)

    def _floats(self, leaves: list[Any]) -> list[torch.Tensor | None]:
        if len(leaves) != len(self.eager):
            raise ValueError("another number of results in another dtype")
        return [
            leaf.double()
            if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point and leaf.shape == eager.shape
            else None
            for leaf, eager in zip(leaves, self.eager, strict=True)
        ]


def _run(module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[list[str], list[Any]]:
    args, kwargs = copy.deepcopy(call)  # caches are written into
    with torch.no_grad():
        torch.manual_seed(0)
        pairs, _ = pytree.tree_flatten_with_path(module(*args, **kwargs))
    leaves = [leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in pairs]
    return [pytree.keystr(path) or "result" for path, _ in pairs], leaves


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _in(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype.is_floating_point else tensor


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other or (one != one and other != other))
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
