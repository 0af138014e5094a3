"""Runs generated CUDA for sm_90a without a GPU, for what its threads wait for, and finds what is not ordered.

The control flow of one thread block (or cluster) is interpreted with real sizes: branches, loops, barriers' numbers and
parities, addresses in shared memory. What is computed is not: values that are not integers are unknown. Every access of
shared memory goes to :class:`cuda_machine.Machine`, which knows what must be ordered, and every wait must end.

Found are: accesses that race, by threads, bulk copies (TMA), WGMMA and ``cp.async``; missing proxy fences; waits that
never end, or for the wrong phase where that makes a race; bulk loads of more or fewer bytes than are expected; WGMMA
whose operands or accumulators are touched before it is waited for, or without ``wgmma.fence`` before it; bulk stores
that are not waited for; reads of global memory before ``griddepcontrol.wait``.

Not found are: races between lanes of one warp, which are taken to go in step; what only other sizes or other blocks do;
order among blocks by way of global memory; accesses that depend on data that is not given (:attr:`Run.unknown` counts
them); what the helpers of TileLang's headers do otherwise than is written here.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.kernels.cuda_convoy import Convoy
from tests.kernels.cuda_machine import Fault
from tests.kernels.cuda_syntax import parse
from tests.kernels.cuda_threads import Block, Launch, Run

WARPGROUP = 128


def check(source: str, launch: Launch) -> list[Run]:
    """Run each kernel of a generated file; raises :class:`cuda_machine.Fault` with the line."""
    return [_run(Block(function, launch)) for function in parse(source)]


def _run(block: Block) -> Run:
    """All threads in turns, each as far as it goes before it waits."""
    width = min(WARPGROUP, block.function.threads)
    convoys = [
        Convoy(block, number, first, min(width, block.function.threads - first))
        for number in range(block.launch.cluster)
        for first in range(0, block.function.threads, width)
    ]
    waiting: dict[int, Callable[[], bool] | None] = dict.fromkeys(range(len(convoys)))
    runs = [convoy.run() for convoy in convoys]
    while waiting:
        progress = False
        for at in list(waiting):
            ready = waiting[at]
            if ready is not None and not ready():
                continue
            progress = True
            try:
                waiting[at] = next(runs[at])
            except StopIteration:
                del waiting[at]
            except Fault as fault:
                raise convoys[at].located(fault) from None
        if not progress:
            places = "; ".join(f"threads from {convoys[at].first} on at {convoys[at].place}" for at in waiting)
            raise Fault(f"{block.function.name}: these wait for ever: {places}")
    return block.result
