"""The Relax module of an ONNX graph that is expanded, with the weights that it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
import tvm
from tvm import relax

from tkc.contracts import GLOBAL_SYMBOL, MAIN, NUM_INPUT
from tkc.frontend.identifiers import identifiers
from tkc.frontend.indices import CheckedInGraph, IndexUses
from tkc.frontend.model import OperatorCall
from tkc.frontend.onnx import sequences
from tkc.frontend.onnx.branches import BRANCHES
from tkc.frontend.onnx.converters import CONVERTERS
from tkc.frontend.onnx.decisions import Decisions
from tkc.frontend.onnx.graph import GraphImporter
from tkc.frontend.onnx.initializers import to_torch
from tkc.frontend.onnx.loops import LOOPS
from tkc.frontend.onnx.opsets import opsets
from tkc.frontend.onnx.sizes import Known, SizeAlgebra, SizesLearned
from tkc.frontend.onnx.torch_calls import TorchCalls
from tkc.frontend.onnx.value_types import narrow_types
from tkc.frontend.onnx.values import Value, Weight
from tkc.frontend.sources import SourceBuilder
from tkc.runtime.signature import Flag, IndexBound

_VALUE_CONVERTERS = {**BRANCHES, **LOOPS, **dict.fromkeys(sequences.OPERATORS, sequences.converted)}


@dataclass(frozen=True)
class Built:
    """A module, the weights that it uses, which indices are checked at the call and by the module itself, the nodes
    by variables, the variables by values; the names of weights whose numbers were read, and what was noted of them;
    what it calls of PyTorch's; the structure of each output, of the names of its tensors, and all of these names."""

    module: tvm.IRModule
    parameters: dict[str, torch.Tensor]
    index_bounds: tuple[IndexBound, ...]
    index_flags: tuple[Flag, ...]
    sources: dict[str, str]
    values: dict[str, str]
    read: set[str]
    uses: IndexUses
    operators: tuple[OperatorCall, ...]
    structures: list[Any]
    outputs: list[str]


def to_relax(
    proto: onnx.ModelProto,
    names: Sequence[str],
    types: Sequence[relax.TensorStructInfo],
    weights: Mapping[str, np.ndarray],
    algebra: SizeAlgebra,
    checked_in_graph: CheckedInGraph,
    *,
    exchangeable: bool,
    decisions: Decisions,
    fallback: bool,
) -> Built:
    """The module and the weights it uses, built anew for as long as the graph implies more of the inputs' sizes."""
    read: set[str] = set()
    while True:
        algebra.conditions.clear()
        resolved = [relax.TensorStructInfo([algebra.resolve(size) for size in t.shape.values], t.dtype) for t in types]
        try:
            found = dict(zip(names, resolved, strict=True))
            return _build(
                proto,
                found,
                weights,
                algebra,
                checked_in_graph,
                read,
                decisions,
                exchangeable=exchangeable,
                fallback=fallback,
            )
        except SizesLearned:
            continue


def _build(
    proto: onnx.ModelProto,
    inputs: Mapping[str, relax.TensorStructInfo],
    weights: Mapping[str, np.ndarray],
    algebra: SizeAlgebra,
    checked_in_graph: CheckedInGraph,
    read: set[str],
    decisions: Decisions,
    *,
    exchangeable: bool,
    fallback: bool,
) -> Built:
    """The module and the weights it uses. Raises ``SizesLearned`` when the inputs turn out to be more special."""
    names = identifiers(inputs)
    variables = [relax.Var(name, struct_info) for name, struct_info in zip(names, inputs.values(), strict=True)]
    parameters = _parameters(weights)
    builder = SourceBuilder()
    named = dict(zip(variables, inputs, strict=True))
    tensors = {parameters[name]: to_torch(array) for name, array in weights.items()}
    uses = IndexUses(builder, named, tensors, checked_in_graph)
    importer = GraphImporter(
        builder,
        opsets(proto),
        CONVERTERS,
        algebra,
        index_uses=uses,
        narrow=narrow_types(proto.graph),
        value_converters=_VALUE_CONVERTERS,
        decisions=decisions,
        torch_calls=TorchCalls(fallback),
    )
    for name, variable in zip(inputs, variables, strict=True):
        importer.values[name] = Value(expression=variable)
    for name, parameter in parameters.items():
        importer.values[name] = Value(
            expression=parameter, weight=Weight(name, weights[name], read, exchangeable=exchangeable)
        )
    for tensor in proto.graph.initializer:
        importer.values[tensor.name] = Value(Known.constant(onnx.numpy_helper.to_array(tensor)))
    with builder.function(MAIN, [*variables, *parameters.values()]):
        try:
            importer.add_nodes(proto.graph.node)
            results = [importer.result(value.name) for value in proto.graph.output]
            outputs = [tensor for _, tensors in results for _, tensor in tensors]
            counts, flags = uses.counted()
        except Exception:
            builder.emit_func_output(relax.Tuple([]))  # a builder dropped with an open block complains on stderr
            raise
        bounds = uses.input_bounds()
        uses.check_constants()
        builder.emit_func_output(relax.Tuple([*outputs, *([] if counts is None else [counts])]))
    module = _cleaned(builder.get(), importer.parts)
    used = set(relax.analysis.free_vars(module[MAIN].body))
    kept = [name for name, parameter in parameters.items() if parameter in used]
    main = relax.Function([*variables, *(parameters[name] for name in kept)], module[MAIN].body)
    module[MAIN] = main.with_attrs({GLOBAL_SYMBOL: MAIN, NUM_INPUT: len(variables)})
    values = {
        name: value.expression.name_hint
        for name, value in importer.values.items()
        if isinstance(value.expression, relax.Var)
    }
    used_tensors = {name: tensors[parameters[name]] for name in kept}
    structures = [structure for structure, _ in results]
    names = [name for _, tensors in results for name, _ in tensors]
    called = importer.torch_calls.calls
    checked = tuple(flags)
    return Built(module, used_tensors, bounds, checked, builder.sources, values, read, uses, called, structures, names)


def _parameters(weights: Mapping[str, np.ndarray]) -> dict[str, relax.Var]:
    """A variable for each weight, prefixed to keep it apart from inputs and from what a block builder names."""
    return {
        name: relax.Var(f"p_{identifier}", relax.TensorStructInfo(array.shape, str(array.dtype)))
        for (name, array), identifier in zip(weights.items(), identifiers(weights), strict=True)
    }


def _cleaned(module: tvm.IRModule, parts: Sequence[str]) -> tvm.IRModule:
    """Pure bindings in dataflow blocks, as pattern matching wants them, and none that nothing uses.

    In this order: ``ConvertToDataflow`` alone forgets that the result of a branch within a branch is read outside.
    """
    passes = [relax.transform.DeadCodeElimination([MAIN, *parts]), relax.transform.ConvertToDataflow()]
    return tvm.transform.Sequential(passes)(module)
