"""The runtime's products by themselves, in each width of vectors, for tests to call with any sizes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
import tvm_ffi.libinfo

from tkc.builder import runtime_objects
from tkc.builder.compiled_once import compiled_once
from tkc.builder.host_code import compile_host_code
from tkc.contracts import PACKED, PRODUCT, SHARE_THREADS, USE_PACKED
from tkc.passes.graph.product_call import Operation, Step

_FOLDER = Path(runtime_objects.__file__).parent
Axis = tuple[int, int, int]
"""Stride, padding and dilation."""


class ProductsLibrary:
    """``products.cc`` for vectors of ``lanes`` floats, with a pool of ``threads``."""

    def __init__(self, lanes: int, threads: int) -> None:
        self._module = _loaded(lanes, threads)
        self._product = self._module.get_function(PRODUCT)
        self._make, self._use = self._module.get_function(PACKED), self._module.get_function(USE_PACKED)
        self._store = 0
        self.packs(False)

    def packs(self, once: bool, most_threads: int = 0) -> None:
        """Whether the next calls of this thread pack their weights once, in a new store, and in how many threads."""
        if self._store:
            self._make(self._store)
        self._store = self._make(0) if once else 0
        self._use(self._store, most_threads)

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, steps: Sequence[Step] = (), *, transposed: bool = False
    ) -> torch.Tensor:
        """``x [..., k]`` by a weight ``[n, k]``, or ``[k, n]`` if it is ``transposed``."""
        result = torch.full((*x.shape[:-1], weight.shape[int(transposed)]), torch.nan)
        self._call([0, 1, int(transposed), 0], x, weight, steps, result)
        return result

    def convolution(
        self, x: torch.Tensor, weight: torch.Tensor, axes: Sequence[Axis], steps: Sequence[Step] = ()
    ) -> torch.Tensor:
        """``x [batch, channels, ...]``, also of each channel by itself; the result's channels are second, too."""
        depthwise = weight.shape[1] == 1 < x.shape[1]
        sizes = [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, (stride, padding, dilation) in zip(x.shape[2:], weight.shape[2:], axes, strict=True)
        ]
        result = torch.full((x.shape[0], *sizes, weight.shape[0]), torch.nan)
        plan = [int(depthwise), 1, 0, len(axes), *(number for axis in axes for number in axis)]
        self._call(plan, x.movedim(1, -1).contiguous(), weight, steps, result)
        return result.movedim(-1, 1)

    def means(self, x: torch.Tensor) -> torch.Tensor:
        """Of each channel of ``x [batch, channels, ...]``."""
        last = x.movedim(1, -1).contiguous()
        result = torch.full((x.shape[0], x.shape[1]), torch.nan)
        self._call([0, 1, 0, 3], last, last, (), result)
        return result

    def _call(
        self, plan: Sequence[int], x: torch.Tensor, weight: torch.Tensor, steps: Sequence[Step], result: torch.Tensor
    ) -> None:
        operands: list[Any] = [step.operand for step in steps if step.operand is not None]
        numbers = [*plan, 0]
        place = 0
        for step in steps:
            numbers += [int(step.operation), -1 if step.operand is None else place, 0]
            place += step.operand is not None
        self._product(tvm_ffi.Shape(tuple(numbers)), x, weight, *operands, result)


def bias_and_relu(bias: torch.Tensor) -> list[Step]:
    """The steps behind most products."""
    return [Step(Operation.ADD_CHANNEL, bias), Step(Operation.RELU)]


@functools.cache
def _loaded(lanes: int, threads: int) -> Any:
    """Compiled without all optimizations, which takes less than half of the time."""
    options = ("-O1", f"-DTKC_LANES={lanes}", *runtime_objects._VECTORS[lanes])
    objects = [compiled_once(_FOLDER / "products.cc", options=options), compiled_once(_FOLDER / "parallel.cc")]
    library = Path(tempfile.mkdtemp()) / "products.so"
    found = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    compile_host_code(["-shared", *map(str, objects), f"-L{found.parent}", "-ltvm_ffi"], library)
    module = tvm_ffi.load_module(str(library))
    module.get_function(SHARE_THREADS)(threads, 0, 0)
    return module
