"""Functions of generated CUDA code: copies, fences, atomics, exchange in a warp; and methods of barriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.kernels.cuda_machine import WARP, Fault, Groups
from tests.kernels.cuda_syntax import Node
from tests.kernels.cuda_threads import Threads
from tests.kernels.cuda_values import UNKNOWN, Pointer, Unknown


def _groups(kind: str) -> Callable[[Threads], list[tuple[int, Groups]]]:
    return lambda convoy: [(agent, getattr(convoy.machine, kind)[agent]) for agent in convoy.active()]


def _copy_in(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_load(descriptor, barrier, destination, coordinates…)``, and the same of windows (``im2col``)."""
    descriptor, (barrier_name,) = convoy.value(arguments[0]), convoy.barriers(convoy.value(arguments[1]))
    for agent, starts, size in _boxes(convoy, descriptor, arguments[2]):
        barrier = convoy.machine.mbarrier(agent, convoy.block, barrier_name)
        for start in starts:
            places = convoy.machine.place(convoy.block, np.array([start]), size)
            convoy.machine.load(agent, barrier, convoy.block, places, size)


def _copy_out(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_store(descriptor, source, coordinates…)``."""
    descriptor = convoy.value(arguments[0])
    for agent, starts, size in _boxes(convoy, descriptor, arguments[1]):
        groups = convoy.machine.stores[agent]
        groups.issued += 1
        places = convoy.machine.place(convoy.block, starts, size)
        convoy.machine.access(agent, places, writes=False, source=groups.source, at=groups.issued, asynchronous=True)


def _boxes(convoy: Threads, descriptor: Any, address: Node) -> list[tuple[int, Any, int]]:
    """Of each warp that copies: the addresses in shared memory, and how many bytes lie at each."""
    if not convoy.waited:
        raise Fault("global memory is accessed before griddepcontrol.wait")
    place = convoy.value(address)
    if not isinstance(place, Pointer) or isinstance(place.offset, Unknown):
        raise Fault("where this copy lies in shared memory is not known")
    size = convoy.launch.boxes[descriptor.name]
    shape = np.broadcast_shapes(convoy.mask.shape, np.shape(place.offset))
    offsets, mask = np.broadcast_to(place.offset, shape), np.broadcast_to(convoy.mask, shape)
    agents = np.broadcast_to(convoy.agents, shape)
    return [(agent, offsets[mask & (agents == agent)].astype(np.int64).ravel(), size) for agent in convoy.active()]


def _send(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_store_cluster(destination, source, peer, bytes, barrier)``, with its own arrival, expectation and fence."""
    machine = convoy.machine
    destination, source = convoy.value(arguments[0]), convoy.value(arguments[1])
    peer, num_bytes = convoy.number(arguments[2]), convoy.number(arguments[3])
    (name,) = convoy.barriers(convoy.value(arguments[4]))
    (agent,) = convoy.active()
    barrier = machine.mbarrier(agent, peer, name)
    # The phase cannot end before the bytes have come, though the arrival is made first.
    barrier.expected += num_bytes
    machine.fence_proxy(agent)
    own = machine.place(convoy.block, np.array([int(np.ravel(source.offset)[0])]), num_bytes)
    machine.access(agent, own, writes=False, source=barrier.loads, at=barrier.phase + 1, asynchronous=True)
    theirs = machine.place(peer, np.array([int(np.ravel(destination.offset)[0])]), num_bytes)
    machine.load(agent, barrier, peer, theirs, num_bytes)
    machine.arrive(agent, barrier, 1)


def _commit(kind: str) -> Callable[..., None]:
    def commit(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
        for _agent, groups in _groups(kind)(convoy):
            groups.commit()

    return commit


def _await(kind: str) -> Callable[..., None]:
    def wait(convoy: Threads, template: tuple[str, ...], _: tuple[Node, ...]) -> None:
        for agent, groups in _groups(kind)(convoy):
            convoy.machine.complete(agent, groups, int(template[0]))

    return wait


def _copy_asynchronously(convoy: Threads, template: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    if not convoy.waited:
        raise Fault("global memory is accessed before griddepcontrol.wait")
    destination, *_ = (convoy.value(argument) for argument in arguments)
    convoy.access(destination, writes=True, size=int(template[0]), copies=True)


def _arrive_after_copies(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """The arrival comes when the thread's ``cp.async`` copies are done, which the thread itself does not wait for."""
    (name,) = convoy.barriers(convoy.value(arguments[0]))
    machine = convoy.machine
    for agent in convoy.active():
        barrier, groups = machine.mbarrier(agent, convoy.block, name), machine.copies[agent]
        known = int(machine.clock[agent, groups.source])
        machine.clock[agent, groups.source] = groups.counted = groups.issued
        machine.arrive(agent, barrier, int(convoy.mask[convoy.agents == agent].sum()))
        machine.clock[agent, groups.source] = known


def _fence_proxy(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    for agent in convoy.active():
        convoy.machine.fence_proxy(agent)


def _fence_initialized(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    for agent in convoy.active():
        convoy.machine.publish_initialized(agent)


def _wait_for_previous(convoy: Threads, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.waited = True


def _atomic(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> Any:
    place = convoy.value(arguments[0])
    if isinstance(place, Pointer) and place.space == "shared":
        convoy.access(place, writes=True, atomic=True)
    return UNKNOWN


def _matrix(rows: int, *, writes: bool) -> Callable[..., None]:
    """``ldmatrix`` and ``stmatrix``: the first ``rows`` lanes of a warp give the address of a row of 16 bytes each."""

    def access(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
        place = convoy.value(arguments[0])
        before = convoy.mask
        convoy.mask = before & (convoy.threads % WARP < rows)
        convoy.access(place, writes=writes, size=16)
        convoy.mask = before

    return access


def _prefix_sums(convoy: Threads, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``CumSum1D::run(source, destination, length)``, by the first warp."""
    source, destination = convoy.value(arguments[0]), convoy.value(arguments[1])
    length = convoy.number(arguments[2])
    before = convoy.mask
    convoy.mask = before & (convoy.threads < min(WARP, length))
    if convoy.mask.any():
        for first in range(0, length, WARP):
            lanes = np.minimum(convoy.threads + first, length - 1)
            convoy.access(convoy.moved(source, lanes), writes=False)
            convoy.access(convoy.moved(destination, lanes), writes=True)
    convoy.mask = before


CALLS: dict[str, Callable[..., Any]] = {
    "tma_load": _copy_in,
    "tma_load_im2col": _copy_in,
    "tma_store": _copy_out,
    "tma_store_cluster": _send,
    "tma_store_arrive": _commit("stores"),
    "tma_store_wait": _await("stores"),
    "cp_async_gs": _copy_asynchronously,
    "cp_async_gs_conditional": _copy_asynchronously,
    "cp_async_commit": _commit("copies"),
    "cp_async_wait": _await("copies"),
    "mbarrier_cp_async_arrive_noinc": _arrive_after_copies,
    "fence_proxy_async": _fence_proxy,
    "fence_barrier_init": _fence_initialized,
    "cudaGridDependencySynchronize": _wait_for_previous,
    "AtomicAdd": _atomic,
    "AtomicAddRet": _atomic,
    "CumSum1D::run": _prefix_sums,
    **{f"ptx_ldmatrix_x{n}{t}": _matrix(8 * n, writes=False) for n in (1, 2, 4) for t in ("", "_trans")},
    **{f"ptx_stmatrix_m8n8_x{n}{t}": _matrix(8 * n, writes=True) for n in (1, 2, 4) for t in ("", "_trans")},
}

"""What runs each function, of the threads, its template's and its own arguments."""

WARP_FUNCTIONS = (
    "__shfl_sync",
    "__shfl_up_sync",
    "__shfl_xor_sync",
    "__ballot_sync",
    "__any_sync",
    "__match_any_sync",
)

"""Functions of all lanes of a warp."""


def across_lanes(convoy: Threads, name: str, values: list[Any]) -> Any:
    """What each thread gets of a function in :data:`WARP_FUNCTIONS`."""
    value = values[1]
    if isinstance(value, Unknown) or any(isinstance(v, Unknown) for v in values):
        return UNKNOWN
    rows = np.broadcast_to(value, convoy.threads.shape).reshape(-1, WARP)
    lane = np.arange(WARP)
    if name == "__ballot_sync":
        return ((rows != 0) << lane).sum(axis=1, keepdims=True).repeat(WARP, axis=1).reshape(-1)
    if name == "__any_sync":
        return (rows != 0).any(axis=1, keepdims=True).repeat(WARP, axis=1).reshape(-1)
    if name == "__match_any_sync":
        same = rows[:, :, None] == rows[:, None, :]
        return (same << lane).sum(axis=2).reshape(-1)
    other = np.broadcast_to(values[2], convoy.threads.shape).reshape(-1, WARP)
    width = int(values[3]) if len(values) > 3 else WARP
    base = lane - lane % width
    if name == "__shfl_sync":
        source = base + other % width
    elif name == "__shfl_xor_sync":
        source = lane ^ other
    else:
        source = np.where(lane % width >= other, lane - other, lane)
    return np.take_along_axis(rows, np.broadcast_to(source, rows.shape), axis=1).reshape(-1)


def barrier_method(convoy: Threads, node: Node, name: str, arguments: tuple[Node, ...]) -> Any:
    """A method of the barriers that ``node`` names, but for those that wait."""
    place = convoy.pointed(node)
    values = [convoy.value(argument) for argument in arguments]
    convoy.owner.result.counts[name] += 1
    if name == "init":
        (agent,) = convoy.active()
        for barrier_name in convoy.barriers(place):
            convoy.machine.initialize(agent, convoy.block, barrier_name, int(values[0]))
        return UNKNOWN
    (barrier_name,) = convoy.barriers(place)
    expected = int(values[0]) if values else 0
    for agent in convoy.active():
        barrier = convoy.machine.mbarrier(agent, convoy.block, barrier_name)
        threads = int(convoy.mask[convoy.agents == agent].sum())
        if name == "expect_transaction":
            barrier.expected += expected * threads
        elif name in ("arrive", "arrive_and_expect_tx"):
            convoy.machine.arrive(agent, barrier, threads, expected * threads)
        else:
            raise Fault(f"{name} of a barrier is not known here")
    return UNKNOWN
