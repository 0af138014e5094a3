"""Compiles ONNX models into functions of arrays, and runs ONNX's own tests of its operators on them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

import tkc
from tests.conformance.onnx_cases import difference, plain_arrays
from tkc.runtime.tensors import from_torch_as, narrowed

# What takes minutes, and is made of what other tests check, runs only if asked for.
EVERY_CASE = os.environ.get("TKC_EVERY_ONNX_CASE") == "1"


Model = str | Path | onnx.ModelProto


def compiled(model: Model, constants: Mapping[str, Any] | None = None) -> Callable[..., list[np.ndarray]]:
    """The model, compiled as users compile it but without kernels, as a function of arrays.

    A string is a model in ONNX's text form.
    """
    proto = parsed(model) if isinstance(model, str) else model
    executable = tkc.compile(proto, target="cpu", kernels="none", constants=constants)
    to_array = from_torch_as(np.empty(0))

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        found = zip(executable.run_flat(inputs), executable.signature.outputs, strict=True)
        return [
            output if spec.is_text else narrowed(to_array(output), spec.dtype) if spec.is_narrow else to_array(output)
            for output, spec in found
        ]

    return call


def evaluated(model: Model, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a model."""
    return compiled(model)(*inputs)


def run(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    constant: Sequence[int] = (),
    dtype: str = "float32",
    rank: int | None = None,
    **options: Any,
) -> np.ndarray:
    """The first result of one node, of which some inputs are constants; ``options`` are attributes and ``domain``.

    It has as many dimensions as the first input, unless ``rank`` says how many.
    """
    return run_all(operator, inputs, constant, [(dtype, rank)], **options)[0]


def run_all(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    constant: Sequence[int],
    outputs: Sequence[tuple[str, int | None]],
    **options: Any,
) -> list[np.ndarray]:
    """All results of one node, each with its type and rank."""
    names = ["" if array is None else f"i{i}" for i, array in enumerate(inputs)]
    given = [(name, array) for name, array in zip(names, inputs, strict=True) if array is not None]
    kept = {names[i] for i in constant}
    first = next(array for _, array in given if array.ndim)

    def declared(name: str, dtype: Any, shape: Sequence[Any]) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    results = [f"y{i}" for i in range(len(outputs))]
    node = onnx.helper.make_node(operator, names, results, **options)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [declared(name, array.dtype, array.shape) for name, array in given if name not in kept],
        [
            declared(name, dtype, [None] * (first.ndim if rank is None else rank))
            for name, (dtype, rank) in zip(results, outputs, strict=True)
        ],
        [numpy_helper.from_array(array, name) for name, array in given if name in kept],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    found = evaluated(model, *(array for name, array in given if name not in kept))
    assert [str(array.dtype) for array in found] == [dtype for dtype, _ in outputs]
    return found


def parsed(graph: str, opset: int = 21, functions: str = "", imports: str = "") -> onnx.ModelProto:
    """A model from ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]>\n{graph}\n{functions}')


@functools.cache
def backend_cases() -> dict[str, TestCase]:
    """ONNX's own tests of its operators, by name."""
    with np.errstate(all="ignore"):
        return {case.name: case for case in load_model_tests(kind="node")}


def disagreement(case: TestCase, constants: bool) -> str | None:
    """How the compiled model differs from what the case expects; None if it agrees.

    With ``constants`` every input but the first is part of the model, as exporters write shapes, axes and flags.
    Raises :class:`tkc.errors.UnsupportedModelError` for a model that is refused.
    """
    assert case.data_sets is not None and case.model is not None
    for inputs, expected in case.data_sets:
        # A sequence is its tensors, one after the other, as what a compiled model returns is here.
        references = [part for each in plain_arrays(expected) for part in (each if isinstance(each, list) else [each])]
        arrays: list[Any] = []
        bound: dict[str, np.ndarray] = {}
        for value, array in zip(case.model.graph.input, plain_arrays(inputs), strict=True):
            if constants and arrays and isinstance(array, np.ndarray):
                bound[value.name] = array
            else:
                arrays.append(array)
        outputs = compiled(case.model, bound)(*arrays)
        if len(outputs) != len(references):
            return f"{len(outputs)} outputs instead of {len(references)}"
        for output, reference in zip(outputs, references, strict=True):
            found = difference(output, np.asarray(reference), case)
            if found is not None:
                return found
    return None
