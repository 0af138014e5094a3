"""How long a function takes, estimated before anything is measured."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import DataType, IRModule, s_tir, tirx
from tvm.target import Target

from tkc.kernels.devices import device
from tkc.schedules.blocks import nodes, static
from tkc.schedules.sizes import size_variables, specialize
from tkc.schedules.target import vector_lanes

# Stands for a size that is known only at run time; relative to one another, functions cost much the same at others.
_NOMINAL_SIZE = 128


@dataclass(frozen=True)
class Cost:
    """How often a model calls a function and what a call takes.

    ``estimated`` is by operations and bytes, in seconds; ``recorded`` is what the record measured, if there is one.
    """

    calls: int
    estimated: float
    recorded: float | None = None


@dataclass(frozen=True)
class Rates:
    """What a machine does in a second at best: operations on float32, and bytes read or written."""

    flops: float
    bytes: float


def estimated_seconds(func: tirx.PrimFunc, target: Target) -> float:
    """The time of ``func``, unscheduled, if it ran at the rates of ``target``: the roofline.

    The larger of operations ÷ peak rate and bytes ÷ bandwidth (Williams, Waterman and Patterson, "Roofline: an
    insightful visual performance model", CACM 52(4), 2009). Operations are what TVM counts, bytes those of
    :func:`parameter_bytes`. The rates are nominal for the kind of machine, so the estimate serves to compare functions
    with one another. Symbolic sizes count as 128.
    """
    static_func = specialize(func, dict.fromkeys(size_variables(func), _NOMINAL_SIZE))
    rates = machine_rates(target)
    return max(_operations(static_func) / rates.flops, parameter_bytes(static_func) / rates.bytes)


def machine_rates(target: Target) -> Rates:
    """The nominal rates of the kind of machine that ``target`` is."""
    if target.kind.name == "cuda":
        gpu = device(str(target.attrs["arch"]))
        return Rates(gpu.flops, gpu.bandwidth)
    cores = int(target.attrs.get("num-cores", os.cpu_count() or 1))
    lanes = vector_lanes(target, "float32")
    # Two fused multiply-adds a cycle at 2.5 GHz; two channels of memory of 20 GB/s.
    return Rates(cores * lanes * 4 * 2.5e9, 40e9)


def _operations(func: tirx.PrimFunc) -> float:
    try:
        return float(s_tir.analysis.estimate_tir_flops(IRModule({"main": func})))
    except (RuntimeError, ValueError, TypeError):  # loops whose length depends on data have no count
        return 0.0


def parameter_bytes(func: tirx.PrimFunc) -> float:
    """The bytes that the blocks of ``func``, unscheduled and of known sizes, read and write of its parameters.

    Of each parameter at most all of it, and at most what every iteration touches, so that a gather does not count its
    whole table.
    """
    parameters = set(func.buffer_map.values())
    touched: dict[tirx.Buffer, float] = {}
    for block in nodes(func.body):
        if not isinstance(block, tirx.SBlock):
            continue
        iterations = math.prod(static(iterator.dom.extent) or 1 for iterator in block.iter_vars)
        for region in (*block.reads, *block.writes):
            if region.buffer in parameters:
                elements = iterations * math.prod(_extents(region))
                touched[region.buffer] = touched.get(region.buffer, 0.0) + elements
    sizes: Iterator[float] = (
        min(elements, math.prod(static(extent) or 1 for extent in buffer.shape)) * DataType(buffer.dtype).bits / 8
        for buffer, elements in touched.items()
    )
    return sum(sizes)


def _extents(region: tirx.BufferRegion) -> Iterator[int]:
    for dimension in region.region:
        yield static(dimension.extent) or 1
