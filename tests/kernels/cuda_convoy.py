"""Neighbouring threads of generated CUDA code that go through a program: its statements, and what they wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from tests.kernels.cuda_calls import CALLS, WARP_FUNCTIONS, across_lanes, barrier_method
from tests.kernels.cuda_machine import WARP, Fault
from tests.kernels.cuda_products import PRODUCT_CALLS
from tests.kernels.cuda_syntax import Node, Statement
from tests.kernels.cuda_threads import Threads
from tests.kernels.cuda_values import FUNCTIONS, INTEGERS, SIZES, UNKNOWN, Pointer, Unknown, called, nodes, root

SYNCHRONIZING = frozenset(
    {
        *("wait", "arrive", "init", "expect_transaction", "arrive_and_expect_tx", "__syncthreads"),
        *("__sync_thread_partial", "cluster_sync", "tma_load", "tma_load_im2col", "tma_store", "tma_store_arrive"),
        *("tma_store_wait", "tma_store_cluster", "fence_proxy_async", "fence_barrier_init"),
        *("warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_wait", "wait_wgmma"),
        *("warpgroup_fence_operand", "wgmma_ss", "wgmma_rs", "cp_async_gs", "cp_async_gs_conditional"),
        *("cp_async_commit", "cp_async_wait", "mbarrier_cp_async_arrive_noinc", "AllReduce", "CumSum1D"),
        *("cudaGridDependencySynchronize", "AtomicAdd", "AtomicAddRet", "ptx_ldmatrix_x4"),
        *("ptx_ldmatrix_x4_trans", "ptx_ldmatrix_x2", "ptx_ldmatrix_x1", "ptx_ldmatrix_x2_trans"),
        *("initialize_wgmma_descriptor", "increase_descriptor_offset"),
    }
)
ORDERLESS = frozenset(  # among these, what stands in a loop can be taken all at once
    ["ptx_ldmatrix_x4", "ptx_ldmatrix_x4_trans", "ptx_ldmatrix_x2", "ptx_ldmatrix_x1", "ptx_ldmatrix_x2_trans"]
)
_WAITING = ("wait", "__syncthreads", "tl::__sync_thread_partial", "tl::cluster_sync", "AllReduce")

Steps = Generator[Callable[[], bool], None, None]


class Convoy(Threads):
    """:class:`Threads` that run: each step of :meth:`run` ends where they wait, until a condition holds."""

    def run(self) -> Steps:
        """Go through the program."""
        yield from self._all(self.owner.function.body)
        for agent in self.own:
            self.machine.end(agent)

    def _all(self, statements: list[Statement]) -> Steps:
        for statement in statements:
            if self._plain(statement):
                self._take(statement)
            else:
                yield from self._step(statement)

    def _plain(self, statement: Statement) -> bool:
        """Whether nothing in it waits, or has an order that matters."""
        return not (statement.names & SYNCHRONIZING - ORDERLESS) and not self._counts(statement)

    def _counts(self, statement: Statement) -> bool:
        """Whether a loop or branch in it changes integers that live on after it."""
        if statement.kind not in ("for", "if", "block"):
            return False
        inside = list(statement.walk())
        here = {s.name for s in inside if s.kind == "declare"}
        changed = {name for s in inside if s.kind == "assign" and (name := root(s.target)) is not None}
        return bool({n for n in changed - here if n in self.arrays or self._is_integer(n)})

    def _is_integer(self, name: str) -> bool:
        return name in self.integers

    def _step(self, statement: Statement) -> Steps:
        self.now = statement
        if statement.kind == "for":
            start, end = self.number(statement.start), self.number(statement.value)
            for turn in range(start, end):
                self.variables[statement.name] = turn
                yield from self._all(statement.body)
        elif statement.kind == "if":
            condition = self.value(statement.value)
            if isinstance(condition, Unknown):
                if statement.names & SYNCHRONIZING - ORDERLESS:
                    raise Fault("whether threads synchronize here depends on data that is not known")
                yield from self._all(statement.body)
                yield from self._all(statement.otherwise)
                return
            before = self.mask
            true = np.broadcast_to(np.asarray(condition, dtype=bool), before.shape)
            for taken, body in ((before & true, statement.body), (before & ~true, statement.otherwise)):
                if taken.any():
                    self.mask = taken
                    yield from self._all(body)
            self.mask = before
        elif statement.kind == "block":
            yield from self._all(statement.body)
        elif statement.kind == "declare" and statement.value is None:
            self._declare(statement)
        elif called(statement) in _WAITING:
            yield from self._wait(statement)
        else:
            self._take(statement)

    def _take(self, statement: Statement) -> None:
        """What nothing in waits; loops all at once."""
        self.now = statement
        self._registers(statement)
        inside = statement.body if statement.kind == "if" else [statement]
        prefetches = all(called(each) == "tl::prefetch_tma_descriptor" for each in inside)
        if not self.waited and statement.names & self.globals and not prefetches:
            raise Fault("global memory is accessed before griddepcontrol.wait")
        self._plainly(statement)

    def _plainly(self, statement: Statement) -> None:
        kind = statement.kind
        if kind in ("for", "if", "block"):
            if not statement.names & (self.owner.shared | SYNCHRONIZING):
                return
            if kind == "block":
                self._each(statement.body)
            elif kind == "for":
                self._all_turns(statement)
            else:
                self._branches(statement)
            return
        self.now = statement
        if kind == "declare":
            if statement.value is None:
                self._declare(statement)
            else:
                self._set(statement.name, statement)
        elif kind == "assign":
            self._assign(statement)
        else:
            self.value(statement.value)

    def _each(self, statements: list[Statement]) -> None:
        for statement in statements:
            self._plainly(statement)

    def _all_turns(self, statement: Statement) -> None:
        start, end = self.value(statement.start), self.value(statement.value)
        if isinstance(start, Unknown) or isinstance(end, Unknown) or np.size(start) > 1 or np.size(end) > 1:
            raise Fault("how often this is repeated is not known")
        turns = np.arange(int(start), int(end)).reshape((-1,) + (1,) * (self.depth + 1))
        if not turns.size:
            return
        before, mask = self.depth, self.mask
        self.variables[statement.name] = turns
        self.depth += 1
        self._each(statement.body)
        self.depth, self.mask = before, mask

    def _branches(self, statement: Statement) -> None:
        condition, before = self.value(statement.value), self.mask
        if isinstance(condition, Unknown):
            self._each(statement.body)
            self._each(statement.otherwise)
            return
        true = np.asarray(condition, dtype=bool)
        for mask, body in ((before & true, statement.body), (before & ~true, statement.otherwise)):
            if mask.any():
                self.mask = mask
                self._each(body)
        self.mask = before

    def _declare(self, statement: Statement) -> None:
        name, declared = statement.name, statement.type
        if declared.startswith("shared "):
            if declared != "shared uint64_t":
                kind = declared.removeprefix("shared ")
                self.variables[name] = Pointer("shared", name, 0, SIZES[kind], kind)
        elif statement.extent is None:
            self.variables[name] = UNKNOWN
        elif INTEGERS.match(declared):
            self.arrays[name] = [UNKNOWN] * statement.extent
            self.variables[name] = Pointer("local", name, 0, 1, "int")
        else:
            self.variables[name] = Pointer("local", name, 0, 1, declared)

    def _set(self, name: str, statement: Statement) -> None:
        assert statement.value is not None
        if statement.type == "auto":
            self.variables[name] = Pointer("barrier", name)
            return
        if statement.type == "const dim3":
            return  # TileLang's order of blocks; which one this is does not matter
        value = self.value(statement.value)
        integer = INTEGERS.match(statement.type.replace("const ", "")) or statement.type == "void*"
        self.variables[name] = value if integer else UNKNOWN

    def _assign(self, statement: Statement) -> None:
        assert statement.target is not None and statement.value is not None
        value, target = self.value(statement.value), statement.target
        if target.kind == "name":
            name = target.parts[0]
            old = self.variables.get(name, UNKNOWN)
            if isinstance(old, Unknown) and not isinstance(value, (Unknown, Pointer)) and not self.mask.all():
                old = 0
            self.variables[name] = self._merged(old, value)
            return
        place = self.pointed(target)
        if not isinstance(place, Pointer):
            return
        if place.space == "local":
            if place.name in self.arrays:
                self._store_local(place, value)
        elif place.space == "shared":
            self.access(place, writes=True, value=value)

    def _merged(self, old: Any, new: Any) -> Any:
        if isinstance(new, (Unknown, Pointer)) or isinstance(old, (Unknown, Pointer)) or self.mask.all():
            return new
        return np.where(self.mask, new, old)

    def _store_local(self, place: Pointer, value: Any) -> None:
        array = self.arrays[place.name]
        if isinstance(place.offset, Unknown) or np.size(place.offset) > 1:
            array[:] = [UNKNOWN] * len(array)
            return
        at = int(np.asarray(place.offset).flat[0])
        old = 0 if isinstance(array[at], Unknown) else array[at]
        array[at] = self._merged(old, value)

    def _registers(self, statement: Statement) -> None:
        name = called(statement)
        if name.startswith(("tl::wgmma_", "tl::warpgroup_fence_operand")):
            return
        named = statement.names
        for register in named & self.adding.keys():
            raise Fault(f"{register} is used before the WGMMA that adds to it is waited for")
        for register in named & self.reading.keys():
            if any(root(s.target) == register for s in statement.walk() if s.kind == "assign"):
                raise Fault(f"{register} is overwritten before the WGMMA that reads it is waited for")
        touched = {
            n for n in named if isinstance(self.variables.get(n), Pointer) and self.variables[n].space == "local"
        }
        for register in touched & self.stale:
            raise Fault(f"{register} is used without warpgroup_fence_operand after the WGMMA")
        self.touched |= touched
        self.unfenced |= touched

    def _method(self, node: Node, name: str, arguments: tuple[Node, ...]) -> Any:
        return barrier_method(self, node, name, arguments)

    def _call(self, name: str, template: tuple[str, ...], arguments: tuple[Node, ...]) -> Any:
        short = name.removeprefix("tl::")
        if short in SYNCHRONIZING:
            self.owner.result.counts[short] += 1
        if (handler := CALLS.get(short, PRODUCT_CALLS.get(short))) is not None:
            return handler(self, template, arguments)
        values = [self.value(argument) for argument in arguments]
        if (function := FUNCTIONS.get(short)) is not None:
            return UNKNOWN if any(isinstance(v, (Unknown, Pointer)) for v in values) else function(*values)
        if short in WARP_FUNCTIONS:
            return across_lanes(self, short, values)
        if short == "tl_shuffle_elect":
            extent = int(template[0]) or self.owner.function.threads
            return self.threads % extent == 0
        if short in SYNCHRONIZING:
            raise Fault(f"{short} is not known here")
        return UNKNOWN

    def _wait(self, statement: Statement) -> Steps:
        assert statement.value is not None or statement.kind == "assign"
        node = statement.value
        name = called(statement).removeprefix("tl::")
        assert node is not None
        self.owner.result.counts[name.split("::")[0]] += 1
        if name == "wait":
            place = self.pointed(node.parts[0])
            (barrier_name,) = self.barriers(place)
            parity = self.number(node.parts[2][0])
            active = self.active()
            barrier = self.machine.mbarrier(active[0], self.block, barrier_name)
            if not barrier.passes(parity):
                yield lambda: barrier.passes(parity)
                self.now = statement
            for agent in active:
                self.machine.mbarrier(agent, self.block, barrier_name)
                self.machine.learn(agent, barrier.done)
        elif name == "__syncthreads":
            yield from self._meet(0, self.machine.threads)
        elif name == "__sync_thread_partial":
            number, count = (int(self.number(argument)) for argument in node.parts[2])
            yield from self._meet(number, count)
        elif name == "cluster_sync":
            yield from self._meet_cluster()
        else:
            yield from self._reduce(statement, node)

    def _meet(self, number: int, count: int) -> Steps:
        statement, key = self.now, (self.block, number)
        turns = {agent: self.machine.meet(agent, self.block, number, count) for agent in self.active()}
        barrier = self.machine.rendezvous[key]
        last = max(turns.values())
        if barrier.turn <= last:
            yield lambda: barrier.turn > last
        self.now = statement
        for agent in turns:
            self.machine.learn(agent, barrier.released)

    def _meet_cluster(self) -> Steps:
        machine, statement = self.machine, self.now

        def missing() -> int:
            return (machine.agents - len(machine.ended)) * WARP

        turns = {agent: machine.meet(agent, -1, 0, missing()) for agent in self.active()}
        barrier, last = machine.rendezvous[-1, 0], max(turns.values())

        def ready() -> bool:
            if barrier.turn <= last:
                machine.release(barrier, missing())
            return barrier.turn > last

        if not ready():
            yield ready
        self.now = statement
        for agent in turns:
            machine.learn(agent, barrier.released)

    def _reduce(self, statement: Statement, node: Node) -> Steps:
        """TileLang's AllReduce: through shared memory, with two barriers, as long as it goes beyond a warp."""
        for call in nodes(node):
            if call.kind != "call" or not call.parts[0].startswith("tl::AllReduce"):
                continue
            template, arguments = call.parts[1], call.parts[2]
            threads, scale = int(template[1]), int(template[2])
            first = int(template[3]) if len(template) > 3 else 0
            policy = template[4] if len(template) > 4 else ""
            named = re.search(r"NamedBarrier<(\d+)", policy)
            offset = threads // 2
            while offset >= WARP:
                buffer = self.value(arguments[1])
                for number, place in ((1, self.threads - first), (2, (self.threads - first) ^ offset)):
                    yield from self._meet(number if named else 0, int(named[1]) if named else self.machine.threads)
                    self.now = statement
                    self.access(self.moved(buffer, place), writes=number == 1)
                if offset == scale:
                    break
                offset //= 2
