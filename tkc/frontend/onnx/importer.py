"""Reads an ONNX model, from a file or from memory, into Relax."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tkc.contracts import MAIN
from tkc.errors import UnsupportedModelError
from tkc.frontend.indices import CheckedInGraph
from tkc.frontend.model import ImportedModel
from tkc.frontend.onnx.building import Built, to_relax
from tkc.frontend.onnx.channel_scales import with_scaled_convolutions
from tkc.frontend.onnx.decisions import Decisions
from tkc.frontend.onnx.expansion import expanded
from tkc.frontend.onnx.files import read_model
from tkc.frontend.onnx.folding import folded, read_by
from tkc.frontend.onnx.initializers import aligned
from tkc.frontend.onnx.opsets import check_opset, upgraded
from tkc.frontend.onnx.quantized_groups import with_quantized_operators
from tkc.frontend.onnx.signature import input_types, signature_of
from tkc.frontend.onnx.sizes import SizeAlgebra
from tkc.frontend.onnx.standard_forms import with_own_domains, without_maps
from tkc.frontend.onnx.structured_inputs import StructuredInputs, result_structure, with_tensors_as_inputs
from tkc.frontend.onnx.text.coding import Text, with_codes
from tkc.frontend.onnx.untrusted import check_structure
from tkc.frontend.onnx.value_types import with_outputs, without_untyped_outputs
from tkc.frontend.onnx.weights import CONSTANT_BYTES, held_weights, separate_weights
from tkc.runtime.signature import Constant

# Each is an import of the whole model.
_MOST_DECISIONS = 16

_LOG = logging.getLogger(__name__)


def import_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    checked_in_graph: CheckedInGraph = "none",
    constants: Mapping[str, Any] | None = None,
    examples: Sequence[Any] = (),
    named_examples: Mapping[str, Any] | None = None,
    *,
    exchangeable: bool = False,
    fallback: bool = True,
) -> ImportedModel:
    """Import an ONNX model: a path, whose external weight files are memory-mapped, or a ``ModelProto``.

    Weights become parameters named like their initializers; named and unnamed dimensions of the inputs become
    symbolic sizes, which may be 0 where every operator means something then. A dimension given as an expression
    (``past + 1``) of sizes that other dimensions name stays that expression. Inputs that ``constants`` names are those
    numbers, and no inputs. Small initializers are constants of the module; with ``exchangeable`` those of several
    floats are parameters, however small, unless the model cannot be imported so.

    ONNX calls an index out of range an error. One that is a constant is refused here, those that are inputs are checked
    at the call or, as ``checked_in_graph`` says, by the module itself (see :class:`Signature`). Where nothing checks
    it, the model reads NaN there, or, of types without NaN and when it writes, brings the index into range.

    Of inputs that are sequences, optional values or tensors without a shape, ``examples``, in the order of the inputs,
    and ``named_examples`` say how many tensors there are, and of how many dimensions.

    Random numbers are drawn by PyTorch, which ``fallback=False`` refuses.

    Raises :class:`tkc.errors.UsageError` for a file that is not there and for constants that do not fit, and
    :class:`tkc.errors.UnsupportedModelError` for a file that is no whole ONNX model, or has operators, types or an
    opset that cannot be imported.
    """
    proto, path = read_model(model)
    check_opset(proto)
    check_structure(proto)
    proto = with_own_domains(without_maps(proto))
    proto, structure = with_tensors_as_inputs(proto, examples, named_examples or {})
    proto, bound, text = with_codes(proto, constants or {})
    if exchangeable:
        try:
            return _imported(
                proto, path, checked_in_graph, bound, structure, text, exchangeable=True, fallback=fallback
            )
        except UnsupportedModelError as error:
            _LOG.info("small weights are constants of the code: as parameters they are refused (%s)", error)
    return _imported(proto, path, checked_in_graph, bound, structure, text, exchangeable=False, fallback=fallback)


def _imported(
    proto: onnx.ModelProto,
    path: Path | None,
    checked_in_graph: CheckedInGraph,
    constants: Mapping[str, Any],
    structure: StructuredInputs,
    text: Text | None,
    *,
    exchangeable: bool,
    fallback: bool,
) -> ImportedModel:
    whole = proto
    weights, proto = separate_weights(proto, path, constants, exchangeable=exchangeable)
    inputs = [value for value in proto.graph.input if value.name not in weights]
    outputs = [value.name for value in proto.graph.output]
    input_types(inputs, SizeAlgebra())  # what is wrong with them is told first
    proto = with_outputs(expanded(upgraded(without_untyped_outputs(proto))), outputs)
    computed: set[str] = set()
    if not exchangeable:
        proto, computed = _computed_ahead(proto, weights)
    built, algebra = _built(proto, inputs, weights, checked_in_graph, exchangeable=exchangeable, fallback=fallback)
    signature = signature_of(proto.graph, built.module[MAIN], inputs, built.outputs, algebra)
    if text is not None:
        signature = text.signature(signature, built.structures)
    given, (out_spec, absent) = structure.signature(signature), result_structure(built.structures)
    constants_out = tuple((position, Constant(name, None)) for position, name in absent)
    signature = dataclasses.replace(signature, **given, out_spec=out_spec, constant_outputs=constants_out)
    signature = dataclasses.replace(
        signature,
        index_bounds=built.index_bounds,
        index_flags=built.index_flags,
        conditions=(*signature.conditions, *built.uses.size_conditions()),
    )
    return ImportedModel(
        built.module,
        built.parameters,
        signature,
        sources=built.sources,
        values=built.values,
        operators=built.operators,
        shares_weights=False,  # an ONNX model holds bytes, which nobody changes
        held=held_weights(whole, path, weights, built, computed, exchangeable=exchangeable),
    )


def _built(
    proto: onnx.ModelProto,
    inputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    checked_in_graph: CheckedInGraph,
    *,
    exchangeable: bool,
    fallback: bool,
) -> tuple[Built, SizeAlgebra]:
    """The module, and what is known of its sizes: of the first branches with which the model can be imported whole."""
    decisions, failed = Decisions(), None
    for _ in range(_MOST_DECISIONS):
        algebra = SizeAlgebra()
        types = input_types(inputs, algebra)
        names = [value.name for value in inputs]
        try:
            built = to_relax(
                proto,
                names,
                types,
                weights,
                algebra,
                checked_in_graph,
                exchangeable=exchangeable,
                decisions=decisions,
                fallback=fallback,
            )
        except UnsupportedModelError as error:
            failed = failed or error
        else:
            if not decisions.taken or _has_declared_ranks(proto, built):
                for name, then in decisions.taken.items():
                    _LOG.warning("If %s: compiled for the %s-branch alone", name, "then" if then else "else")
                return built, algebra
        if not decisions.change():
            break
    raise failed or UnsupportedModelError(
        "The model declares outputs of other numbers of dimensions than any of its branches gives; correct the model."
    )


def _has_declared_ranks(proto: onnx.ModelProto, built: Built) -> bool:
    """Whether the outputs have as many dimensions as the model declares."""
    fields = dict(zip(built.outputs, built.module[MAIN].body.body.struct_info.fields, strict=False))
    return all(
        not value.type.tensor_type.HasField("shape")
        or value.name not in fields
        or len(value.type.tensor_type.shape.dim) == fields[value.name].ndim
        for value in proto.graph.output
    )


def _computed_ahead(proto: onnx.ModelProto, weights: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, set[str]]:
    """The model after what its constants alone decide, and the names that were read for it. Adds to ``weights``."""
    before = _reads(proto)
    for changed in (with_quantized_operators, folded, with_scaled_convolutions):
        proto, made = changed(proto, weights, CONSTANT_BYTES)
        weights |= {name: aligned(value) for name, value in made.items()}
    return proto, set(before - _reads(proto))


def _reads(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(name for node in proto.graph.node for name in read_by(node))
