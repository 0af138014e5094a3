"""Which initializers of an ONNX model are weights, which constants of the code, and what became of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tkc.errors import UnsupportedModelError
from tkc.frontend.held_weights import HeldWeight
from tkc.frontend.onnx.building import Built
from tkc.frontend.onnx.constants import bound_constants, with_sizes
from tkc.frontend.onnx.initializers import read_tensor, to_torch, widened
from tkc.frontend.onnx.signature import WIDENED, with_positive_sizes
from tkc.frontend.onnx.untrusted import nodes_of

# Initializers below this many bytes are read into the graph: numbers such as shapes, axes and scales decide how an
# operator is converted. It is also the size from which onnx itself moves tensors to external files.
CONSTANT_BYTES = 1024

_DECIDES = "its numbers decided how the model was compiled; compile again with the new weights"
_MAY_DECIDE_LESS = f"{_DECIDES}, or once with exchangeable_weights=True, by which fewer decide it"
_EITHER = "compile again with the new weights, or once with exchangeable_weights=True"
_SMALL = f"tensors under {CONSTANT_BYTES} bytes are constants of the generated code; compile again with the new weights"
_SMALL_FLOATS = f"{_SMALL}, or once with exchangeable_weights=True"
_COMPUTED = f"it is part of what was computed once; {_EITHER}"


def separate_weights(
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
        array = read_tensor(tensor, path)
        if array.nbytes < CONSTANT_BYTES and not (exchangeable and _are_floats(array)):
            light.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor.name))
            # The inliner looks for types among the values alone.
            light.graph.value_info.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
        else:
            weights[tensor.name] = widened(array)
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return weights, light


def _are_floats(array: np.ndarray) -> bool:
    """Whether these are several floats. Of single ones (epsilons, scales), rules and converters need the value."""
    return array.size > 1 and str(array.dtype).startswith(("float", "bfloat")) and str(array.dtype) not in WIDENED


def held_weights(
    proto: onnx.ModelProto,
    path: Path | None,
    weights: Mapping[str, np.ndarray],
    built: Built,
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
        array = weights[name] if name in weights else widened(read_tensor(initializer, path))
        tensor = to_torch(array) if parameter is None else built.parameters[name]
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
