"""Strings of an ONNX model become codes, before anything else looks at it: it is a model of numbers from then on.

A tensor of strings is an int64 tensor of codes (``tkc/runtime/text_table.py``). Those of constants and attributes are
fixed here. What moves strings, or compares them for equality, does the same with codes; what computes strings becomes a
node of :data:`~tkc.frontend.onnx.domains.TEXT_DOMAIN`, which the runtime computes; and any other operator that reads
strings is refused, as it would compute with codes.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from tkc.errors import InputError, UnsupportedModelError, UsageError
from tkc.frontend.onnx.domains import TEXT_DOMAIN, describe, plain_domain
from tkc.frontend.onnx.function_opsets import of_one_opset
from tkc.frontend.onnx.text.labels import MAPS, searched
from tkc.frontend.onnx.text.operators import CLASSIFIERS, FUNCTIONS, MOVES, POOLS
from tkc.frontend.onnx.text.strings import ModelStrings, decoded, holds_strings, replace_attributes, set_codes
from tkc.frontend.onnx.untrusted import nodes_of, short, told, within_limits
from tkc.runtime.signature import STRING, Constant, Signature, TensorSpec
from tkc.runtime.text_values import strings_of

_STRING = onnx.TensorProto.STRING
_CODES = onnx.TensorProto.INT64

Kinds = MutableMapping[str, bool]
"""Which values of a graph are strings, or sequences or optional values of strings, by name."""


@dataclasses.dataclass(frozen=True)
class Text:
    """The strings of a model by their codes, and which inputs, and which outputs by position, are strings."""

    strings: tuple[str, ...]
    inputs: frozenset[str]
    outputs: tuple[bool, ...]

    def signature(self, signature: Signature, structures: Sequence[Any]) -> Signature:
        """The signature of the model of codes, with strings. ``structures`` are those of the outputs, of names."""
        texts = [text for text, structure in zip(self.outputs, structures, strict=True) for _ in _names(structure)]
        outputs = zip(signature.outputs, texts, strict=True)
        return dataclasses.replace(
            signature,
            strings=self.strings,
            leaves=tuple(self._with_text(leaf) for leaf in signature.leaves),
            outputs=tuple(dataclasses.replace(spec, dtype=STRING) if text else spec for spec, text in outputs),
        )

    def _with_text(self, leaf: TensorSpec | Constant) -> TensorSpec | Constant:
        if isinstance(leaf, TensorSpec) and leaf.name in self.inputs:
            return dataclasses.replace(leaf, dtype=STRING)
        return leaf


def _names(structure: Any) -> list[str]:
    if isinstance(structure, list):
        return [name for each in structure for name in _names(each)]
    return [] if structure is None else [structure]


def with_codes(
    proto: onnx.ModelProto, constants: Mapping[str, Any]
) -> tuple[onnx.ModelProto, Mapping[str, Any], Text | None]:
    """The model and the constants that inputs are bound to, with codes in place of strings; and what was replaced.

    That is ``None`` for a model without strings, which stays as it is. Functions of one that has some are replaced by
    their bodies. Raises :class:`tkc.errors.UnsupportedModelError` for a node that cannot compute with strings, and
    :class:`tkc.errors.UsageError` for constants that are no strings where these are expected.
    """
    if not _may_have_strings(proto):
        return proto, constants, None
    result = _without_functions(proto)
    coder = _Coder()
    kinds = coder.whole(result.graph)
    bound = {name: coder.bound(name, value) if kinds.get(name) else value for name, value in constants.items()}
    if not coder.found:
        return proto, constants, None
    result.opset_import.append(onnx.helper.make_opsetid(TEXT_DOMAIN, 1))
    inputs = frozenset(value.name for value in result.graph.input if kinds.get(value.name))
    outputs = tuple(kinds.get(value.name, False) for value in result.graph.output)
    return result, bound, Text(tuple(coder.strings.codes), inputs, outputs)


def _without_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model, with its functions replaced by their bodies: what they compute depends on what is given."""
    result = onnx.ModelProto()
    result.CopyFrom(of_one_opset(proto))
    if not result.functions:
        return result
    try:
        return within_limits(lambda: onnx.inliner.inline_local_functions(result), result)
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"onnx cannot replace the functions of the model by their bodies ({told(error)}); export it without."
        ) from error


def _may_have_strings(proto: onnx.ModelProto) -> bool:
    """Whether anything in a model may be strings."""
    if any(holds_strings(value.type) for value in (*proto.graph.input, *proto.graph.output)):
        return True
    if any(tensor.data_type == _STRING for tensor in proto.graph.initializer):
        return True
    bodies = [onnx.GraphProto(node=function.node) for function in proto.functions]
    return any(_may_make_strings(node) for graph in (proto.graph, *bodies) for node in nodes_of(graph))


def _may_make_strings(node: onnx.NodeProto) -> bool:
    key = (plain_domain(node.domain), node.op_type)
    if key in FUNCTIONS or key in MAPS:
        return True
    return any(
        (attribute.strings and (key in CLASSIFIERS or key in POOLS or node.op_type == "Constant"))
        or attribute.t.data_type == _STRING
        or attribute.name == "value_string"
        or (attribute.name in ("to", "dtype") and attribute.i == _STRING)
        or holds_strings(attribute.tp)
        or any(tensor.data_type == _STRING for tensor in attribute.g.initializer)
        for attribute in node.attribute
    )


class _Coder:
    """Replaces strings in graphs, node by node."""

    def __init__(self) -> None:
        self.strings = ModelStrings()
        self.found = False
        """Whether any value was found to be strings."""

    def whole(self, graph: onnx.GraphProto) -> Kinds:
        """Replace the strings of the outermost graph; which of its values they were.

        Initializers become constants: strings are no weights.
        """
        kinds: dict[str, bool] = {value.name: holds_strings(value.type) for value in graph.input}
        texts = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == _STRING}
        nodes = [
            onnx.helper.make_node("Constant", [], [name], value=self.strings.tensor(tensor))
            for name, tensor in texts.items()
        ]
        if texts:
            nodes += graph.node
            inputs = [value for value in graph.input if value.name not in texts]
            kept = [tensor for tensor in graph.initializer if tensor.name not in texts]
            del graph.initializer[:], graph.node[:], graph.input[:]
            graph.initializer.extend(kept)
            graph.node.extend(nodes)
            graph.input.extend(inputs)
            kinds.update(dict.fromkeys(texts, True))
            self.found = True
        self._graph(graph, kinds, set(texts))
        return kinds

    def bound(self, name: str, value: Any) -> np.ndarray:
        """The codes of what an input is bound to. Raises :class:`tkc.errors.UsageError` for what is no strings."""
        try:
            array = strings_of(value, name)
        except InputError as error:
            raise UsageError(str(error).replace(f"input '{name}'", f"constants[{name!r}]", 1)) from None
        return self.strings.coded(array.ravel().tolist()).reshape(array.shape)

    def _graph(self, graph: onnx.GraphProto, kinds: Kinds, coded: set[str] | None = None) -> None:
        """Replace the strings of a graph, of whose values from outside ``kinds`` tells, and from now on of all.

        Constants whose values are ``coded`` are codes already.
        """
        self.found |= any(kinds.get(value.name, False) for value in graph.input)
        for tensor in graph.initializer:
            if tensor.data_type == _STRING:
                tensor.CopyFrom(self.strings.tensor(tensor))
                kinds[tensor.name] = self.found = True
        for node in graph.node:
            if coded and node.op_type == "Constant" and coded.issuperset(node.output):
                continue
            outputs = self._node(node, kinds)
            self.found |= any(outputs)
            kinds.update({name: text for name, text in zip(node.output, outputs, strict=False) if name})
        for value in graph.output:
            declared = holds_strings(value.type)
            # Of a type that is left out, nothing is declared.
            if declared != kinds.get(value.name, False) and (declared or _holds_numbers(value.type)):
                told = ("numbers", "strings")
                raise UnsupportedModelError(
                    f"Output {short(value.name)} is declared as {told[declared]}, and is computed as "
                    f"{told[not declared]}; correct the model."
                )
        for value in (*graph.input, *graph.output, *graph.value_info):
            set_codes(value.type)

    def _node(self, node: onnx.NodeProto, kinds: Kinds) -> Sequence[bool]:
        """Have a node do with codes what it does with strings; which of its outputs are strings."""
        key = (plain_domain(node.domain), node.op_type)
        given = [bool(name) and kinds.get(name, False) for name in node.input]
        if key in _WITH_GRAPHS:
            return self._with_graphs(node, kinds, given)
        if key == ("", "Constant"):
            return [self._constant(node)]
        if key in (("", "SequenceEmpty"), ("", "Optional")):
            return [_set_empty(node) or any(given)]
        if key in (("", "Cast"), ("", "CastLike")):
            return [self._cast(node, given)]
        if key in FUNCTIONS:
            _check_inputs(node, given, [True] * len(given))
            node.domain, self.found = TEXT_DOMAIN, True
            return [position in FUNCTIONS[key] for position in range(len(node.output))]
        if key in POOLS:
            is_text = searched(node, self.strings, *POOLS[key])
            _check_inputs(node, given, [is_text] * len(given))
            if is_text and key == ("", "TfIdfVectorizer"):
                node.domain = TEXT_DOMAIN
            return []
        if key in CLASSIFIERS:
            _check_inputs(node, given, [False] * len(given))
            return [searched(node, self.strings, "classlabels_strings", CLASSIFIERS[key])]
        if key in MAPS:
            keys, values = MAPS[key](node, self.strings, any(given))
            _check_inputs(node, given, [keys] * len(given))
            return [values]
        if key == ("", "Unique") and any(given):
            node.domain = TEXT_DOMAIN
            return [True]
        return _moved(node, given, key) if any(given) else []

    def _with_graphs(self, node: onnx.NodeProto, kinds: Kinds, given: list[bool]) -> Sequence[bool]:
        """The same of a node that chooses or repeats graphs, for each of which the same is strings."""
        graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        inputs = given
        if node.op_type == "If":
            _check_inputs(node, given, [False])
            inputs = []
        elif node.op_type == "Loop":
            inputs = [False, False, *given[2:]]
            _check_inputs(node, given, inputs[: len(given)])
        elif node.op_type == "Scan":  # of opset 8 there are lengths of sequences before the body's inputs
            inputs = given[max(len(given) - max((len(graph.input) for graph in graphs), default=0), 0) :]
        results: list[list[bool]] = []
        for graph in graphs:
            inner: Kinds = ChainMap({}, kinds)
            inner.update({value.name: text for value, text in zip(graph.input, inputs, strict=False)})
            self._graph(graph, inner)
            results.append([inner.get(value.name, False) for value in graph.output])
        if node.op_type == "Loop":  # a condition comes first, and is no result
            results = [found[1:] for found in results] + [inputs[2:]]
        elif node.op_type == "Scan":
            scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
            results.append(inputs[: max(len(inputs) - scanned, 0)])
        for name, *texts in zip(node.output, *results, strict=False):
            if len(set(texts)) > 1:
                raise UnsupportedModelError(
                    f"{describe(node)} has {short(name)} as strings in one of its branches or steps, and as numbers "
                    "in another; correct the model."
                )
        return results[0] if results else []

    def _constant(self, node: onnx.NodeProto) -> bool:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == _STRING:
                attribute.t.CopyFrom(self.strings.tensor(attribute.t))
                return True
            if attribute.name in ("value_string", "value_strings"):
                given = [attribute.s] if attribute.name == "value_string" else list(attribute.strings)
                codes = self.strings.coded(decoded(each, node) for each in given)
                shaped = codes.reshape(()) if attribute.name == "value_string" else codes
                attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(shaped)))
                return True
        return False

    def _cast(self, node: onnx.NodeProto, given: Sequence[bool]) -> bool:
        to_text = next((a.i for a in node.attribute if a.name == "to"), 0) == _STRING or given[1:] == [True]
        is_text = given[:1] == [True]
        if to_text and is_text:
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:]
        elif to_text:
            node.domain = TEXT_DOMAIN
            del node.input[1:]
            replace_attributes(node, {"to": _STRING})
        elif is_text:
            node.domain = TEXT_DOMAIN
        return to_text


_WITH_GRAPHS = frozenset({("", "If"), ("", "Loop"), ("", "Scan"), ("", "SequenceMap")})


def _moved(node: onnx.NodeProto, given: Sequence[bool], key: tuple[str, str]) -> list[bool]:
    """Which outputs of a node that moves strings are strings."""
    moves = MOVES.get(key)
    if moves is None:
        raise UnsupportedModelError(
            f"{describe(node)} reads strings, of which compiled models have no {node.op_type}; compute it outside of "
            "the model, or cast the strings to numbers first."
        )
    reduction = next((a.s for a in node.attribute if a.name == "reduction"), b"none")
    if reduction != b"none":
        raise UnsupportedModelError(
            f"{describe(node)} reduces strings by {reduction.decode(errors='replace')!r}; only the reduction 'none' is "
            "for strings."
        )
    wanted = [moves.takes(position) for position in range(len(node.input))]
    _check_inputs(node, given, wanted)
    return [moves.gives(position) for position in range(len(node.output))]


def _check_inputs(node: onnx.NodeProto, given: Sequence[bool], wanted: Sequence[bool]) -> None:
    for name, text, wants in zip(node.input, given, wanted, strict=False):
        if name and text != wants:
            kinds = ("numbers", "strings")
            raise UnsupportedModelError(
                f"{describe(node)} reads {kinds[text]} from {short(name)}, expected {kinds[wants]}; correct the model."
            )


def _holds_numbers(kind: onnx.TypeProto) -> bool:
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type not in (onnx.TensorProto.UNDEFINED, _STRING)


def _set_empty(node: onnx.NodeProto) -> bool:
    """Have a sequence of nothing, or an optional value that is not there, be of codes; whether it was of strings."""
    for attribute in node.attribute:
        if attribute.name == "dtype" and attribute.i == _STRING:
            attribute.i = _CODES
            return True
        if attribute.name == "type" and holds_strings(attribute.tp):
            set_codes(attribute.tp)
            return True
    return False
