"""Any number of threads call one executable: each gets its own result, and none waits for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tkc
from tests.captured_calls import captured
from tests.runtime import concurrency
from tests.runtime.concurrency import Counter, attention, inputs
from tkc.errors import InputError, UsageError
from tkc.runtime.machines import Machines

THREADS, CALLS = 6, 60
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def executable() -> tkc.Executable:
    """Attention, with kernels and generated code."""
    return concurrency.compiled()


@pytest.fixture(scope="module")
def counter() -> tkc.Executable:
    """A model with state."""
    return tkc.compile(Counter(), (torch.randn(3),))


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    """What the model returns for each of the calls' inputs."""
    model = attention()
    with torch.no_grad():
        return [model(inputs(index)) for index in range(CALLS)]


def in_threads(count: int, work: Callable[[int], None], seconds: float = 60) -> None:
    """``work`` of each number below ``count`` in a thread of its own, all at once; raises what the first one raised."""
    ready, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a call never came back"
    for error in errors:
        raise error


def test_each_thread_gets_what_it_asked_for(executable: tkc.Executable, expected: list[torch.Tensor]) -> None:
    """Hundreds of calls of different sizes at once, more threads than machines, while loading and later."""
    fresh = tkc.Executable.__copy__(executable)  # nothing is loaded in it yet

    def work(thread: int) -> None:
        for call in range(CALLS):
            index = (call * 7 + thread) % CALLS
            torch.testing.assert_close(fresh(inputs(index)), expected[index], atol=1e-4, rtol=1e-4)

    in_threads(THREADS, work)
    assert fresh._running._machines is not None and fresh._running._machines.lent == 0


def test_generated_code_alone_serves_threads(expected: list[torch.Tensor]) -> None:
    """No kernel libraries: parallel loops of the generated code, one call's beside another's."""
    sizes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("sequence", min=2, max=64)}
    executable = tkc.compile(attention(), (inputs(3),), kernels="none", dynamic_shapes={"x": sizes})

    def work(thread: int) -> None:
        for index in range(thread, CALLS, 2):
            torch.testing.assert_close(executable(inputs(index)), expected[index], atol=1e-4, rtol=1e-4)

    in_threads(4, work)


def test_a_model_with_state_is_called_once_at_a_time(counter: tkc.Executable) -> None:
    """No count is lost or given twice, and copies count for themselves."""
    counter.reset()
    seen: list[float] = []
    other = tkc.Executable.__copy__(counter)

    def work(_: int) -> None:
        for _ in range(25):
            seen.append(counter(torch.randn(3))[0].item())
            other(torch.randn(3))

    in_threads(THREADS, work)
    assert sorted(seen) == list(range(1, THREADS * 25 + 1))
    assert other.state["count"].item() == THREADS * 25 and counter.max_concurrency == 1


def test_an_error_in_one_thread_is_its_own(executable: tkc.Executable, expected: list[torch.Tensor]) -> None:
    """Bad inputs raise where they are given; the others' calls and the pool go on."""

    def work(thread: int) -> None:
        for index in range(20):
            if thread % 2:
                with pytest.raises(InputError):
                    executable(torch.randn(2, 5, 7))
            else:
                torch.testing.assert_close(executable(inputs(index)), expected[index], atol=1e-4, rtol=1e-4)

    in_threads(4, work)
    assert executable._running._machines is not None and executable._running._machines.lent == 0


def test_max_concurrency_may_change_while_calls_run(executable: tkc.Executable, expected: list[torch.Tensor]) -> None:
    """Fewer, then more: every call ends, and the pool is no larger than it may be."""

    def work(thread: int) -> None:
        for call in range(CALLS):
            if thread == 0:
                executable.max_concurrency = 1 + call % 5
            torch.testing.assert_close(executable(inputs(call)), expected[call], atol=1e-4, rtol=1e-4)

    in_threads(THREADS, work)
    executable.max_concurrency = 2
    in_threads(2, lambda thread: concurrency.check(executable, thread))
    assert executable._running._machines is not None
    assert len(executable._running._machines._all) <= 2 and executable._running._machines.lent == 0
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(UsageError, match="max_concurrency"):
            executable.max_concurrency = bad  # type: ignore[assignment]


def test_an_executable_may_go_while_its_results_stay(executable: tkc.Executable) -> None:
    """Threads call copies that nothing else holds, and read results after these are gone."""

    def work(thread: int) -> None:
        result = executable.__copy__()(inputs(thread))
        gc.collect()
        with torch.no_grad():
            torch.testing.assert_close(result, attention()(inputs(thread)), atol=1e-4, rtol=1e-4)

    in_threads(3, work)


def test_asyncio_and_executors_call_it(executable: tkc.Executable, expected: list[torch.Tensor]) -> None:
    """``asyncio.to_thread`` and a thread pool."""

    async def all_of_them() -> list[torch.Tensor]:
        return await asyncio.wait_for(
            asyncio.gather(*[asyncio.to_thread(executable, inputs(index)) for index in range(CALLS)]), 60
        )

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda index: executable(inputs(index)), range(CALLS), timeout=60))
    for found in (asyncio.run(all_of_them()), results):
        for result, right in zip(found, expected, strict=True):
            torch.testing.assert_close(result, right, atol=1e-4, rtol=1e-4)


def test_no_lock_is_held_while_computing(executable: tkc.Executable) -> None:
    """While one call runs, others begin and end, also those of the same executable."""
    executable.max_concurrency = 4
    concurrency.check(executable)
    machines = executable._running._machines
    assert machines is not None
    held = machines.take()
    try:
        in_threads(3, lambda thread: concurrency.check(executable, thread), 20)
    finally:
        machines.give_back(held)


class _Thing:
    """Stands in for a machine."""


def test_those_who_wait_get_their_turn() -> None:
    """One machine, which the holder gives back and asks for again at once: the one who waits is next."""
    machines = Machines(_Thing, 1)
    thing, served = machines.take(), threading.Event()

    def wait() -> None:
        machines.give_back(machines.take())
        served.set()

    threading.Thread(target=wait, daemon=True).start()
    while not machines._queue:
        time.sleep(0.001)
    machines.give_back(thing)
    machines.give_back(machines.take())
    assert served.wait(1)


def test_a_lost_or_dropped_machine_makes_room() -> None:
    """An interrupt between taking and giving back loses a machine; a lowered limit drops what comes back."""
    machines = Machines(_Thing, 2)
    first, second = machines.take(), machines.take()
    gone = weakref.ref(first)
    in_time = threading.Event()
    threading.Thread(target=lambda: (machines.take(), in_time.set()), daemon=True).start()
    del first
    gc.collect()
    assert gone() is None and in_time.wait(5)
    machines.most = 1
    machines.give_back(second)
    assert len(machines._all) <= 1


def test_dropping_at_once_leaves_nobody_waiting() -> None:
    """Two come back while only one may stay, and a third call waits: it is served."""
    for _ in range(50):
        machines = Machines(_Thing, 2)
        taken = [machines.take(), machines.take()]
        machines.most = 1
        waiting = threading.Thread(target=lambda m=machines: m.give_back(m.take()), daemon=True)
        waiting.start()
        in_threads(2, lambda n, m=machines, t=taken: m.give_back(t[n]), 5)
        waiting.join(5)
        assert not waiting.is_alive()


def test_a_machine_that_cannot_be_made_is_not_counted() -> None:
    """The error is the caller's, and the next call may try again."""
    fails = [True]

    def make() -> _Thing:
        if fails.pop() if fails else False:
            raise MemoryError("no machine")
        return _Thing()

    machines = Machines(make, 1)
    with pytest.raises(MemoryError):
        machines.take()
    assert machines.lent == 0
    machines.give_back(machines.take())


@pytest.mark.gpu
def test_threads_and_streams_on_a_gpu() -> None:
    """Two threads on streams of their own, while each other's calls are recorded and replayed as graphs."""
    executable = concurrency.compiled("cuda")
    model = attention()
    with torch.no_grad():
        expected = [model(inputs(index)) for index in range(12)]

    def work(_: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in range(240):
                index = call % 12
                x = inputs(index).cuda(non_blocking=True)
                result = executable(x)
                del x  # the allocator may give its memory to the other stream only when the call is done
                torch.testing.assert_close(result.cpu(), expected[index], atol=2e-3, rtol=2e-3)

    in_threads(2, work, 100)


@pytest.mark.gpu
def test_results_of_one_stream_are_read_on_another() -> None:
    """Two streams of one thread, each waiting for the other's results, with models with state and without."""
    executable = concurrency.compiled("cuda")
    counter = tkc.compile(Counter().cuda(), (torch.randn(3, device="cuda"),), target="cuda")
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    x = inputs(3).cuda()
    torch.cuda.synchronize()
    with torch.no_grad():
        expected = attention()(x.cpu())
    for call in range(1, 41):
        with torch.cuda.stream(streams[call % 2]):
            count = counter(torch.zeros(3, device="cuda"))
            result = executable(x)
            assert count[0].item() == call
            torch.testing.assert_close(result.cpu(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.gpu
def test_a_callers_own_graph_takes_the_call_in() -> None:
    """``torch.cuda.graph`` around a call, replayed with other values, while another thread calls."""
    executable = concurrency.compiled("cuda")
    x = inputs(3).cuda()
    graph, y = captured(lambda: executable(x), capture_error_mode="thread_local")
    model, stop = attention(), threading.Event()

    def call_beside() -> None:
        while not stop.is_set():
            executable(inputs(5).cuda())

    beside = threading.Thread(target=call_beside, daemon=True)
    beside.start()
    try:
        for seed in range(3):
            changed = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
            x.copy_(changed)
            graph.replay()
            with torch.no_grad():
                torch.testing.assert_close(y.cpu(), model(changed), atol=2e-3, rtol=2e-3)
    finally:
        stop.set()
        beside.join(20)
