"""WGMMA in generated CUDA code: what it reads, what it adds to, and which fences it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.kernels.cuda_machine import Fault
from tests.kernels.cuda_syntax import Node
from tests.kernels.cuda_threads import Threads
from tests.kernels.cuda_values import root


def _multiply(convoy: Threads, template: tuple[str, ...], arguments: tuple[Node, ...], *, from_registers: bool) -> None:
    item = {"kBFloat16": 2, "kFloat16": 2, "kTensorFloat32": 4, "kTFloat32": 4, "kFloat32": 4}.get(
        template[0].rsplit("::", 1)[-1], 1
    )
    n, k = int(template[4]), int(template[5])
    transposed = [text == "true" for text in template[6:8]]
    rows = (64, n)
    accumulator = root(arguments[2])
    registers = [accumulator] + ([root(arguments[0])] if from_registers else [])
    for register in registers:
        assert register is not None
        if register in convoy.touched:
            raise Fault(f"{register} goes into a WGMMA without wgmma.fence (warpgroup_arrive) before it")
        if register in convoy.unfenced:
            raise Fault(f"{register} goes into a WGMMA without warpgroup_fence_operand before it")
    for agent in convoy.own:
        convoy.machine.wgmma[agent].issued += 1
    for side in (1,) if from_registers else (0, 1):
        descriptor = convoy.value(arguments[side])
        _read_operand(convoy, descriptor, rows[side], k, item, major=transposed[side])
    convoy.adding[str(accumulator)] = convoy.group
    convoy.stale.add(str(accumulator))
    if from_registers:
        convoy.reading[str(registers[1])] = convoy.group


def _read_operand(convoy: Threads, descriptor: Any, rows: int, k: int, item: int, major: bool) -> None:
    layout, leading, stride, pointer, shift = descriptor
    swizzle = {1: 128, 2: 64, 3: 32}.get(layout)
    offsets = np.broadcast_to(np.asarray(pointer.offset + shift), convoy.threads.shape)
    for agent in convoy.own:
        start = int(offsets[np.flatnonzero(convoy.agents == agent)[0]])
        if swizzle is None:
            raise Fault("WGMMA from memory that is not swizzled: not followed")
        start -= start % swizzle
        if major:
            chunks = -(-rows * item // swizzle)
            starts = start + np.arange(chunks) * leading * 16
            length = k // 8 * stride * 16 if item == 2 else k * swizzle
        else:
            starts, length = np.array([start]), rows // 8 * stride * 16
        places = convoy.machine.place(convoy.block, starts, length)
        groups = convoy.machine.wgmma[agent]
        convoy.machine.access(agent, places, writes=False, source=groups.source, at=groups.issued, asynchronous=True)


def _finish(convoy: Threads, template: tuple[str, ...], _: tuple[Node, ...]) -> None:
    pending = int(template[0])
    for agent in convoy.own:
        convoy.machine.complete(agent, convoy.machine.wgmma[agent], pending)
    over = convoy.group - pending
    convoy.adding = {name: group for name, group in convoy.adding.items() if group >= over}
    convoy.reading = {name: group for name, group in convoy.reading.items() if group >= over}


def _descriptor(convoy: Threads, template: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    layout, leading, stride = (int(text) for text in template[:3])
    name = str(arguments[0].parts[0])
    convoy.variables[name] = (layout, leading, stride, convoy.value(arguments[1]), 0)


def _shift_descriptor(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    name = str(arguments[0].parts[0])
    *fixed, shift = convoy.variables[name]
    convoy.variables[name] = (*fixed, shift + convoy.value(arguments[1]))


def _fence_registers(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    name = root(arguments[0])
    assert name is not None
    convoy.unfenced.discard(name)
    convoy.stale.discard(name)


def _fence_wgmma(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.touched.clear()


def _commit_products(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.group += 1
    for agent in convoy.own:
        convoy.machine.wgmma[agent].commit()


PRODUCT_CALLS: dict[str, Callable[..., Any]] = {
    "wgmma_ss": partial(_multiply, from_registers=False),
    "wgmma_rs": partial(_multiply, from_registers=True),
    "initialize_wgmma_descriptor": _descriptor,
    "increase_descriptor_offset": _shift_descriptor,
    "warpgroup_fence_operand": _fence_registers,
    "warpgroup_arrive": _fence_wgmma,
    "warpgroup_commit_batch": _commit_products,
    "warpgroup_wait": _finish,
    "wait_wgmma": _finish,
}
"""What runs each function, of the threads, its template's and its own arguments."""
