"""What is looked at in an ONNX model before anything is made of it, and the limits within which onnx works on it.

A model may come from anybody. onnx's own C++ code counts out what a model says, and TVM's follows what it is given
until the stack ends; what is refused here would take the memory, the time or the process.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import onnx

from tkc.child import ChildDiedError, ChildStuckError, RaisedInChildError, can_fork, in_child
from tkc.errors import UnsupportedModelError

T = TypeVar("T")

MOST_ELEMENTS = 1 << 36
"""Elements of the largest tensor: more are a mistake, or an attack. As float32 they would take 256 GiB."""

MOST_RANK = 64
"""Dimensions of a tensor, as NumPy has it."""

MOST_NODES = 50_000
"""Nodes of a model with its functions written out; the largest that is known has some thousands."""

_MOST_INPUTS = 2000
_MOST_EQUATION = 400  # characters of an Einsum: each letter is a loop, and there are 52
_MOST_DEPTH = 40  # of graphs in one another; protobuf itself reads some 30
_LONGEST_TOLD = 500
_SHORTEST_CPU_SECONDS = 6
_NODES_PER_CPU_SECOND = 5000
_ROOM = 1 << 30  # bytes that onnx may take, besides some times those of the model without its weights
_TIMES = 6


class LimitError(UnsupportedModelError):
    """A model that onnx cannot work on in the memory and time that it is given."""


def check_structure(proto: onnx.ModelProto) -> None:
    """Raise :class:`tkc.errors.UnsupportedModelError` for a model that says what cannot be, or of too many nodes."""
    _check_opsets(proto)
    _check_count(proto)
    for nodes, initializers in _graphs(proto):
        for node in nodes:
            _check_node(node)
        for tensor in initializers:
            _check_inner_tensor(tensor)


def check_dimensions(tensor: onnx.TensorProto) -> None:
    """Raise :class:`tkc.errors.UnsupportedModelError` for sizes that no tensor has."""
    dims = list(tensor.dims)
    if len(dims) > MOST_RANK:
        raise UnsupportedModelError(
            f"Tensor {short(tensor.name)} has {len(dims)} dimensions, and tensors have up to {MOST_RANK}; export it "
            "again."
        )
    # Each by itself, too: where one of them is 0, NumPy multiplies the others.
    if any(size < 0 for size in dims) or math.prod(size or 1 for size in dims) > MOST_ELEMENTS:
        raise UnsupportedModelError(
            f"Tensor {short(tensor.name)} has the shape {dims}, which no machine can hold; export the model again."
        )


def within_limits(work: Callable[[], T], proto: onnx.ModelProto) -> T:
    """What ``work``, some code of onnx, makes of the model ``proto``, in a child of bounded memory and time.

    The result must be picklable. Raises what it raises, and :class:`LimitError` where it takes
    too much or ends the process.
    """
    if not can_fork():
        return work()
    seconds = _SHORTEST_CPU_SECONDS + sum(1 for _ in nodes_of(proto.graph)) // _NODES_PER_CPU_SECOND
    room = _ROOM + _TIMES * proto.ByteSize()

    def limited() -> T:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        held = _data_bytes() + room
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or held < most:
            resource.setrlimit(resource.RLIMIT_DATA, (held, most))
        return work()

    try:
        return in_child(limited)
    except ChildStuckError:  # on a lock that another thread held when this process forked
        return work()
    except RaisedInChildError as error:
        raise RuntimeError(error.message) from error
    except (MemoryError, ChildDiedError) as error:
        raise LimitError(
            f"onnx cannot check the model in {seconds} s and {room >> 30} GiB ({error or 'out of memory'}): it names "
            "sizes or repeats that no model has; export it again."
        ) from error


def short(name: str) -> str:
    """A name of the model in quotes, as messages have it: in one line, and not too long."""
    return repr(name if len(name) <= 100 else f"{name[:97]}...")


def told(error: BaseException | str) -> str:
    """What a library says of a model, without the control characters that stand in it and not too long."""
    text = "".join(c if c.isprintable() or c == "\n" else "?" for c in str(error).strip())
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}..."


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs nested in it."""
    for nodes, _ in _nested(graph.node, (), 0):
        yield from nodes


_Graph = tuple[Sequence[onnx.NodeProto], Iterable[onnx.TensorProto]]


def _graphs(proto: onnx.ModelProto) -> Iterator[_Graph]:
    """Every graph, with the initializers that stand inside of the model: those of the outermost do not have to."""
    yield from _nested(proto.graph.node, (), 0)
    for function in proto.functions:
        yield from _nested(function.node, (), 0)


def _nested(nodes: Sequence[onnx.NodeProto], initializers: Iterable[onnx.TensorProto], depth: int) -> Iterator[_Graph]:
    if depth > _MOST_DEPTH:
        raise UnsupportedModelError(
            f"{_where(nodes[0]) if nodes else 'A graph'} is nested more than {_MOST_DEPTH} levels deep; export the "
            "model without so many branches inside of others."
        )
    yield nodes, initializers
    for node in nodes:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _nested(graph.node, graph.initializer, depth + 1)


def _check_opsets(proto: onnx.ModelProto) -> None:
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise UnsupportedModelError(
                f"The model imports the operators of {short(domain or 'ai.onnx')} twice, of versions "
                f"{versions[domain]} and {entry.version}; export it with one of them."
            )
        if entry.version < 1:
            raise UnsupportedModelError(
                f"The model imports version {entry.version} of the operators of {short(domain or 'ai.onnx')}, and "
                "versions begin at 1; export it again."
            )


def _check_count(proto: onnx.ModelProto) -> None:
    """See to it that the model stays small when calls of its functions become their bodies."""
    bodies = {
        (function.domain, function.name): [node for nodes, _ in _nested(function.node, (), 0) for node in nodes]
        for function in proto.functions
    }
    sizes: dict[tuple[str, str], int] = {}
    open_calls: dict[tuple[str, str], None] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 if (key := (node.domain, node.op_type)) not in bodies else sizes[key] for node in nodes)

    for root in bodies:
        stack = [root]
        while stack:
            key = stack[-1]
            waiting = [
                called
                for node in bodies[key]
                if (called := (node.domain, node.op_type)) in bodies and called not in sizes
            ]
            open_calls[key] = None
            if recursive := next((called for called in waiting if called in open_calls), None):
                raise UnsupportedModelError(
                    f"The function {short('.'.join(recursive))} of the model calls itself; export the model without "
                    "recursion."
                )
            if waiting:
                stack.append(waiting[0])
                continue
            sizes[key] = min(size(bodies[key]), MOST_NODES + 1)
            open_calls.pop(key)
            stack.pop()
    total = size(node for nodes, _ in _nested(proto.graph.node, (), 0) for node in nodes)
    if total > MOST_NODES:
        raise UnsupportedModelError(
            f"The model has more than {MOST_NODES} nodes with its functions written out; export it in parts."
        )


def _check_node(node: onnx.NodeProto) -> None:
    if len(node.input) > _MOST_INPUTS or len(node.output) > _MOST_INPUTS:
        raise UnsupportedModelError(
            f"{_where(node)} has {len(node.input)} inputs and {len(node.output)} outputs, and {_MOST_INPUTS} are the "
            "most; write it as several nodes."
        )
    for attribute in node.attribute:
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise UnsupportedModelError(f"{_where(node)} holds a sparse tensor; store it as a dense one.")
        if attribute.name == "equation" and len(attribute.s) > _MOST_EQUATION:
            raise UnsupportedModelError(
                f"{_where(node)} has an equation of {len(attribute.s)} characters, and {_MOST_EQUATION} are the most; "
                "write it in parts."
            )
        if attribute.name == "num_outputs" and node.op_type == "Split" and attribute.i != len(node.output):
            raise UnsupportedModelError(
                f"{_where(node)} says that it has {attribute.i} outputs, and names {len(node.output)}; export it again."
            )
        for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
            _check_inner_tensor(tensor, node)


def _check_inner_tensor(tensor: onnx.TensorProto, node: onnx.NodeProto | None = None) -> None:
    """A tensor that must hold its numbers itself."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        holder = f"Tensor {short(tensor.name)}" if node is None else f"The tensor of {_where(node)}"
        raise UnsupportedModelError(
            f"{holder} stands in another file; only initializers of the outermost graph may. Export the model again."
        )
    check_dimensions(tensor)


def _where(node: onnx.NodeProto) -> str:
    return f"ONNX node {short(node.name or next(filter(None, node.output), ''))} ({short(node.op_type)[1:-1]})"


def _data_bytes() -> int:
    """Bytes that RLIMIT_DATA counts of this process now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
