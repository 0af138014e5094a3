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

import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.kernels.cuda_machine import WARP, Fault, Groups, Machine
from tests.kernels.cuda_syntax import Function, Node, Statement, parse

WARPGROUP = 128
SHARED_BYTES = 232448  # of one block on Hopper
_INTEGERS = re.compile(
    r"(?:const |unsigned |signed )?(?:u?int|int64_t|uint64_t|uint32_t|bool|char|long|long long|size_t)$"
)
_SIZES = {
    "char": 1, "uchar": 1, "signed char": 1, "bool": 1, "fp8_e4_t": 1, "fp8_e5_t": 1,
    "short": 2, "half_t": 2, "bfloat16_t": 2, "half": 2,
    "int": 4, "uint": 4, "float": 4, "uint1": 4, "int1": 4, "uint32_t": 4, "unsigned": 4, "float1": 4,
    "int64_t": 8, "uint64_t": 8, "uint2": 8, "float2": 8, "int2": 8, "double": 8, "longlong": 8,
    "uint4": 16, "float4": 16, "int4": 16, "ulonglong2": 16, "longlong2": 16, "double2": 16,
    "fp8_e4_2_t": 2, "fp8_e4_4_t": 4, "fp8_e4_8_t": 8, "fp8_e4_16_t": 16, "short2": 4, "ushort": 2,
    "ulonglong4": 32, "longlong4": 32,
}  # fmt: skip
SYNCHRONIZING = frozenset(
    [
        "wait",
        "arrive",
        "init",
        "expect_transaction",
        "arrive_and_expect_tx",
        "__syncthreads",
        "__sync_thread_partial",
        "cluster_sync",
        "tma_load",
        "tma_store",
        "tma_store_arrive",
        "tma_store_wait",
        "tma_store_cluster",
        "fence_proxy_async",
        "fence_barrier_init",
        "warpgroup_arrive",
        "warpgroup_commit_batch",
        "warpgroup_wait",
        "wait_wgmma",
        "warpgroup_fence_operand",
        "wgmma_ss",
        "wgmma_rs",
        "cp_async_gs",
        "cp_async_gs_conditional",
        "cp_async_commit",
        "cp_async_wait",
        "mbarrier_cp_async_arrive_noinc",
        "AllReduce",
        "CumSum1D",
        "cudaGridDependencySynchronize",
        "AtomicAdd",
        "AtomicAddRet",
        "ptx_ldmatrix_x4",
        "ptx_ldmatrix_x4_trans",
        "ptx_ldmatrix_x2",
        "ptx_ldmatrix_x1",
        "ptx_ldmatrix_x2_trans",
        "initialize_wgmma_descriptor",
        "increase_descriptor_offset",
    ]
)
_ORDERLESS = frozenset(  # among these, what stands in a loop can be taken all at once
    ["ptx_ldmatrix_x4", "ptx_ldmatrix_x4_trans", "ptx_ldmatrix_x2", "ptx_ldmatrix_x1", "ptx_ldmatrix_x2_trans"]
)


class _Unknown:
    """A value that is not followed."""

    __array_ufunc__ = None

    def _same(self, *_: object) -> _Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = (
        _same
    )
    __lt__ = __le__ = __gt__ = __ge__ = __invert__ = __neg__ = __mod__ = __rmod__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]  # not known either
    __hash__ = None  # type: ignore[assignment]  # in no set


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class _Pointer:
    space: str  # "shared", "global", "local", "barrier"
    name: str
    offset: Any = 0  # in bytes; of local memory and barriers, in elements
    size: int = 1  # of what it points to
    type: str = ""


@dataclass(frozen=True)
class Launch:
    """The sizes and integer tensors that a kernel is run with, and how its descriptors' boxes are: in bytes."""

    sizes: Mapping[str, int]
    boxes: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    cluster: int = 1
    waits_for_previous: bool = True  # the kernel before it: griddepcontrol.wait comes first


@dataclass
class Run:
    """One kernel that was run: how often it did what, and how many accesses' addresses were unknown."""

    kernel: str
    counts: Counter[str] = field(default_factory=Counter)
    unknown: int = 0


def check(source: str, launch: Launch) -> list[Run]:
    """Run each kernel of a generated file; raises :class:`cuda_machine.Fault` with the line."""
    return [_Block(function, launch).run() for function in parse(source)]


Steps = Generator[Callable[[], bool], None, None]


class _Block:
    """One kernel: its blocks in a cluster, each with its warpgroups."""

    def __init__(self, function: Function, launch: Launch) -> None:
        self.function, self.launch = function, launch
        statements = [each for statement in function.body for each in statement.walk()]
        self.declared = [s for s in statements if s.kind == "declare"]
        self.barrier_sizes = {
            s.name.removesuffix("_mem"): int(s.extent or 1) for s in self.declared if s.type == "shared uint64_t"
        }
        names = [f"{name}[{i}]" for name, size in self.barrier_sizes.items() for i in range(size)]
        self.shared = {s.name for s in self.declared if s.type.startswith("shared ") and s.type != "shared uint64_t"}
        self.shared |= {s.name for s in self.declared if s.type == "void*"}
        uses_shared = bool(self.shared)
        self.machine = Machine(function.threads, launch.cluster, SHARED_BYTES if uses_shared else 4, names)
        self.result = Run(function.name)
        self.values = np.zeros((launch.cluster, SHARED_BYTES), dtype=np.int64)
        self.is_set = np.zeros((launch.cluster, SHARED_BYTES), dtype=bool)

    def run(self) -> Run:
        width = min(WARPGROUP, self.function.threads)
        convoys = [
            _Convoy(self, block, first, min(width, self.function.threads - first))
            for block in range(self.launch.cluster)
            for first in range(0, self.function.threads, width)
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
                raise Fault(f"{self.function.name}: these wait for ever: {places}")
        return self.result


class _Convoy:
    """Neighbouring threads of one block, a warpgroup at most, which go through the program together."""

    def __init__(self, owner: _Block, block: int, first: int, count: int) -> None:
        self.owner, self.machine, self.launch = owner, owner.machine, owner.launch
        self.block, self.first = block, first
        self.threads = np.arange(first, first + count)
        base = block * self.machine.warps
        self.agents = base + self.threads // WARP
        self.own = sorted(set(self.agents.tolist()))
        self.mask = np.ones(count, dtype=bool)
        self.now = owner.function.body[0]
        self.depth = 0  # of loops that are taken at once
        self.waited = not owner.launch.waits_for_previous
        # Registers: what WGMMAs under way read and write (with each one's group), and what was touched since a fence.
        self.reading: dict[str, int] = {}
        self.adding: dict[str, int] = {}
        self.group = 0
        self.touched: set[str] = {s.name for s in owner.declared if s.extent is not None}
        self.unfenced: set[str] = set(self.touched)
        self.stale: set[str] = set()  # added to by a WGMMA, and not fenced since
        sizes = {**self.launch.sizes}
        self.variables: dict[str, Any] = {"threadIdx.x": self.threads, "gridDim.x": sizes.get("gridDim.x", 132)}
        for axis in "xyz":
            self.variables[f"blockIdx.{axis}"] = sizes.get(f"blockIdx.{axis}", 0)
        if self.launch.cluster > 1:
            self.variables["blockIdx.x"] = block
        for name, declared in owner.function.parameters.items():
            if "CUtensorMap" in declared:
                self.variables[name] = _Pointer("descriptor", name)
            elif "*" in declared:
                kind = declared.replace("const ", "").split("*")[0].strip()
                self.variables[name] = _Pointer("global", name, 0, _SIZES[kind], kind)
            else:
                if name not in sizes:
                    raise Fault(f"the size {name} is not given")
                self.variables[name] = sizes[name]
        self.globals = {n for n, v in self.variables.items() if isinstance(v, _Pointer)}
        self.arrays: dict[str, list[Any]] = {}
        self.integers = {s.name for s in owner.declared if s.extent is None and _INTEGERS.match(s.type)}

    @property
    def place(self) -> str:
        """The line, and what stands there."""
        return f"line {self.now.line}, {self.now.text.strip()[:160]}"

    def located(self, fault: Fault) -> Fault:
        """With the place, and the threads."""
        return Fault(f"{self.owner.function.name}: {fault}: threads from {self.first} on at {self.place}")

    # Statements

    def run(self) -> Steps:
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
        return not (statement.names & SYNCHRONIZING - _ORDERLESS) and not self._counts(statement)

    def _counts(self, statement: Statement) -> bool:
        """Whether a loop or branch in it changes integers that live on after it."""
        if statement.kind not in ("for", "if", "block"):
            return False
        inside = list(statement.walk())
        here = {s.name for s in inside if s.kind == "declare"}
        changed = {name for s in inside if s.kind == "assign" and (name := _root(s.target)) is not None}
        return bool({n for n in changed - here if n in self.arrays or self._is_integer(n)})

    def _is_integer(self, name: str) -> bool:
        return name in self.integers

    def _step(self, statement: Statement) -> Steps:
        self.now = statement
        if statement.kind == "for":
            start, end = self._number(statement.start), self._number(statement.value)
            for turn in range(start, end):
                self.variables[statement.name] = turn
                yield from self._all(statement.body)
        elif statement.kind == "if":
            condition = self.value(statement.value)
            if isinstance(condition, _Unknown):
                if statement.names & SYNCHRONIZING - _ORDERLESS:
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
        elif _called(statement) in _WAITING:
            yield from self._wait(statement)
        else:
            self._take(statement)

    def _number(self, node: Node | None) -> int:
        assert node is not None
        value = self.value(node)
        if isinstance(value, _Unknown):
            raise Fault("how often this is repeated depends on data that is not known")
        values = np.asarray(value)
        if values.size > 1:
            values = np.broadcast_to(values, self.mask.shape)[self.mask]
        if (values != values.flat[0]).any():
            raise Fault("threads repeat this differently often")
        return int(values.flat[0])

    def _take(self, statement: Statement) -> None:
        """What nothing in waits; loops all at once."""
        self.now = statement
        self._registers(statement)
        inside = statement.body if statement.kind == "if" else [statement]
        prefetches = all(_called(each) == "tl::prefetch_tma_descriptor" for each in inside)
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
        if isinstance(start, _Unknown) or isinstance(end, _Unknown) or np.size(start) > 1 or np.size(end) > 1:
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
        if isinstance(condition, _Unknown):
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
                self.variables[name] = _Pointer("shared", name, 0, _SIZES[kind], kind)
        elif statement.extent is None:
            self.variables[name] = UNKNOWN
        elif _INTEGERS.match(declared):
            self.arrays[name] = [UNKNOWN] * statement.extent
            self.variables[name] = _Pointer("local", name, 0, 1, "int")
        else:
            self.variables[name] = _Pointer("local", name, 0, 1, declared)

    def _set(self, name: str, statement: Statement) -> None:
        assert statement.value is not None
        if statement.type == "auto":
            self.variables[name] = _Pointer("barrier", name)
            return
        if statement.type == "const dim3":
            return  # TileLang's order of blocks; which one this is does not matter
        value = self.value(statement.value)
        integer = _INTEGERS.match(statement.type.replace("const ", "")) or statement.type == "void*"
        self.variables[name] = value if integer else UNKNOWN

    def _assign(self, statement: Statement) -> None:
        assert statement.target is not None and statement.value is not None
        value, target = self.value(statement.value), statement.target
        if target.kind == "name":
            name = target.parts[0]
            old = self.variables.get(name, UNKNOWN)
            if isinstance(old, _Unknown) and not isinstance(value, (_Unknown, _Pointer)) and not self.mask.all():
                old = 0
            self.variables[name] = self._merged(old, value)
            return
        place = self._place(target)
        if not isinstance(place, _Pointer):
            return
        if place.space == "local":
            if place.name in self.arrays:
                self._store_local(place, value)
        elif place.space == "shared":
            self._shared(place, writes=True, value=value)

    def _merged(self, old: Any, new: Any) -> Any:
        if isinstance(new, (_Unknown, _Pointer)) or isinstance(old, (_Unknown, _Pointer)) or self.mask.all():
            return new
        return np.where(self.mask, new, old)

    def _store_local(self, place: _Pointer, value: Any) -> None:
        array = self.arrays[place.name]
        if isinstance(place.offset, _Unknown) or np.size(place.offset) > 1:
            array[:] = [UNKNOWN] * len(array)
            return
        at = int(np.asarray(place.offset).flat[0])
        old = 0 if isinstance(array[at], _Unknown) else array[at]
        array[at] = self._merged(old, value)

    # Registers that WGMMA reads and writes

    def _registers(self, statement: Statement) -> None:
        name = _called(statement)
        if name.startswith(("tl::wgmma_", "tl::warpgroup_fence_operand")):
            return
        named = statement.names
        for register in named & self.adding.keys():
            raise Fault(f"{register} is used before the WGMMA that adds to it is waited for")
        for register in named & self.reading.keys():
            if any(_root(s.target) == register for s in statement.walk() if s.kind == "assign"):
                raise Fault(f"{register} is overwritten before the WGMMA that reads it is waited for")
        touched = {
            n for n in named if isinstance(self.variables.get(n), _Pointer) and self.variables[n].space == "local"
        }
        for register in touched & self.stale:
            raise Fault(f"{register} is used without warpgroup_fence_operand after the WGMMA")
        self.touched |= touched
        self.unfenced |= touched

    def _multiply(self, name: str, template: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
        from_registers = name.endswith("rs")
        item = {"kBFloat16": 2, "kFloat16": 2, "kTensorFloat32": 4, "kTFloat32": 4, "kFloat32": 4}.get(
            template[0].rsplit("::", 1)[-1], 1
        )
        n, k = int(template[4]), int(template[5])
        transposed = [text == "true" for text in template[6:8]]
        rows = (64, n)
        accumulator = _root(arguments[2])
        registers = [accumulator] + ([_root(arguments[0])] if from_registers else [])
        for register in registers:
            assert register is not None
            if register in self.touched:
                raise Fault(f"{register} goes into a WGMMA without wgmma.fence (warpgroup_arrive) before it")
            if register in self.unfenced:
                raise Fault(f"{register} goes into a WGMMA without warpgroup_fence_operand before it")
        for agent in self.own:
            self.machine.wgmma[agent].issued += 1
        for side in (1,) if from_registers else (0, 1):
            descriptor = self.value(arguments[side])
            self._read_operand(descriptor, rows[side], k, item, major=transposed[side])
        self.adding[str(accumulator)] = self.group
        self.stale.add(str(accumulator))
        if from_registers:
            self.reading[str(registers[1])] = self.group

    def _read_operand(self, descriptor: Any, rows: int, k: int, item: int, major: bool) -> None:
        layout, leading, stride, pointer, shift = descriptor
        swizzle = {1: 128, 2: 64, 3: 32}.get(layout)
        offsets = np.broadcast_to(np.asarray(pointer.offset + shift), self.threads.shape)
        for agent in self.own:
            start = int(offsets[np.flatnonzero(self.agents == agent)[0]])
            if swizzle is None:
                raise Fault("WGMMA from memory that is not swizzled: not followed")
            start -= start % swizzle
            if major:
                chunks = -(-rows * item // swizzle)
                starts = start + np.arange(chunks) * leading * 16
                length = k // 8 * stride * 16 if item == 2 else k * swizzle
            else:
                starts, length = np.array([start]), rows // 8 * stride * 16
            places = self.machine.place(self.block, starts, length)
            groups = self.machine.wgmma[agent]
            self.machine.access(agent, places, writes=False, source=groups.source, at=groups.issued, asynchronous=True)

    def _finish_products(self, pending: int) -> None:
        for agent in self.own:
            self.machine.complete(agent, self.machine.wgmma[agent], pending)
        over = self.group - pending
        self.adding = {name: group for name, group in self.adding.items() if group >= over}
        self.reading = {name: group for name, group in self.reading.items() if group >= over}

    # Accesses

    def _active(self) -> list[int]:
        return [a for a in self.own if self.mask[..., self.agents == a].any()]

    def _shared(
        self,
        place: _Pointer,
        *,
        writes: bool,
        value: Any = UNKNOWN,
        size: int | None = None,
        atomic: bool = False,
        copies: bool = False,
    ) -> Any:
        size = size or place.size
        if isinstance(place.offset, _Unknown):
            self.owner.result.unknown += 1
            return UNKNOWN
        shape = np.broadcast_shapes(self.mask.shape, np.shape(place.offset))
        offsets = np.broadcast_to(place.offset, shape)
        mask = np.broadcast_to(self.mask, shape)
        agents = np.broadcast_to(self.agents, shape)
        result: Any = UNKNOWN
        follows = place.type in ("int", "int64_t", "uint") and size == place.size
        if follows and not writes:
            at = np.where(mask, offsets, 0)
            if self.owner.is_set[self.block, at][mask].all():
                result = self.owner.values[self.block, at]
        for agent in self.own:
            chosen = mask & (agents == agent)
            if not chosen.any():
                continue
            places = self.machine.place(self.block, offsets[chosen].astype(np.int64).ravel(), size)
            if copies:
                groups = self.machine.copies[agent]
                groups.issued += 1
                self.machine.access(agent, places, writes=True, source=groups.source, at=groups.issued)
            else:
                self.machine.access(agent, places, writes=writes, atomic=atomic)
        if writes and follows:
            known = not isinstance(value, (_Unknown, _Pointer)) and not atomic
            self.owner.is_set[self.block, offsets[mask]] = known
            if known:
                self.owner.values[self.block, offsets[mask]] = np.broadcast_to(value, shape)[mask]
        return result

    def _load(self, place: _Pointer) -> Any:
        if place.space == "shared":
            return self._shared(place, writes=False)
        if place.space == "local":
            array = self.arrays.get(place.name)
            if array is None or isinstance(place.offset, _Unknown) or np.size(place.offset) > 1:
                return UNKNOWN
            position = int(np.asarray(place.offset).flat[0])
            return array[position] if 0 <= position < len(array) else UNKNOWN
        if place.space == "global" and place.name in self.launch.tensors and not isinstance(place.offset, _Unknown):
            tensor = np.asarray(self.launch.tensors[place.name]).reshape(-1)
            at = np.asarray(place.offset) // place.size
            return np.where((at >= 0) & (at < len(tensor)), tensor[np.clip(at, 0, len(tensor) - 1)], 0)
        return UNKNOWN

    # Expressions

    def _place(self, node: Node) -> Any:
        """Where an expression that can be assigned to lies."""
        if node.kind == "index":
            return self._moved(self.value(node.parts[0]), self.value(node.parts[1]))
        if node.kind == "unary" and node.parts[0] == "*":
            return self.value(node.parts[1])
        if node.kind == "name":
            return self.variables.get(node.parts[0], UNKNOWN)
        return UNKNOWN

    @staticmethod
    def _moved(pointer: Any, by: Any) -> Any:
        if not isinstance(pointer, _Pointer):
            return UNKNOWN
        if isinstance(by, _Unknown) or isinstance(pointer.offset, _Unknown):
            return _Pointer(pointer.space, pointer.name, UNKNOWN, pointer.size, pointer.type)
        step = pointer.size if pointer.space in ("shared", "global") else 1
        return _Pointer(pointer.space, pointer.name, pointer.offset + by * step, pointer.size, pointer.type)

    def value(self, node: Node | None) -> Any:
        """Of an expression; loads in it are accesses."""
        assert node is not None
        return getattr(self, f"_{node.kind}")(*node.parts)

    def _int(self, value: int) -> int:
        return value

    def _float(self) -> _Unknown:
        return UNKNOWN

    def _name(self, name: str) -> Any:
        return {"true": 1, "false": 0}.get(name, self.variables.get(name, UNKNOWN))

    def _member(self, node: Node, name: str) -> Any:
        if node.kind == "name" and f"{node.parts[0]}.{name}" in self.variables:
            return self.variables[f"{node.parts[0]}.{name}"]
        self.value(node)
        return UNKNOWN

    def _index(self, node: Node, at: Node) -> Any:
        place = self._moved(self.value(node), self.value(at))
        if isinstance(place, _Pointer) and place.space == "barrier":
            return place
        return self._load(place) if isinstance(place, _Pointer) else UNKNOWN

    def _cast(self, name: str, node: Node) -> Any:
        value = self.value(node)
        if "*" in name and isinstance(value, _Pointer):
            kind = name.replace("const ", "").split("*")[0].strip()
            if value.space == "local":
                return value
            return _Pointer(value.space, value.name, value.offset, _SIZES.get(kind, 1), kind)
        return value if "*" in name or _INTEGERS.match(name) else UNKNOWN

    def _unary(self, op: str, node: Node) -> Any:
        if op == "&":
            return self._place(node)
        value = self.value(node)
        if op == "*":
            return self._load(value) if isinstance(value, _Pointer) else UNKNOWN
        if isinstance(value, (_Unknown, _Pointer)):
            return UNKNOWN
        if op == "!":
            return np.logical_not(value)
        return -value if op == "-" else ~value if op == "~" else value

    def _choose(self, condition: Node, first: Node, second: Node) -> Any:
        chosen, one, other = self.value(condition), self.value(first), self.value(second)
        if any(isinstance(each, (_Unknown, _Pointer)) for each in (chosen, one, other)):
            return UNKNOWN
        return np.where(chosen, one, other)

    def _binary(self, op: str, first: Node, second: Node) -> Any:
        left, right = self.value(first), self.value(second)
        if op in ("+", "-") and isinstance(left, _Pointer):
            return self._moved(left, right if op == "+" else -right)
        if isinstance(left, tuple):  # a descriptor, in units of 16 bytes
            return (*left[:4], left[4] + right * 16)
        if isinstance(left, (_Unknown, _Pointer)) or isinstance(right, (_Unknown, _Pointer)):
            return UNKNOWN
        return _OPERATIONS[op](left, right)

    def _method(self, node: Node, name: str, arguments: tuple[Node, ...]) -> Any:
        place = self._place(node)
        values = [self.value(argument) for argument in arguments]
        self.owner.result.counts[name] += 1
        if name == "init":
            (agent,) = self._active()
            for barrier_name in self._barriers(place):
                self.machine.initialize(agent, self.block, barrier_name, int(values[0]))
            return UNKNOWN
        (barrier_name,) = self._barriers(place)
        expected = int(values[0]) if values else 0
        for agent in self._active():
            barrier = self.machine.mbarrier(agent, self.block, barrier_name)
            threads = int(self.mask[self.agents == agent].sum())
            if name == "expect_transaction":
                barrier.expected += expected * threads
            elif name in ("arrive", "arrive_and_expect_tx"):
                self.machine.arrive(agent, barrier, threads, expected * threads)
            else:
                raise Fault(f"{name} of a barrier is not known here")
        return UNKNOWN

    def _barriers(self, place: Any) -> list[str]:
        if not isinstance(place, _Pointer) or isinstance(place.offset, _Unknown):
            raise Fault("which barrier this is depends on data that is not known")
        numbers = np.unique(np.asarray(place.offset))
        size = self.owner.barrier_sizes[place.name]
        if numbers.min() < 0 or numbers.max() >= size:
            raise Fault(f"{place.name} has {size} barriers, and number {int(numbers.max())} is used")
        return [f"{place.name}[{int(number)}]" for number in numbers]

    def _call(self, name: str, template: tuple[str, ...], arguments: tuple[Node, ...]) -> Any:
        short = name.removeprefix("tl::")
        if short in SYNCHRONIZING:
            self.owner.result.counts[short] += 1
        if short in ("wgmma_ss", "wgmma_rs"):
            self._multiply(short, template, arguments)
            return UNKNOWN
        if (handler := _CALLS.get(short)) is not None:
            return handler(self, template, arguments)
        values = [self.value(argument) for argument in arguments]
        if (function := _FUNCTIONS.get(short)) is not None:
            return UNKNOWN if any(isinstance(v, (_Unknown, _Pointer)) for v in values) else function(*values)
        if short in _WARP_FUNCTIONS:
            return self._across_lanes(short, values)
        if short == "tl_shuffle_elect":
            extent = int(template[0]) or self.owner.function.threads
            return self.threads % extent == 0
        if short in SYNCHRONIZING:
            raise Fault(f"{short} is not known here")
        return UNKNOWN

    def _across_lanes(self, name: str, values: list[Any]) -> Any:
        value = values[1]
        if isinstance(value, _Unknown) or any(isinstance(v, _Unknown) for v in values):
            return UNKNOWN
        rows = np.broadcast_to(value, self.threads.shape).reshape(-1, WARP)
        lane = np.arange(WARP)
        if name == "__ballot_sync":
            return ((rows != 0) << lane).sum(axis=1, keepdims=True).repeat(WARP, axis=1).reshape(-1)
        if name == "__any_sync":
            return (rows != 0).any(axis=1, keepdims=True).repeat(WARP, axis=1).reshape(-1)
        if name == "__match_any_sync":
            same = rows[:, :, None] == rows[:, None, :]
            return (same << lane).sum(axis=2).reshape(-1)
        other = np.broadcast_to(values[2], self.threads.shape).reshape(-1, WARP)
        width = int(values[3]) if len(values) > 3 else WARP
        base = lane - lane % width
        if name == "__shfl_sync":
            source = base + other % width
        elif name == "__shfl_xor_sync":
            source = lane ^ other
        else:
            source = np.where(lane % width >= other, lane - other, lane)
        return np.take_along_axis(rows, np.broadcast_to(source, rows.shape), axis=1).reshape(-1)

    # What waits

    def _wait(self, statement: Statement) -> Steps:
        assert statement.value is not None or statement.kind == "assign"
        node = statement.value
        name = _called(statement).removeprefix("tl::")
        assert node is not None
        self.owner.result.counts[name.split("::")[0]] += 1
        if name == "wait":
            place = self._place(node.parts[0])
            (barrier_name,) = self._barriers(place)
            parity = self._number(node.parts[2][0])
            active = self._active()
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
            number, count = (int(self._number(argument)) for argument in node.parts[2])
            yield from self._meet(number, count)
        elif name == "cluster_sync":
            yield from self._meet_cluster()
        else:
            yield from self._reduce(statement, node)

    def _meet(self, number: int, count: int) -> Steps:
        statement, key = self.now, (self.block, number)
        turns = {agent: self.machine.meet(agent, self.block, number, count) for agent in self._active()}
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

        turns = {agent: machine.meet(agent, -1, 0, missing()) for agent in self._active()}
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
        for call in _nodes(node):
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
                    self._shared(self._moved(buffer, place), writes=number == 1)
                if offset == scale:
                    break
                offset //= 2


def _root(node: Node | None) -> str | None:
    """The variable that an expression is a part of."""
    while node is not None and node.kind != "name":
        if node.kind in ("index", "member", "method"):
            node = node.parts[0]
        elif node.kind in ("unary", "cast") or node.kind == "binary":
            node = node.parts[1]
        else:
            return None
    return None if node is None else str(node.parts[0])


def _nodes(node: Node) -> list[Node]:
    found, left = [], [node]
    while left:
        each = left.pop()
        found.append(each)
        for part in each.parts:
            left += (
                [part]
                if isinstance(part, Node)
                else [p for p in part if isinstance(p, Node)]
                if isinstance(part, tuple)
                else []
            )
    return found


def _called(statement: Statement) -> str:
    """The function or method that a statement calls; a reduction within an expression counts."""
    if "AllReduce" in statement.names and statement.kind in ("assign", "declare"):
        return "AllReduce"
    node = statement.value
    if statement.kind != "call" or node is None:
        return ""
    return str(node.parts[1]) if node.kind == "method" else str(node.parts[0]) if node.kind == "call" else ""


_WAITING = ("wait", "__syncthreads", "tl::__sync_thread_partial", "tl::cluster_sync", "AllReduce")
_WARP_FUNCTIONS = (
    "__shfl_sync",
    "__shfl_up_sync",
    "__shfl_xor_sync",
    "__ballot_sync",
    "__any_sync",
    "__match_any_sync",
)


def _toward_zero(left: Any, right: Any) -> Any:
    right = np.where(np.asarray(right) == 0, 1, right)
    quotient = np.abs(left) // np.abs(right)
    return np.where((np.asarray(left) < 0) != (np.asarray(right) < 0), -quotient, quotient)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if type(a) is int and type(b) is int and a >= 0 and b > 0 else _toward_zero(a, b),
    "%": lambda a, b: a % b if type(a) is int and type(b) is int and a >= 0 and b > 0 else a - _toward_zero(a, b) * b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&&": lambda a, b: np.logical_and(a, b),
    "||": lambda a, b: np.logical_or(a, b),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": np.minimum,
    "max": np.maximum,
    "uint64_t": lambda value: value,
    "__popc": lambda value: np.vectorize(lambda v: int(v).bit_count())(value),
    "__ffs": lambda value: np.vectorize(lambda v: (int(v) & -int(v)).bit_length())(value),
}


def _groups(kind: str) -> Callable[[_Convoy], list[tuple[int, Groups]]]:
    return lambda convoy: [(agent, getattr(convoy.machine, kind)[agent]) for agent in convoy._active()]


def _copy_in(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_load(descriptor, barrier, destination, coordinates…)``."""
    descriptor, (barrier_name,) = convoy.value(arguments[0]), convoy._barriers(convoy.value(arguments[1]))
    for agent, starts, size in _boxes(convoy, descriptor, arguments[2]):
        barrier = convoy.machine.mbarrier(agent, convoy.block, barrier_name)
        for start in starts:
            places = convoy.machine.place(convoy.block, np.array([start]), size)
            convoy.machine.load(agent, barrier, convoy.block, places, size)


def _copy_out(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_store(descriptor, source, coordinates…)``."""
    descriptor = convoy.value(arguments[0])
    for agent, starts, size in _boxes(convoy, descriptor, arguments[1]):
        groups = convoy.machine.stores[agent]
        groups.issued += 1
        places = convoy.machine.place(convoy.block, starts, size)
        convoy.machine.access(agent, places, writes=False, source=groups.source, at=groups.issued, asynchronous=True)


def _boxes(convoy: _Convoy, descriptor: Any, address: Node) -> list[tuple[int, Any, int]]:
    """Of each warp that copies: the addresses in shared memory, and how many bytes lie at each."""
    if not convoy.waited:
        raise Fault("global memory is accessed before griddepcontrol.wait")
    place = convoy.value(address)
    if not isinstance(place, _Pointer) or isinstance(place.offset, _Unknown):
        raise Fault("where this copy lies in shared memory is not known")
    size = convoy.launch.boxes[descriptor.name]
    shape = np.broadcast_shapes(convoy.mask.shape, np.shape(place.offset))
    offsets, mask = np.broadcast_to(place.offset, shape), np.broadcast_to(convoy.mask, shape)
    agents = np.broadcast_to(convoy.agents, shape)
    return [(agent, offsets[mask & (agents == agent)].astype(np.int64).ravel(), size) for agent in convoy._active()]


def _send(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``tma_store_cluster(destination, source, peer, bytes, barrier)``, with its own arrival, expectation and fence."""
    machine = convoy.machine
    destination, source = convoy.value(arguments[0]), convoy.value(arguments[1])
    peer, num_bytes = convoy._number(arguments[2]), convoy._number(arguments[3])
    (name,) = convoy._barriers(convoy.value(arguments[4]))
    (agent,) = convoy._active()
    barrier = machine.mbarrier(agent, peer, name)
    # The phase cannot end before the bytes have come, though the arrival is made first.
    barrier.expected += num_bytes
    machine.fence_proxy(agent)
    own = machine.place(convoy.block, np.array([int(np.ravel(source.offset)[0])]), num_bytes)
    machine.access(agent, own, writes=False, source=barrier.loads, at=barrier.phase + 1, asynchronous=True)
    theirs = machine.place(peer, np.array([int(np.ravel(destination.offset)[0])]), num_bytes)
    machine.load(agent, barrier, peer, theirs, num_bytes)
    machine.arrive(agent, barrier, 1)


def _descriptor(convoy: _Convoy, template: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    layout, leading, stride = (int(text) for text in template[:3])
    name = str(arguments[0].parts[0])
    convoy.variables[name] = (layout, leading, stride, convoy.value(arguments[1]), 0)


def _shift_descriptor(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    name = str(arguments[0].parts[0])
    *fixed, shift = convoy.variables[name]
    convoy.variables[name] = (*fixed, shift + convoy.value(arguments[1]))


def _fence_registers(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    name = _root(arguments[0])
    assert name is not None
    convoy.unfenced.discard(name)
    convoy.stale.discard(name)


def _fence_wgmma(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.touched.clear()


def _commit_products(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.group += 1
    for agent in convoy.own:
        convoy.machine.wgmma[agent].commit()


def _commit(kind: str) -> Callable[..., None]:
    def commit(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
        for _agent, groups in _groups(kind)(convoy):
            groups.commit()

    return commit


def _await(kind: str) -> Callable[..., None]:
    def wait(convoy: _Convoy, template: tuple[str, ...], _: tuple[Node, ...]) -> None:
        for agent, groups in _groups(kind)(convoy):
            convoy.machine.complete(agent, groups, int(template[0]))

    return wait


def _copy_asynchronously(convoy: _Convoy, template: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    if not convoy.waited:
        raise Fault("global memory is accessed before griddepcontrol.wait")
    destination, *_ = (convoy.value(argument) for argument in arguments)
    convoy._shared(destination, writes=True, size=int(template[0]), copies=True)


def _arrive_after_copies(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """The arrival comes when the thread's ``cp.async`` copies are done, which the thread itself does not wait for."""
    (name,) = convoy._barriers(convoy.value(arguments[0]))
    machine = convoy.machine
    for agent in convoy._active():
        barrier, groups = machine.mbarrier(agent, convoy.block, name), machine.copies[agent]
        known = int(machine.clock[agent, groups.source])
        machine.clock[agent, groups.source] = groups.counted = groups.issued
        machine.arrive(agent, barrier, int(convoy.mask[convoy.agents == agent].sum()))
        machine.clock[agent, groups.source] = known


def _fence_proxy(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    for agent in convoy._active():
        convoy.machine.fence_proxy(agent)


def _fence_initialized(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    for agent in convoy._active():
        convoy.machine.publish_initialized(agent)


def _wait_for_previous(convoy: _Convoy, _: tuple[str, ...], __: tuple[Node, ...]) -> None:
    convoy.waited = True


def _atomic(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> Any:
    place = convoy.value(arguments[0])
    if isinstance(place, _Pointer) and place.space == "shared":
        convoy._shared(place, writes=True, atomic=True)
    return UNKNOWN


def _matrix(rows: int) -> Callable[..., None]:
    def load(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
        place = convoy.value(arguments[0])
        before = convoy.mask
        convoy.mask = before & (convoy.threads % WARP < rows)
        convoy._shared(place, writes=False, size=16)
        convoy.mask = before

    return load


def _store_matrix(rows: int) -> Callable[..., None]:
    def store(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
        place = convoy.value(arguments[0])
        before = convoy.mask
        convoy.mask = before & (convoy.threads % WARP < rows)
        convoy._shared(place, writes=True, size=16)
        convoy.mask = before

    return store


def _prefix_sums(convoy: _Convoy, _: tuple[str, ...], arguments: tuple[Node, ...]) -> None:
    """``CumSum1D::run(source, destination, length)``, by the first warp."""
    source, destination = convoy.value(arguments[0]), convoy.value(arguments[1])
    length = convoy._number(arguments[2])
    before = convoy.mask
    convoy.mask = before & (convoy.threads < min(WARP, length))
    if convoy.mask.any():
        for first in range(0, length, WARP):
            lanes = np.minimum(convoy.threads + first, length - 1)
            convoy._shared(convoy._moved(source, lanes), writes=False)
            convoy._shared(convoy._moved(destination, lanes), writes=True)
    convoy.mask = before


_CALLS: dict[str, Callable[..., Any]] = {
    "tma_load": _copy_in,
    "tma_store": _copy_out,
    "tma_store_cluster": _send,
    "tma_store_arrive": _commit("stores"),
    "tma_store_wait": _await("stores"),
    "cp_async_gs": _copy_asynchronously,
    "cp_async_gs_conditional": _copy_asynchronously,
    "cp_async_commit": _commit("copies"),
    "cp_async_wait": _await("copies"),
    "mbarrier_cp_async_arrive_noinc": _arrive_after_copies,
    "initialize_wgmma_descriptor": _descriptor,
    "increase_descriptor_offset": _shift_descriptor,
    "warpgroup_fence_operand": _fence_registers,
    "warpgroup_arrive": _fence_wgmma,
    "warpgroup_commit_batch": _commit_products,
    "warpgroup_wait": lambda convoy, template, _: convoy._finish_products(int(template[0])),
    "wait_wgmma": lambda convoy, template, _: convoy._finish_products(int(template[0])),
    "fence_proxy_async": _fence_proxy,
    "fence_barrier_init": _fence_initialized,
    "cudaGridDependencySynchronize": _wait_for_previous,
    "AtomicAdd": _atomic,
    "AtomicAddRet": _atomic,
    "CumSum1D::run": _prefix_sums,
    **{f"ptx_ldmatrix_x{n}{t}": _matrix(8 * n) for n in (1, 2, 4) for t in ("", "_trans")},
    **{f"ptx_stmatrix_m8n8_x{n}{t}": _store_matrix(8 * n) for n in (1, 2, 4) for t in ("", "_trans")},
}
