"""A thread block (or a cluster) as the PTX memory model sees it: who knows of whose accesses, and in what order.

Each warp has a vector clock: for every source of accesses, up to which of them all have happened before what the warp
does next. Sources are the warps, and what works beside them: their WGMMAs, their bulk stores, their ``cp.async``
copies, and the bulk loads of each mbarrier. Accesses of shared memory that conflict must be ordered by these clocks.

Warps access memory through the generic proxy, bulk copies and WGMMA through the asynchronous one. A warp's second clock
holds what it knows of generic accesses by way of a proxy fence, and what is asynchronous looks at that one.
(PTX ISA, "Memory Consistency Model", "Asynchronous operations", "Async proxy", "mbarrier".)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

WARP = 32
GRANULE = 4  # bytes that are told apart
Clock = NDArray[np.int32]
Places = NDArray[np.int64] | slice


class Fault(Exception):
    """What is wrong with a kernel's synchronization."""


@dataclass
class Mbarrier:
    """``count`` arrivals, and as many bytes as are expected, end a phase. Clocks are what those arriving know."""

    name: str
    loads: int  # the source of the bulk loads that it counts
    count: int
    initialized_by: int
    visible: bool = False  # to other proxies and blocks: fence.mbarrier_init
    pending: int = 0
    phase: int = 0
    expected: int = 0  # bytes, of this phase
    loaded: int = 0
    arriving: tuple[Clock, Clock] | None = None
    done: tuple[Clock, Clock] | None = None

    def passes(self, parity: int) -> bool:
        """Whether the phase of this parity is over."""
        return self.phase % 2 != parity


@dataclass
class Groups:
    """Groups of a warp's asynchronous operations, which end in the order in which they were committed."""

    source: int
    issued: int = 0
    committed: list[int] = field(default_factory=list)  # each group's last operation
    counted: int = 0  # the last operation that an mbarrier waits for

    def commit(self) -> None:
        """Close a group; it may be empty."""
        self.committed.append(self.issued)

    def done_but(self, pending: int) -> int:
        """The last operation that is over when all but the last ``pending`` groups are."""
        return self.committed[-1 - pending] if len(self.committed) > pending else 0


@dataclass
class Rendezvous:
    """Of a hardware barrier: who waits, and what they know together."""

    arrived: int = 0
    turn: int = 0
    clocks: tuple[Clock, Clock] | None = None
    released: tuple[Clock, Clock] | None = None


class Machine:
    """``blocks`` thread blocks of ``threads`` threads, with ``shared_bytes`` of shared memory each."""

    def __init__(self, threads: int, blocks: int, shared_bytes: int, barriers: Iterable[str]) -> None:
        self.warps = threads // WARP
        self.threads, self.blocks = threads, blocks
        self.agents = agents = self.warps * blocks
        names = list(barriers)
        self.sources = 4 * agents + blocks * len(names)
        self.is_generic = np.zeros(self.sources, dtype=bool)
        self.is_generic[:agents] = True
        self.is_generic[3 * agents : 4 * agents] = True  # cp.async is of the generic proxy
        self.clock = np.zeros((agents, self.sources), dtype=np.int32)
        self.fenced = np.zeros((agents, self.sources), dtype=np.int32)
        self.clock[np.arange(agents), np.arange(agents)] = 1
        self.wgmma = [Groups(agents + i) for i in range(agents)]
        self.stores = [Groups(2 * agents + i) for i in range(agents)]
        self.copies = [Groups(3 * agents + i) for i in range(agents)]
        self._loads = {
            (block, name): 4 * agents + block * len(names) + i
            for block in range(blocks)
            for i, name in enumerate(names)
        }
        self.mbarriers: dict[tuple[int, str], Mbarrier] = {}
        self.rendezvous: dict[tuple[int, int], Rendezvous] = {}
        self.granules = -(-shared_bytes // GRANULE)
        total = blocks * self.granules
        self._read = np.zeros((self.sources, total), dtype=np.int32)
        self._added = np.zeros((agents, total), dtype=np.int32)  # by atomic operations
        self._writer = np.zeros(total, dtype=np.int32)
        self._written = np.zeros(total, dtype=np.int32)
        self.ended: set[int] = set()

    # Accesses of shared memory

    def place(self, block: int, addresses: NDArray[np.int64], size: int) -> Places:
        """The granules of ``size`` bytes from each address on, in a block's memory; some may come repeatedly."""
        first, last = addresses // GRANULE, (addresses + size - 1) // GRANULE
        if len(addresses) and (first.min() < 0 or last.max() >= self.granules):
            raise Fault(f"bytes {addresses.min()} to {addresses.max() + size} are not in shared memory")
        base = block * self.granules
        if len(addresses) == 1:
            return slice(int(first[0]) + base, int(last[0]) + base + 1)
        steps = np.arange(int((last - first).max(initial=0)) + 1)
        granules: NDArray[np.int64] = np.minimum(first[:, None] + steps, last[:, None]).ravel() + base
        return granules

    def _view(self, agent: int, asynchronous: bool) -> Clock:
        own: Clock = self.clock[agent]
        return np.where(self.is_generic, self.fenced[agent], own) if asynchronous else own

    def _check(self, view: Clock, accesses: NDArray[np.int32], places: Places, what: str) -> None:
        found = accesses[:, places] > view[: len(accesses), None]
        if found.any():
            source = int(np.flatnonzero(found.any(axis=1))[0])
            raise Fault(f"{what}: {self.describe(source)} {self._where(places, found[source])}")

    def _where(self, places: Places, found: NDArray[np.bool_]) -> str:
        numbers = np.arange(places.start, places.stop) if isinstance(places, slice) else places
        return f"(byte {int(numbers[np.flatnonzero(found)[0]]) % self.granules * GRANULE})"

    def access(
        self,
        agent: int,
        places: Places,
        *,
        writes: bool,
        source: int | None = None,
        at: int = 0,
        asynchronous: bool = False,
        atomic: bool = False,
    ) -> None:
        """By a warp, or by an operation of another ``source``, its number ``at``, that the warp begins.

        Raises :class:`Fault` if a conflicting access is not ordered before it.
        """
        view = self._view(agent, asynchronous)
        writers = self._writer[places]
        unordered = view[writers] < self._written[places]
        if unordered.any():
            nth = int(np.flatnonzero(unordered)[0])
            verb = "writes" if writes else "reads"
            raise Fault(
                f"{verb} what {self.describe(int(writers[nth]))} writes"
                f" {self._where(places, unordered)}, and is not ordered after it"
            )
        if not atomic:
            self._check(view, self._added, places, "not ordered after an atomic operation of")
        if writes:
            self._check(view, self._read, places, "writes what is still being read by")
        own, clock = (agent, int(self.clock[agent, agent])) if source is None else (source, at)
        if atomic:
            self._added[own, places] = clock
        elif writes:
            self._writer[places], self._written[places] = own, clock
        else:
            self._read[own, places] = np.maximum(self._read[own, places], clock)

    def describe(self, source: int) -> str:
        """A source of accesses, in words."""
        kinds = ("warp {}", "a WGMMA of warp {}", "a bulk store of warp {}", "a cp.async of warp {}")
        if source < 4 * self.agents:
            return kinds[source // self.agents].format(source % self.agents)
        return f"a bulk load of {next(name for (_, name), at in self._loads.items() if at == source)}"

    # What orders them

    def tick(self, agent: int) -> None:
        """What the warp does from here on is not part of what it has published."""
        self.clock[agent, agent] += 1

    def learn(self, agent: int, known: tuple[Clock, Clock] | None) -> None:
        """Acquire what others have published."""
        if known is not None:
            np.maximum(self.clock[agent], known[0], out=self.clock[agent])
            np.maximum(self.fenced[agent], known[1], out=self.fenced[agent])

    def fence_proxy(self, agent: int) -> None:
        """``fence.proxy.async``."""
        np.maximum(self.fenced[agent], self.clock[agent], out=self.fenced[agent])

    def knowledge(self, agent: int, other: tuple[Clock, Clock] | None) -> tuple[Clock, Clock]:
        """What a warp knows, with what is there already."""
        if other is None:
            return self.clock[agent].copy(), self.fenced[agent].copy()
        return np.maximum(other[0], self.clock[agent]), np.maximum(other[1], self.fenced[agent])

    def complete(self, agent: int, groups: Groups, pending: int) -> None:
        """Wait until all but ``pending`` groups are over."""
        self.clock[agent, groups.source] = max(self.clock[agent, groups.source], groups.done_but(pending))

    def initialize(self, agent: int, block: int, name: str, count: int) -> None:
        """``mbarrier.init``."""
        if (block, name) in self.mbarriers:
            raise Fault(f"{name} is initialized twice")
        barrier = Mbarrier(name, self._loads[block, name], count, agent, pending=count)
        self.mbarriers[block, name] = barrier

    def publish_initialized(self, agent: int) -> None:
        """``fence.mbarrier_init``."""
        for barrier in self.mbarriers.values():
            barrier.visible = barrier.visible or barrier.initialized_by == agent

    def mbarrier(self, agent: int, block: int, name: str) -> Mbarrier:
        """For use by a warp, which must know that it is initialized."""
        barrier = self.mbarriers.get((block, name))
        if barrier is None:
            raise Fault(f"{name} is used before it is initialized")
        if agent != barrier.initialized_by and self.clock[agent, barrier.initialized_by] < 1:
            raise Fault(f"{name} is used by warp {agent}, which does not know that it is initialized")
        if not barrier.visible:
            raise Fault(f"{name} is used without fence.mbarrier_init")
        return barrier

    def arrive(self, agent: int, barrier: Mbarrier, threads: int, expected: int = 0) -> None:
        """``threads`` arrivals by one warp, with bytes that are expected."""
        barrier.expected += expected
        barrier.arriving = self.knowledge(agent, barrier.arriving)
        barrier.pending -= threads
        if barrier.pending < 0:
            raise Fault(f"more threads arrive at {barrier.name} than the {barrier.count} it counts")
        self.tick(agent)
        self.finish_phase(barrier)

    def load(self, agent: int, barrier: Mbarrier, block: int, places: Places, num_bytes: int) -> None:
        """A bulk copy to shared memory that the barrier counts."""
        barrier.loaded += num_bytes
        if barrier.loaded > barrier.expected:
            raise Fault(f"{barrier.name} expects {barrier.expected} bytes, and {barrier.loaded} are loaded for it")
        self.access(agent, places, writes=True, source=barrier.loads, at=barrier.phase + 1, asynchronous=True)
        self.finish_phase(barrier)

    def finish_phase(self, barrier: Mbarrier) -> None:
        """If all have arrived, and all bytes have."""
        if barrier.pending or barrier.loaded != barrier.expected:
            return
        assert barrier.arriving is not None
        barrier.phase += 1
        clock, fenced = barrier.arriving
        clock[barrier.loads] = barrier.phase
        if barrier.done is not None:
            clock, fenced = np.maximum(clock, barrier.done[0]), np.maximum(fenced, barrier.done[1])
        barrier.done = clock, fenced
        barrier.pending, barrier.arriving, barrier.expected, barrier.loaded = barrier.count, None, 0, 0

    def meet(self, agent: int, block: int, number: int, count: int) -> int:
        """A warp comes to a hardware barrier of ``count`` threads; the turn in which it does."""
        barrier = self.rendezvous.setdefault((block, number), Rendezvous())
        barrier.clocks = self.knowledge(agent, barrier.clocks)
        self.tick(agent)
        barrier.arrived += WARP
        turn = barrier.turn
        self.release(barrier, count)
        return turn

    def release(self, barrier: Rendezvous, count: int) -> None:
        """Let those that wait go on, if enough do."""
        if barrier.arrived > count:
            raise Fault(f"{barrier.arrived} threads come to a barrier of {count}")
        if barrier.arrived == count:
            barrier.released, barrier.clocks, barrier.arrived = barrier.clocks, None, 0
            barrier.turn += 1

    def end(self, agent: int) -> None:
        """A warp's last statement is over."""
        if self.stores[agent].issued > self.clock[agent, self.stores[agent].source]:
            raise Fault(f"warp {agent} ends while its bulk stores still read shared memory")
        copies = self.copies[agent]
        if copies.issued > max(copies.counted, self.clock[agent, copies.source]):
            raise Fault(f"warp {agent} ends while its cp.async copies still write shared memory")
        self.ended.add(agent)
