"""What an exported program returns: tensors, and numbers that are constant, follow from sizes, or are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils._sympy.printers import PythonPrinter

from tkc.frontend.torch.dimensions import Dimensions, named_shape
from tkc.runtime.signature import Constant, TensorSpec
from tkc.runtime.sizes import Formula

NUMBERS = SymIntArgument | SymFloatArgument | SymBoolArgument
"""What a program returns as a number of Python's that is no constant."""

_DTYPES = {torch.SymInt: "int64", torch.SymFloat: "float64", torch.SymBool: "bool"}


@dataclass(frozen=True)
class ProgramOutputs:
    """The leaves of a program's result, by who makes them; the fields are those of
    :class:`tkc.runtime.signature.Signature`."""

    outputs: tuple[TensorSpec, ...]
    number_outputs: tuple[int, ...]
    size_outputs: tuple[tuple[int, str], ...]
    constant_outputs: tuple[tuple[int, Constant], ...]


@dataclass(frozen=True)
class Pairs:
    """Which leaves of a program's call and of its result are pairs of real numbers that stand for complex tensors."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def tensor_spec(name: str, shape: Sequence[int | str], dtype: torch.dtype, *, are_pairs: bool) -> TensorSpec:
    """The spec of a tensor, as the user sees it."""
    shape, dtype = (shape[:-1], dtype.to_complex()) if are_pairs else (shape, dtype)
    return TensorSpec(name, tuple(shape), str(dtype).removeprefix("torch."))


def program_outputs(program: ExportedProgram, dimensions: Dimensions, pairs: Pairs) -> ProgramOutputs:
    """What ``program``, whose inputs have these ``dimensions``, returns."""
    values: dict[str, Any] = {node.name: node.meta.get("val") for node in program.graph.nodes}
    outputs: list[TensorSpec] = []
    numbers: list[int] = []
    formulas: list[tuple[int, str]] = []
    constants: list[tuple[int, Constant]] = []
    leaves = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    for position, leaf in enumerate(leaves):
        value: Any = values.get(leaf.name)
        if isinstance(leaf, TensorArgument):
            shape = named_shape(value.shape, dimensions)
            outputs.append(tensor_spec(leaf.name, shape, value.dtype, are_pairs=position in pairs.outputs))
        elif isinstance(leaf, ConstantArgument):
            constants.append((position, Constant(leaf.name, leaf.value)))
        elif isinstance(value, int | float):  # a size that export found to be known
            constants.append((position, Constant(leaf.name, value)))
        elif (formula := _formula(value, dimensions)) is not None:
            formulas.append((position, formula))
        else:
            numbers.append(len(outputs))
            outputs.append(TensorSpec(leaf.name, (), _DTYPES[type(value)]))
    return ProgramOutputs(tuple(outputs), tuple(numbers), tuple(formulas), tuple(constants))


def returned_updates(outputs: Sequence[TensorSpec], updated: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """:attr:`tkc.runtime.signature.Signature.returned`, where the program updates tensors to these nodes' values."""
    return tuple((place, updated.index(spec.name)) for place, spec in enumerate(outputs) if spec.name in updated)


def _formula(value: Any, dimensions: Dimensions) -> str | None:
    """An integer or a truth value over the names of sizes, where it follows from those of inputs."""
    known: Mapping[Any, Any] = dimensions.by_name()
    if isinstance(value, torch.SymFloat) or not value.node.expr.free_symbols <= known.keys():
        return None
    text: str = PythonPrinter().doprint(value.node.expr.subs(known))
    try:
        Formula(text)
    except ValueError:
        return None
    return text
