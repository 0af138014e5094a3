"""Neighbouring threads of generated CUDA code: what their expressions are, and what they access in shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.kernels.cuda_machine import WARP, Fault, Machine
from tests.kernels.cuda_syntax import Function, Node
from tests.kernels.cuda_values import INTEGERS, OPERATIONS, SIZES, UNKNOWN, Pointer, Unknown

SHARED_BYTES = 232448  # of one block on Hopper


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


class Block:
    """One kernel that is run: its blocks in a cluster, with their shared memory."""

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


class Threads:
    """Neighbouring threads of one block, a warpgroup at most, which go through the program together."""

    def __init__(self, owner: Block, block: int, first: int, count: int) -> None:
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
                self.variables[name] = Pointer("descriptor", name)
            elif "*" in declared:
                kind = declared.replace("const ", "").split("*")[0].strip()
                self.variables[name] = Pointer("global", name, 0, SIZES[kind], kind)
            else:
                if name not in sizes:
                    raise Fault(f"the size {name} is not given")
                self.variables[name] = sizes[name]
        self.globals = {n for n, v in self.variables.items() if isinstance(v, Pointer)}
        self.arrays: dict[str, list[Any]] = {}
        self.integers = {s.name for s in owner.declared if s.extent is None and INTEGERS.match(s.type)}

    @property
    def place(self) -> str:
        """The line, and what stands there."""
        return f"line {self.now.line}, {self.now.text.strip()[:160]}"

    def located(self, fault: Fault) -> Fault:
        """With the place, and the threads."""
        return Fault(f"{self.owner.function.name}: {fault}: threads from {self.first} on at {self.place}")

    def number(self, node: Node | None) -> int:
        """An integer that is the same for all threads."""
        assert node is not None
        value = self.value(node)
        if isinstance(value, Unknown):
            raise Fault("how often this is repeated depends on data that is not known")
        values = np.asarray(value)
        if values.size > 1:
            values = np.broadcast_to(values, self.mask.shape)[self.mask]
        if (values != values.flat[0]).any():
            raise Fault("threads repeat this differently often")
        return int(values.flat[0])

    def active(self) -> list[int]:
        """The warps of which some thread is here."""
        return [a for a in self.own if self.mask[..., self.agents == a].any()]

    def access(
        self,
        place: Pointer,
        *,
        writes: bool,
        value: Any = UNKNOWN,
        size: int | None = None,
        atomic: bool = False,
        copies: bool = False,
    ) -> Any:
        """Access shared memory, ``size`` bytes for each thread, and what is read; ``copies`` by ``cp.async``."""
        size = size or place.size
        if isinstance(place.offset, Unknown):
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
            known = not isinstance(value, (Unknown, Pointer)) and not atomic
            self.owner.is_set[self.block, offsets[mask]] = known
            if known:
                self.owner.values[self.block, offsets[mask]] = np.broadcast_to(value, shape)[mask]
        return result

    def load(self, place: Pointer) -> Any:
        """What stands at ``place``."""
        if place.space == "shared":
            return self.access(place, writes=False)
        if place.space == "local":
            array = self.arrays.get(place.name)
            if array is None or isinstance(place.offset, Unknown) or np.size(place.offset) > 1:
                return UNKNOWN
            position = int(np.asarray(place.offset).flat[0])
            return array[position] if 0 <= position < len(array) else UNKNOWN
        if place.space == "global" and place.name in self.launch.tensors and not isinstance(place.offset, Unknown):
            tensor = np.asarray(self.launch.tensors[place.name]).reshape(-1)
            at = np.asarray(place.offset) // place.size
            return np.where((at >= 0) & (at < len(tensor)), tensor[np.clip(at, 0, len(tensor) - 1)], 0)
        return UNKNOWN

    def pointed(self, node: Node) -> Any:
        """Where an expression that can be assigned to lies."""
        if node.kind == "index":
            return self.moved(self.value(node.parts[0]), self.value(node.parts[1]))
        if node.kind == "unary" and node.parts[0] == "*":
            return self.value(node.parts[1])
        if node.kind == "name":
            return self.variables.get(node.parts[0], UNKNOWN)
        return UNKNOWN

    @staticmethod
    def moved(pointer: Any, by: Any) -> Any:
        """``pointer`` plus so many of what it points to."""
        if not isinstance(pointer, Pointer):
            return UNKNOWN
        if isinstance(by, Unknown) or isinstance(pointer.offset, Unknown):
            return Pointer(pointer.space, pointer.name, UNKNOWN, pointer.size, pointer.type)
        step = pointer.size if pointer.space in ("shared", "global") else 1
        return Pointer(pointer.space, pointer.name, pointer.offset + by * step, pointer.size, pointer.type)

    def value(self, node: Node | None) -> Any:
        """Of an expression; loads in it are accesses."""
        assert node is not None
        return getattr(self, f"_{node.kind}")(*node.parts)

    def _call(self, name: str, template: tuple[str, ...], arguments: tuple[Node, ...]) -> Any:
        """The result of a function, of which only those that go through a program know."""
        raise NotImplementedError

    def _int(self, value: int) -> int:
        return value

    def _float(self) -> Unknown:
        return UNKNOWN

    def _name(self, name: str) -> Any:
        return {"true": 1, "false": 0}.get(name, self.variables.get(name, UNKNOWN))

    def _member(self, node: Node, name: str) -> Any:
        if node.kind == "name" and f"{node.parts[0]}.{name}" in self.variables:
            return self.variables[f"{node.parts[0]}.{name}"]
        self.value(node)
        return UNKNOWN

    def _index(self, node: Node, at: Node) -> Any:
        place = self.moved(self.value(node), self.value(at))
        if isinstance(place, Pointer) and place.space == "barrier":
            return place
        return self.load(place) if isinstance(place, Pointer) else UNKNOWN

    def _cast(self, name: str, node: Node) -> Any:
        value = self.value(node)
        if "*" in name and isinstance(value, Pointer):
            kind = name.replace("const ", "").split("*")[0].strip()
            if value.space == "local":
                return value
            return Pointer(value.space, value.name, value.offset, SIZES.get(kind, 1), kind)
        return value if "*" in name or INTEGERS.match(name) else UNKNOWN

    def _unary(self, op: str, node: Node) -> Any:
        if op == "&":
            return self.pointed(node)
        value = self.value(node)
        if op == "*":
            return self.load(value) if isinstance(value, Pointer) else UNKNOWN
        if isinstance(value, (Unknown, Pointer)):
            return UNKNOWN
        if op == "!":
            return np.logical_not(value)
        return -value if op == "-" else ~value if op == "~" else value

    def _choose(self, condition: Node, first: Node, second: Node) -> Any:
        chosen, one, other = self.value(condition), self.value(first), self.value(second)
        if any(isinstance(each, (Unknown, Pointer)) for each in (chosen, one, other)):
            return UNKNOWN
        return np.where(chosen, one, other)

    def _binary(self, op: str, first: Node, second: Node) -> Any:
        left, right = self.value(first), self.value(second)
        if op in ("+", "-") and isinstance(left, Pointer):
            return self.moved(left, right if op == "+" else -right)
        if isinstance(left, tuple):  # a descriptor, in units of 16 bytes
            return (*left[:4], left[4] + right * 16)
        if isinstance(left, (Unknown, Pointer)) or isinstance(right, (Unknown, Pointer)):
            return UNKNOWN
        return OPERATIONS[op](left, right)

    def barriers(self, place: Any) -> list[str]:
        """The names of the barriers at ``place``."""
        if not isinstance(place, Pointer) or isinstance(place.offset, Unknown):
            raise Fault("which barrier this is depends on data that is not known")
        numbers = np.unique(np.asarray(place.offset))
        size = self.owner.barrier_sizes[place.name]
        if numbers.min() < 0 or numbers.max() >= size:
            raise Fault(f"{place.name} has {size} barriers, and number {int(numbers.max())} is used")
        return [f"{place.name}[{int(number)}]" for number in numbers]
