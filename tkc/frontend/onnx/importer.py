"""Reads an ONNX model, from a file or from memory, into Relax."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.external_data_helper
import onnx.inliner
import onnx.shape_inference
import torch
import tvm
from google.protobuf.message import DecodeError
from tvm import relax

from tkc.contracts import GLOBAL_SYMBOL, MAIN, NUM_INPUT
from tkc.errors import OutOfMemoryError, UnsupportedModelError, UsageError
from tkc.frontend.held_weights import HeldWeight
from tkc.frontend.identifiers import identifiers
from tkc.frontend.indices import CheckedInGraph, IndexUses
from tkc.frontend.model import ImportedModel
from tkc.frontend.onnx import sequences
from tkc.frontend.onnx.channel_scales import with_scaled_convolutions
from tkc.frontend.onnx.constants import bound_constants, with_sizes
from tkc.frontend.onnx.converters import CONVERTERS
from tkc.frontend.onnx.folding import folded, read_by
from tkc.frontend.onnx.graph import (
    MICROSOFT_DOMAIN,
    ML_DOMAIN,
    STANDARD_DOMAINS,
    GraphImporter,
    Value,
    Weight,
    describe,
    stock_converters,
)
from tkc.frontend.onnx.loops import LOOPS
from tkc.frontend.onnx.opsets import check_opset, opsets, upgraded
from tkc.frontend.onnx.signature import (
    WIDENED,
    element_type,
    input_types,
    signature_of,
    with_positive_sizes,
)
from tkc.frontend.onnx.sizes import Known, SizeAlgebra, SizesLearned
from tkc.frontend.onnx.untrusted import (
    MOST_ELEMENTS,
    LimitError,
    check_dimensions,
    check_structure,
    nodes_of,
    short,
    told,
    within_limits,
)
from tkc.frontend.onnx.value_types import narrow_types, with_narrow_types, with_outputs, without_untyped_outputs
from tkc.frontend.sources import SourceBuilder
from tkc.runtime.signature import Flag, IndexBound

_LOG = logging.getLogger(__name__)

# Initializers below this many bytes are read into the graph: numbers such as shapes, axes and scales decide how an
# operator is converted. It is also the size from which onnx itself moves tensors to external files.
CONSTANT_BYTES = 1024

# Compiled code loads vectors from tensors, which therefore start at multiples of this many bytes.
ALIGNMENT = 64

# Function operators whose standard expansion covers more than Apache TVM's converter does.
_BETTER_EXPANDED = frozenset({"HardSigmoid", "HardSwish", "Softsign", "ThresholdedRelu"})

_VALUE_CONVERTERS = {**LOOPS, **dict.fromkeys(sequences.OPERATORS, sequences.converted)}

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

# Operators that ONNX Runtime's optimizer writes into the standard domain, and the opset that has them, if one has.
_MISPLACED = {"SimplifiedLayerNormalization": None, "LayerNormalization": 17}

_DECIDES = "its numbers decided how the model was compiled; compile again with the new weights"
_MAY_DECIDE_LESS = f"{_DECIDES}, or once with exchangeable_weights=True, by which fewer decide it"
_EITHER = "compile again with the new weights, or once with exchangeable_weights=True"
_SMALL = f"tensors under {CONSTANT_BYTES} bytes are constants of the generated code; compile again with the new weights"
_SMALL_FLOATS = f"{_SMALL}, or once with exchangeable_weights=True"
_COMPUTED = f"it is part of what was computed once; {_EITHER}"

_LISTED = 50  # nodes that an error lists

_TORCH_ONLY_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}


def import_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    checked_in_graph: CheckedInGraph = "none",
    constants: Mapping[str, Any] | None = None,
    *,
    exchangeable: bool = False,
) -> ImportedModel:
    """Import an ONNX model: a path, whose external weight files are memory-mapped, or a ``ModelProto``.

    Weights become parameters named like their initializers; named and unnamed dimensions of the inputs become
    symbolic sizes of at least 1. A dimension given as an expression (``past + 1``) of sizes that other dimensions
    name stays that expression. Inputs that ``constants`` names are those numbers, and no inputs. Small initializers are
    constants of the module; with ``exchangeable`` those of several floats are parameters, however small, unless the
    model cannot be imported so.

    ONNX calls an index out of range an error. One that is a constant is refused here, those that are inputs are checked
    at the call or, as ``checked_in_graph`` says, by the module itself (see :class:`Signature`). Where nothing checks
    it, the model reads NaN there, or, of types without NaN and when it writes, brings the index into range.

    Raises :class:`tkc.errors.UsageError` for a file that is not there and for constants that do not fit, and
    :class:`tkc.errors.UnsupportedModelError` for a file that is no whole ONNX model, or has operators, types or an
    opset that cannot be imported.
    """
    proto, path = _read(model)
    check_opset(proto)
    check_structure(proto)
    proto = _with_own_domains(_without_maps(proto))
    if exchangeable:
        try:
            return _imported(proto, path, checked_in_graph, constants or {}, exchangeable=True)
        except UnsupportedModelError as error:
            _LOG.info("small weights are constants of the code: as parameters they are refused (%s)", error)
    return _imported(proto, path, checked_in_graph, constants or {}, exchangeable=False)


def _imported(
    proto: onnx.ModelProto,
    path: Path | None,
    checked_in_graph: CheckedInGraph,
    constants: Mapping[str, Any],
    *,
    exchangeable: bool,
) -> ImportedModel:
    given = proto
    weights, proto = _separate_weights(proto, path, constants, exchangeable=exchangeable)
    inputs = [value for value in proto.graph.input if value.name not in weights]
    algebra = SizeAlgebra()
    types = input_types(inputs, algebra)
    outputs = [value.name for value in proto.graph.output]
    proto = with_outputs(_expanded(upgraded(without_untyped_outputs(proto))), outputs)
    computed: set[str] = set()
    if not exchangeable:
        proto, computed = _computed_ahead(proto, weights)
    names = [value.name for value in inputs]
    built = _to_relax(proto, names, types, weights, algebra, checked_in_graph, exchangeable=exchangeable)
    signature = signature_of(proto.graph, built.module[MAIN], inputs, algebra)
    signature = dataclasses.replace(signature, index_bounds=built.index_bounds, index_flags=built.index_flags)
    return ImportedModel(
        built.module,
        built.parameters,
        signature,
        sources=built.sources,
        values=built.values,
        shares_weights=False,  # an ONNX model holds bytes, which nobody changes
        held=_held_weights(given, path, weights, built, computed, exchangeable=exchangeable),
    )


def _computed_ahead(proto: onnx.ModelProto, weights: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, set[str]]:
    """The model after what its constants alone decide, and the names that were read for it. Adds to ``weights``."""
    before = _reads(proto)
    for changed in (folded, with_scaled_convolutions):
        proto, made = changed(proto, weights, CONSTANT_BYTES)
        weights |= {name: _aligned(value) for name, value in made.items()}
    return proto, set(before - _reads(proto))


def _reads(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(name for node in proto.graph.node for name in read_by(node))


# Reading


def _read(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model without what stands in other files, and its path."""
    if isinstance(model, onnx.ModelProto):
        proto, source, path = model, "The ModelProto", None
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise UsageError(f"There is no ONNX file at {str(path)!r}; check the path.")
        source = f"The file {str(path)!r}"
        try:
            proto = onnx.load(path, load_external_data=False)
        except (DecodeError, ValueError) as error:
            raise UnsupportedModelError(f"{source} is not ONNX, or is cut short ({error}); export it again.") from error
    else:
        raise UsageError(f"An ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}.")
    if not (proto.ir_version and proto.HasField("graph") and proto.graph.output):
        raise UnsupportedModelError(f"{source} holds no ONNX graph with outputs: it is not ONNX, or was cut short.")
    return proto, path


def _without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the tensor of scores in place of a map from labels to scores that a ZipMap ends it with.

    Scores are in the order of the ZipMap's labels. One whose result other nodes read is refused like any operator
    without a converter.
    """
    read = {name for node in nodes_of(proto.graph) for name in node.input}
    maps = {
        node.output[0]: node
        for node in proto.graph.node
        if (node.domain, node.op_type) == (ML_DOMAIN, "ZipMap") and node.output and node.output[0] not in read
    }
    if not maps:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in result.graph.node:
        if node.output and node.output[0] in maps:
            node.domain, node.op_type = "", "Identity"
            del node.attribute[:]
    for output in result.graph.output:
        if output.name in maps:
            labels = max((len(a.ints) or len(a.strings) for a in maps[output.name].attribute), default=0)
            sizes = [None, labels or None]
            output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, sizes))
            _LOG.warning(
                "ZipMap %s is left out: output %s is the tensor of its scores", maps[output.name].name, output.name
            )
    return result


def _with_own_domains(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ONNX Runtime's operators in their own domain, some of which it writes into the standard's."""
    version = opsets(proto).get("", 1)
    misplaced = {name for name, since in _MISPLACED.items() if since is None or version < since}
    if not any(node.domain in STANDARD_DOMAINS and node.op_type in misplaced for node in nodes_of(proto.graph)):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in nodes_of(result.graph):
        if node.domain in STANDARD_DOMAINS and node.op_type in misplaced:
            node.domain = MICROSOFT_DOMAIN
    if MICROSOFT_DOMAIN not in opsets(proto):
        result.opset_import.append(onnx.helper.make_opsetid(MICROSOFT_DOMAIN, 1))
    return result


# Weights


def _separate_weights(
    proto: onnx.ModelProto, path: Path | None, constants: Mapping[str, Any], *, exchangeable: bool
) -> tuple[dict[str, np.ndarray], onnx.ModelProto]:
    """The large initializers as arrays, and the model with graph inputs in their place.

    Inputs that are bound to ``constants`` are initializers.
    """
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise UnsupportedModelError(f"Initializer {name!r} is sparse; store it as a dense tensor.")
    weights = {}
    light = onnx.ModelProto()
    light.ir_version = max(proto.ir_version, 4)  # before version 4 every initializer was an input too
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = proto.graph.name
    light.graph.node.extend(proto.graph.node)
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialized]
    arrays, sizes = bound_constants(inputs, constants)
    light.graph.output.extend(with_sizes(with_positive_sizes(value), sizes) for value in proto.graph.output)
    light.graph.input.extend(
        with_sizes(with_positive_sizes(value), sizes) for value in inputs if value.name not in arrays
    )
    bound = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    for tensor in [*proto.graph.initializer, *bound]:
        array = _read_tensor(tensor, path)
        if array.nbytes < CONSTANT_BYTES and not (exchangeable and _are_floats(array)):
            light.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor.name))
            # The inliner looks for types among the values alone.
            light.graph.value_info.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
        else:
            weights[tensor.name] = _widened(array)
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return weights, light


def _are_floats(array: np.ndarray) -> bool:
    """Whether these are several floats. Of single ones (epsilons, scales), rules and converters need the value."""
    return array.size > 1 and str(array.dtype).startswith(("float", "bfloat")) and str(array.dtype) not in WIDENED


def _held_weights(
    proto: onnx.ModelProto,
    path: Path | None,
    weights: Mapping[str, np.ndarray],
    built: _Built,
    computed: Collection[str],
    *,
    exchangeable: bool,
) -> dict[str, HeldWeight]:
    """What became of the model's initializers, of which constants were ``computed``."""
    read = {name for node in nodes_of(proto.graph) for name in node.input}
    read |= {output.name for output in proto.graph.output}
    held: dict[str, HeldWeight] = {}
    for initializer in proto.graph.initializer:
        name = initializer.name
        parameter = name if name in built.parameters else None
        array = weights[name] if name in weights else _widened(_read_tensor(initializer, path))
        tensor = _to_torch(array) if parameter is None else built.parameters[name]
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type))
        held[name] = HeldWeight(tensor, dtype, parameter)
        if name in computed:
            held[name].fixed = _COMPUTED
        elif name in built.read:
            held[name].fixed = _DECIDES if exchangeable else _MAY_DECIDE_LESS
        elif name in read and name not in weights:
            held[name].fixed = _SMALL if exchangeable or not _are_floats(array) else _SMALL_FLOATS
    built.uses.read.mark(held.values(), built.parameters)
    return held


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(WIDENED[str(array.dtype)]) if str(array.dtype) in WIDENED else array


def _read_tensor(tensor: onnx.TensorProto, path: Path | None) -> np.ndarray:
    """The array of a tensor, mapped from its file where it is external."""
    element_type(tensor.name, tensor.data_type)
    check_dimensions(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if onnx.external_data_helper.uses_external_data(tensor):
        return _map_external(tensor, dtype, path)
    try:
        if tensor.HasField("raw_data") and dtype.itemsize * math.prod(tensor.dims) == len(tensor.raw_data):
            return _aligned(np.frombuffer(tensor.raw_data, dtype).reshape(tensor.dims))
        return _aligned(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} is damaged ({told(error)}); export it again."
        ) from error


def _map_external(tensor: onnx.TensorProto, dtype: np.dtype, place: Path | None) -> np.ndarray:
    name = short(tensor.name)
    try:
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
    except ValueError as error:
        raise UnsupportedModelError(
            f"Initializer {name} says wrongly where it stands ({told(error)}); export it again."
        ) from error
    if place is None:
        raise UsageError(
            f"Initializer {name} stands in the file {short(info.location)}, and a ModelProto does not say "
            "where that is; pass the path of the model instead."
        )
    path = _external_file(tensor, info.location, place)
    bits = 8 * dtype.itemsize
    if str(dtype) in WIDENED:
        bits = (ml_dtypes.finfo if "float" in str(dtype) else ml_dtypes.iinfo)(dtype).bits
    offset, size = info.offset or 0, -(-math.prod(tensor.dims) * bits // 8)
    if info.length is not None and info.length != size:
        raise UnsupportedModelError(
            f"Initializer {name} needs {size} bytes, and is said to have {info.length} in {short(info.location)}; "
            "export it again."
        )
    available = path.stat().st_size - offset
    if available < size:
        raise UnsupportedModelError(
            f"Initializer {name} needs {size} bytes at offset {offset} of {short(info.location)}, which has "
            f"{max(available, 0)} there: the file was cut short; copy or export it again."
        )
    if not size:
        return np.empty(tuple(tensor.dims), dtype)
    if str(dtype) in WIDENED:
        with path.open("rb") as file:
            file.seek(offset)
            packed = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=file.read(size))
        return _aligned(onnx.numpy_helper.to_array(packed))
    try:
        # Copy on write: PyTorch wants writable memory, and the file must stay as it is.
        mapped = np.memmap(path, dtype, mode="c", offset=offset, shape=tuple(tensor.dims)).view(np.ndarray)
    except OSError as error:
        raise OutOfMemoryError(
            f"Initializer {name} takes {size} bytes of {short(info.location)}, which cannot be mapped "
            f"({error.strerror}); give the machine more memory."
        ) from error
    return _aligned(mapped) if mapped.ctypes.data % ALIGNMENT else mapped


def _external_file(tensor: onnx.TensorProto, location: str, model: Path) -> Path:
    """The file of an initializer, which is in the folder of the model's file.

    Where links lead is what counts: of a model that is a link itself, as in the cache of the Hugging Face Hub, its data
    may be one into the same folder.
    """
    relative = Path(location)
    outside = relative.is_absolute() or ".." in relative.parts
    try:
        path = (model.parent / relative).resolve()
        outside |= not any(path.is_relative_to(folder) for folder in (model.parent.resolve(), model.resolve().parent))
        found = not outside and path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long a name, a null character; links in a circle
        found = False
    if outside:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} is outside the model's folder: {short(location)}; copy the file itself "
            "into it, and export the model with that name."
        )
    if not found:
        raise UnsupportedModelError(
            f"Initializer {short(tensor.name)} stands in the file {short(location)}, which is not beside the model; "
            f"copy it to {str(model.parent)!r}."
        )
    return path


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that is writable and aligned as PyTorch and TVM align their tensors."""
    try:
        memory = torch.empty(array.nbytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise OutOfMemoryError(f"there is not enough memory for a tensor of {array.nbytes} bytes") from error
    copy = memory.numpy().view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor on the array's own memory."""
    dtype = _TORCH_ONLY_DTYPES.get(str(array.dtype))
    if dtype is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"uint{array.dtype.itemsize * 8}")).view(dtype)


# Operators


def _expanded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions replaced by their bodies, unless a converter knows them; checked."""
    local = {(function.domain, function.name) for function in proto.functions}
    expandable = _expandable_operators()
    _refuse_unknown(proto.graph, local | expandable)
    _refuse_impossible_fills(proto.graph)
    try:
        typed = _typed_within_limits(proto, bool(local), expandable)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise UnsupportedModelError(f"The model is no valid ONNX: {told(error)}; export it again.") from error
    try:
        inlined = within_limits(
            lambda: onnx.inliner.inline_selected_functions(typed, sorted(expandable), inline_schema_functions=True),
            proto,
        )
    except RuntimeError as error:
        raise UnsupportedModelError(_told_of_functions(typed, expandable, error)) from error
    _refuse_unknown(inlined.graph, set())
    return with_narrow_types(inlined)


def _told_of_functions(proto: onnx.ModelProto, functions: set[tuple[str, str]], error: RuntimeError) -> str:
    nodes = [
        node
        for node in nodes_of(proto.graph)
        if ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in functions
    ]
    listed = "\n".join(f"  {describe(node)}" for node in nodes[:_LISTED])
    return (
        f"onnx cannot replace the functions of the model by their bodies ({told(error)}):\n{listed}\n"
        "Export the model with other operators, or with the types of all values."
    )


def _typed_within_limits(
    proto: onnx.ModelProto, has_functions: bool, expandable: set[tuple[str, str]]
) -> onnx.ModelProto:
    try:
        return within_limits(lambda: _typed(proto, has_functions, expandable), proto)
    except LimitError:
        # To propagate what constants hold is what takes more than anything else. Without it, the node that makes too
        # large a tensor is found, and named, when it is converted.
        return within_limits(lambda: _typed(proto, has_functions, expandable, data_prop=False), proto)


def _typed(
    proto: onnx.ModelProto, has_functions: bool, expandable: set[tuple[str, str]], data_prop: bool = True
) -> onnx.ModelProto:
    """The model, checked, with its own functions inlined and the types of values that can be inferred."""
    onnx.checker.check_model(proto)
    inlined = onnx.inliner.inline_local_functions(proto) if has_functions else proto
    return onnx.shape_inference.infer_shapes(_with_defaults(inlined, expandable), data_prop=data_prop)


def _refuse_impossible_fills(graph: onnx.GraphProto) -> None:
    """Refuse a ConstantOfShape of more elements than any tensor has: onnx's inference of shapes counts them out."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes_of(graph):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
                elif attribute.name == "value_ints":
                    constants[node.output[0]] = onnx.numpy_helper.from_array(np.array(attribute.ints, "int64"))
        elif node.op_type == "ConstantOfShape" and node.input and node.input[0] in constants:
            sizes = _read_tensor(constants[node.input[0]], None).ravel().tolist()
            if any(size < 0 for size in sizes) or (0 not in sizes and math.prod(sizes) > MOST_ELEMENTS):
                raise UnsupportedModelError(
                    f"{describe(node)} makes a tensor of shape {sizes}, which no machine can hold; correct the model."
                )


def _with_defaults(proto: onnx.ModelProto, operators: set[tuple[str, str]]) -> onnx.ModelProto:
    """The model with the default attributes of these operators written out, which the inliner leaves away."""
    versions = opsets(proto)
    for node in nodes_of(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in operators:
            given = {attribute.name for attribute in node.attribute}
            schema = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            missing = (attribute for name, attribute in schema.attributes.items() if name not in given)
            node.attribute.extend(attribute.default_value for attribute in missing if attribute.default_value.name)
    return proto


def _expandable_operators() -> set[tuple[str, str]]:
    """The operators that ONNX defines as functions, without those that are better converted as they are."""
    functions = {
        (schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]  # missing in its stub
    }
    return {key for key in functions if key[1] in _BETTER_EXPANDED or not _has_converter(*key)}


def _has_converter(domain: str, operator: str) -> bool:
    if domain in ("", "ai.onnx") and operator in sequences.OPERATORS:
        return True
    return (domain, operator) in CONVERTERS or operator in stock_converters(domain)


def _refuse_unknown(graph: onnx.GraphProto, known: set[tuple[str, str]]) -> None:
    """Raise :class:`tkc.errors.UnsupportedModelError` with every node that nothing can import."""
    unknown = [node for node in nodes_of(graph) if not _is_known(node, known)]
    if unknown:
        listed = "\n".join(f"  {describe(node)}" for node in unknown[:_LISTED])
        if unknown[_LISTED:]:
            listed += f"\n  and {len(unknown) - _LISTED} more"
        raise UnsupportedModelError(
            f"{len(unknown)} nodes of the model have operators that cannot be imported:\n{listed}\n"
            "Export the model with other operators, or give these as ONNX functions (local functions of the model)."
        )


def _is_known(node: onnx.NodeProto, known: set[tuple[str, str]]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not domain and node.op_type in _CONTROL_FLOW:
        return True
    return (domain, node.op_type) in known or _has_converter(domain, node.op_type)


# Building


@dataclass(frozen=True)
class _Built:
    """A module, the weights that it uses, which indices are checked at the call and by the module itself, the nodes
    by variables, the variables by values; the names of weights whose numbers were read, and what was noted of them."""

    module: tvm.IRModule
    parameters: dict[str, torch.Tensor]
    index_bounds: tuple[IndexBound, ...]
    index_flags: tuple[Flag, ...]
    sources: dict[str, str]
    values: dict[str, str]
    read: set[str]
    uses: IndexUses


def _to_relax(
    proto: onnx.ModelProto,
    names: Sequence[str],
    types: Sequence[relax.TensorStructInfo],
    weights: Mapping[str, np.ndarray],
    algebra: SizeAlgebra,
    checked_in_graph: CheckedInGraph,
    *,
    exchangeable: bool,
) -> _Built:
    """The module and the weights it uses, built anew for as long as the graph implies more of the inputs' sizes."""
    read: set[str] = set()
    while True:
        resolved = [relax.TensorStructInfo([algebra.resolve(size) for size in t.shape.values], t.dtype) for t in types]
        try:
            found = dict(zip(names, resolved, strict=True))
            return _build(proto, found, weights, algebra, checked_in_graph, read, exchangeable=exchangeable)
        except SizesLearned:
            continue


def _build(
    proto: onnx.ModelProto,
    inputs: Mapping[str, relax.TensorStructInfo],
    weights: Mapping[str, np.ndarray],
    algebra: SizeAlgebra,
    checked_in_graph: CheckedInGraph,
    read: set[str],
    *,
    exchangeable: bool,
) -> _Built:
    """The module and the weights it uses. Raises ``SizesLearned`` when the inputs turn out to be more special."""
    names = identifiers(inputs)
    variables = [relax.Var(name, struct_info) for name, struct_info in zip(names, inputs.values(), strict=True)]
    parameters = _parameters(weights)
    builder = SourceBuilder()
    named = dict(zip(variables, inputs, strict=True))
    tensors = {parameters[name]: _to_torch(array) for name, array in weights.items()}
    uses = IndexUses(builder, named, tensors, checked_in_graph)
    importer = GraphImporter(
        builder,
        opsets(proto),
        CONVERTERS,
        algebra,
        index_uses=uses,
        narrow=narrow_types(proto.graph),
        value_converters=_VALUE_CONVERTERS,
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
            outputs = [importer.tensor(value.name) for value in proto.graph.output]
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
    return _Built(module, used_tensors, bounds, tuple(flags), builder.sources, values, read, uses)


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
