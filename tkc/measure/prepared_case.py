"""One case of a kernel on a device: random inputs, expected outputs, and calls that can be timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tkc.kernels import SPECS, TensorType
from tkc.kernels.all_cases import all_sizes, candidate_of, inputs_of
from tkc.kernels.cases import Case, shape_of

# Of a kernel's inputs: what is this small comes from the kernel before, and lies in the L2 cache in a model, too.
_MOST_COPIES = 16


class Prepared:
    """A case on a device: random inputs, and the outputs that its reference has for them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.spec = SPECS[case.kernel]
        self.sizes = all_sizes(case)
        self.inputs = inputs_of(case, device)
        self.expected = self.spec.reference(case.parameters, *self.inputs)
        self._copies = [self.inputs, *([t.clone() for t in self.inputs] for _ in range(self._enough_copies() - 1))]

    def calls(self, function: Callable[..., object], configuration: Any) -> tuple[list[Callable[[], object]], float]:
        """Calls of a built kernel, each on a copy of the inputs, and how far its outputs deviate from the reference's.

        On a GPU there are so many copies that they do not fit into its L2 cache.
        """
        scratch = [self._empty(t) for t in self.spec.workspaces(self.case.parameters, configuration)]
        outputs = [[self._empty(t) for t in self.spec.outputs(self.case.parameters)] for _ in self._copies]
        calls: list[Callable[[], object]] = [
            partial(function, *inputs, *out, *scratch) for inputs, out in zip(self._copies, outputs, strict=True)
        ]
        calls[0]()
        return calls, max(deviation(out, want) for out, want in zip(outputs[0], self.expected, strict=True))

    def reference_calls(self) -> list[Callable[[], object]]:
        """Calls of what PyTorch has for the case, likewise; none where it has nothing."""
        candidate = candidate_of(self.case)
        return [partial(candidate, self.case.parameters, *inputs) for inputs in self._copies] if candidate else []

    def compiled_calls(self, mode: str) -> tuple[list[Callable[[], object]], float | None]:
        """Calls of the same by ``torch.compile`` in a mode of its, and ``None``.

        Where PyTorch has nothing for the case, they are of the kernel's reference, and it is said how far what they
        return deviates from it uncompiled.
        """
        torch.compiler.reset()  # what was compiled for other sizes would make these dynamic
        candidate = candidate_of(self.case)
        reference: Callable[..., Any] = torch.compile(candidate or self.spec.reference, mode=mode, dynamic=False)
        calls: list[Callable[[], object]] = [partial(reference, self.case.parameters, *i) for i in self._copies]
        if candidate is not None:
            return calls, None
        results: tuple[torch.Tensor, ...] = reference(self.case.parameters, *self.inputs)
        return calls, max(deviation(out, want) for out, want in zip(results, self.expected, strict=True))

    @property
    def num_copies(self) -> int:
        """How many copies of the inputs there are for calls to take turns with."""
        return len(self._copies)

    def _enough_copies(self) -> int:
        if self.device.type != "cuda":
            return 1
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        return min(_MOST_COPIES, 1 + math.ceil(2 * cache / sum(tensor.nbytes for tensor in self.inputs)))

    def _empty(self, tensor: TensorType) -> torch.Tensor:
        """A tensor to write to, filled with NaN where its dtype has one, so that what stays unwritten shows."""
        out = torch.empty(shape_of(tensor, self.sizes), device=self.device, dtype=getattr(torch, tensor.dtype))
        return out.fill_(float("nan")) if out.dtype.is_floating_point and out.element_size() > 1 else out


def deviation(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference over the largest magnitude; for integers, the share that differs."""
    if not expected.dtype.is_floating_point:
        return float((result != expected).double().mean())
    difference = (result.double() - expected.double()).abs().max()
    value = float(difference / expected.double().abs().max().clamp_min(1e-30))
    return float("inf") if value != value else value
