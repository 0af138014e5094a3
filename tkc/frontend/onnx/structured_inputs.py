"""Inputs that are sequences, optional values, or tensors without a shape: as tensors, by an example of them.

A compiled model takes as many tensors as the example has: a sequence of three is three inputs of the graph, ``x.0`` to
``x.2``, and a node that makes the sequence of them. Their sizes are symbolic, each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from torch.utils import _pytree as pytree

from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.onnx.domains import describe
from tkc.runtime.signature import Constant, Signature, TensorSpec

_OPEN = {
    "sequence_type": "a sequence, and how many tensors it has",
    "optional_type": "an optional value, and whether it is there",
}


@dataclass
class StructuredInputs:
    """The structure that a call gives its inputs: ``values`` by input, in which a tensor is its name in the graph."""

    values: dict[str, Any] = field(default_factory=dict)

    def signature(self, signature: Signature) -> dict[str, Any]:
        """What the ``signature`` of the tensors alone lacks, as its fields; nothing where every input is a tensor."""
        if all(isinstance(value, str) for value in self.values.values()):
            return {}
        specs = {spec.name: spec for spec in signature.inputs}
        # Those that were bound as constants are no inputs any more.
        values = {name: value for name, value in self.values.items() if not isinstance(value, str) or value in specs}
        flat, spec = pytree.tree_flatten((tuple(values.values()), {}))
        names = [name for name, value in values.items() for _ in pytree.tree_leaves(value)]
        leaves: list[TensorSpec | Constant] = [
            Constant(name, None) if leaf is None else specs[leaf] for leaf, name in zip(flat, names, strict=True)
        ]
        written = pytree.treespec_dumps(spec)
        return {"leaves": tuple(leaves), "in_spec": written, "input_names": tuple(values)}


def with_tensors_as_inputs(
    proto: onnx.ModelProto, examples: Sequence[Any], named: Mapping[str, Any]
) -> tuple[onnx.ModelProto, StructuredInputs]:
    """The model with a tensor for each that the examples of its inputs have, and how a call gives them.

    ``examples`` are in the order of the inputs, ``named`` by their names; only those that leave something open need be
    there. Raises :class:`tkc.errors.UsageError` for examples of no input or of another kind, and
    :class:`tkc.errors.UnsupportedModelError` where one is missing.
    """
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialized]
    given = _by_name([value.name for value in inputs], examples, named)
    structure = StructuredInputs()
    if all(_is_whole(value.type) for value in inputs):
        structure.values = {value.name: value.name for value in inputs}
        return proto, structure
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    _refuse_maps(graph, inputs)
    parts = _Parts([], [], {value.name for value in inputs} | {name for node in graph.node for name in node.output})
    for value in inputs:
        if _is_whole(value.type):
            parts.inputs.append(value)
            structure.values[value.name] = value.name
        elif value.name in given:
            structure.values[value.name] = parts.add(value.name, value.type, given[value.name])
        else:
            open_part = _OPEN.get(value.type.WhichOneof("value"), "a tensor without a shape, and how many dimensions")
            raise UnsupportedModelError(
                f"Input {value.name!r} is {open_part}, only an example tells: give one (example_kwargs, example_args)."
            )
    nodes = [*parts.nodes, *graph.node]
    kept = [value for value in graph.input if value.name in initialized]
    del graph.input[:], graph.node[:]
    graph.input.extend([*parts.inputs, *kept])
    graph.node.extend(nodes)
    return result, structure


def _refuse_maps(graph: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto]) -> None:
    """Refuse inputs that are maps, of keys that a call decides, for which no example stands: name who reads them."""
    for value in inputs:
        if not _is_map(value.type):
            continue
        readers = [describe(node) for node in graph.node if value.name in node.input]
        used = f", which {' and '.join(readers)} reads" if readers else ""
        raise UnsupportedModelError(
            f"Input {value.name!r} is a map{used}; TKC's inputs are tensors: export the model from behind its "
            "DictVectorizer, with its columns as a tensor of floats, or encode the columns with OneHotEncoder instead."
        )


def _is_map(kind: onnx.TypeProto) -> bool:
    """Whether a type is a map, a sequence of maps, or one that may be missing."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _is_map(getattr(kind, which).elem_type)
    return bool(which == "map_type")


def _by_name(names: Sequence[str], examples: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(zip(names, examples, strict=False))
    unknown = [name for name in named if name not in names]
    if unknown or len(examples) > len(names):
        listed = ", ".join(map(repr, unknown)) or f"{len(examples)} inputs"
        raise UsageError(f"examples are given for {listed}; the model's inputs are {', '.join(names)}")
    if twice := [name for name in named if name in given]:
        raise UsageError(f"examples of {', '.join(map(repr, twice))} are given twice, in order and by name")
    return given | dict(named)


def _is_whole(kind: onnx.TypeProto) -> bool:
    """Whether a type says all that a compiled model needs."""
    return bool(kind.HasField("tensor_type") and kind.tensor_type.HasField("shape"))


@dataclass
class _Parts:
    """The tensors that inputs become, and the nodes that make the inputs of them."""

    inputs: list[onnx.ValueInfoProto]
    nodes: list[onnx.NodeProto]
    taken: set[str]

    def add(self, name: str, kind: onnx.TypeProto, example: Any) -> Any:
        """Have the graph compute value ``name`` of the type ``kind``; the structure of its example, of names."""
        if kind.HasField("tensor_type"):
            return self._tensor(name, kind, example)
        if kind.HasField("sequence_type"):
            return self._sequence(name, kind.sequence_type.elem_type, example)
        if kind.HasField("optional_type"):
            return self._optional(name, kind.optional_type.elem_type, example)
        raise UnsupportedModelError(f"Input {name!r} is a {kind.WhichOneof('value')}, which no tensors make up.")

    def _tensor(self, name: str, kind: onnx.TypeProto, example: Any) -> str:
        if not hasattr(example, "shape"):
            raise UsageError(f"the example of {name!r} is a {type(example).__name__}; expected a tensor")
        declared = kind.tensor_type.shape.dim if kind.tensor_type.HasField("shape") else None
        rank = len(example.shape)
        if declared is not None and len(declared) != rank:
            raise UsageError(f"the example of {name!r} has {rank} dimensions; the model declares {len(declared)}")
        value = onnx.ValueInfoProto(name=name)
        value.type.tensor_type.elem_type = kind.tensor_type.elem_type
        shape = value.type.tensor_type.shape
        for axis in range(rank):
            dim = shape.dim.add()
            # Names of sizes are those of each element: two of a sequence need not have the same.
            if declared is not None and declared[axis].HasField("dim_value") and declared[axis].dim_value >= 0:
                dim.dim_value = declared[axis].dim_value
        self.inputs.append(value)
        return name

    def _sequence(self, name: str, element: onnx.TypeProto, example: Any) -> list[Any]:
        if not isinstance(example, list | tuple):
            raise UsageError(f"the example of {name!r} is a {type(example).__name__}; expected a list of tensors")
        names = [self._free(f"{name}.{i}") for i in range(len(example))]
        structure = [self.add(part, element, each) for part, each in zip(names, example, strict=True)]
        if names:
            self.nodes.append(onnx.helper.make_node("SequenceConstruct", names, [name]))
        else:
            dtype = element.tensor_type.elem_type
            self.nodes.append(onnx.helper.make_node("SequenceEmpty", [], [name], dtype=dtype))
        return structure

    def _optional(self, name: str, element: onnx.TypeProto, example: Any) -> Any:
        if example is None:
            self.nodes.append(onnx.helper.make_node("Optional", [], [name], type=element))
            return None
        inner = self._free(f"{name}.0")
        structure = self.add(inner, element, example)
        self.nodes.append(onnx.helper.make_node("Optional", [inner], [name]))
        return structure

    def _free(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def result_structure(values: Sequence[Any]) -> tuple[str | None, list[tuple[int, str]]]:
    """How outputs are returned, as ``out_spec`` of a signature, and which of their leaves are absent, by position.

    ``values`` are names, lists of names, or absent (``None``). ``None`` where all are tensors.
    """
    if all(isinstance(value, str) for value in values):
        return None, []
    result = values[0] if len(values) == 1 else tuple(values)
    flat, spec = pytree.tree_flatten(result)
    return pytree.treespec_dumps(spec), [(i, "absent") for i, leaf in enumerate(flat) if leaf is None]
