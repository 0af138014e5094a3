"""The symbolic sizes of an exported program's inputs: their names, their bounds, and what they are computed from."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from tkc.errors import UnsupportedModelError, UsageError
from tkc.runtime.signature import SizeRange
from tkc.runtime.sizes import Formula

DimensionNames = Mapping[tuple[int, int], str]
"""The name that the user gave a dimension, by the input's position among the call's leaves and the axis."""

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Dimensions:
    """What is symbolic in a program's inputs.

    ``shapes`` are the inputs' in order, each symbolic axis by name; ``sizes`` bounds every name; ``formulas`` says what
    each is over PyTorch's symbols (a plain symbol, or for a derived dimension an expression).
    """

    shapes: tuple[Shape | None, ...]
    sizes: Mapping[str, SizeRange]
    formulas: Mapping[str, sympy.Expr]

    def solved(self) -> dict[sympy.Symbol, tuple[str, int, int]]:
        """Each symbol as ``(name, offset, factor)``: it is ``(size - offset) / factor`` of the size of that name."""
        out = {formula: (name, 0, 1) for name, formula in self.formulas.items() if isinstance(formula, sympy.Symbol)}
        for name, formula in self.formulas.items():
            unknown = [symbol for symbol in formula.free_symbols if symbol not in out]
            if not unknown:
                continue
            symbol = unknown[0]
            offset, factor = formula.subs(symbol, 0), formula.coeff(symbol)
            if len(formula.free_symbols) > 1 or sympy.simplify(formula - offset - factor * symbol) != 0:
                raise UnsupportedModelError(
                    f"The size {name} is {formula}, from which {symbol} cannot be told. "
                    "Make a dimension dynamic by itself that has this size, or one in proportion to it."
                )
            out[symbol] = (name, int(offset), int(factor))
        return out

    def by_name(self) -> dict[sympy.Symbol, sympy.Expr]:
        """Each symbol over the names of the sizes."""
        return {
            symbol: FloorDiv(_symbol(name) - offset, factor) if factor != 1 else _symbol(name) - offset
            for symbol, (name, offset, factor) in self.solved().items()
        }


def input_dimensions(
    inputs: Sequence[tuple[str, torch.Tensor | None]],
    names: DimensionNames,
    ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]],
) -> Dimensions:
    """The dimensions of ``inputs``: each a name and the (fake) tensor, or ``None`` for a constant.

    A dimension that the user did not name is called after the first input that has it (``input_ids_1``).
    """
    axes = [
        (position, axis, size)
        for position, (_, tensor) in enumerate(inputs)
        if tensor is not None
        for axis, size in enumerate(map(_formula, tensor.shape))
        if not isinstance(size, int)
    ]
    named = {formula for position, axis, formula in axes if (position, axis) in names}
    chosen: dict[sympy.Expr, str] = {}
    for position, axis, formula in sorted(axes, key=lambda entry: entry[:2] not in names):
        if formula not in chosen:
            wanted = names.get((position, axis), f"{inputs[position][0]}_{axis}")
            chosen[formula] = next(name for name in _variants(wanted) if name not in chosen.values())
    return Dimensions(
        shapes=tuple(
            None if tensor is None else tuple(chosen.get(size, size) for size in map(_formula, tensor.shape))
            for _, tensor in inputs
        ),
        sizes={chosen[formula]: _range(formula, ranges, is_named=formula in named) for *_, formula in axes},
        formulas={chosen[formula]: formula for *_, formula in axes},
    )


def named_shape(shape: Sequence[int | torch.SymInt], dimensions: Dimensions) -> Shape:
    """A shape by the names of its sizes; one that is no input's is written as a formula over them."""
    names, known = {formula: name for name, formula in dimensions.formulas.items()}, dimensions.by_name()
    return tuple(
        size if isinstance(size, int) else names.get(size) or PythonPrinter().doprint(size.subs(known))
        for size in map(_formula, shape)
    )


def size_conditions(
    dimensions: Dimensions, asserted: Iterable[sympy.Basic], written: Iterable[str] = ()
) -> tuple[str, ...]:
    """What must hold between the sizes of a call, each as a Python expression over their names.

    These are the ``asserted`` ones over PyTorch's symbols, those that are ``written`` already, and that each derived
    dimension has the size it is derived from. A condition on a size that only the data decides cannot be checked
    beforehand and is left out. Raises :class:`UnsupportedModelError` for one that has no formula.
    """
    known = dimensions.by_name()
    derived = [sympy.Eq(_symbol(name), formula) for name, formula in dimensions.formulas.items()]
    conditions = [
        condition.subs(known)
        for condition in (*derived, *asserted)
        if condition.free_symbols <= known.keys() | {_symbol(name) for name in dimensions.formulas}
    ]
    formulas = (PythonPrinter().doprint(condition) for condition in conditions if condition is not sympy.true)
    return tuple(dict.fromkeys(map(_checked_formula, [*formulas, *written])))


def _checked_formula(text: str) -> str:
    text = text.replace("math.", "").replace("torch.sym_float(", "float(")
    try:
        return Formula(text).text
    except ValueError as error:
        raise UnsupportedModelError(
            f"The model was exported for sizes with {text}, which TKC cannot check in a call. Compute sizes from sums, "
            "products and quotients of others, or fix the size."
        ) from error


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


def _formula(size: int | torch.SymInt) -> int | sympy.Expr:
    if isinstance(size, torch.SymInt):
        formula = size.node.expr
        return int(formula) if formula.is_number else formula
    return size


def _variants(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))


_ASSUMED_MINIMUM = 2
"""The least size of ``Dim.AUTO`` and ``Dim.DYNAMIC``, whatever the model does with it: PyTorch's tracer takes no size
for 0 or 1. As with PyTorch's own programs, and with a ``Dim`` that has a name, calls may have these sizes."""


def _range(formula: sympy.Expr, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]], *, is_named: bool) -> SizeRange:
    known = {symbol: ranges[symbol] for symbol in formula.free_symbols if symbol in ranges}
    if not is_named:
        known = {
            symbol: ValueRanges(0, bounds.upper) if bounds.lower == _ASSUMED_MINIMUM else bounds
            for symbol, bounds in known.items()
        }
    bounds = bound_sympy(formula, known)
    finite = isinstance(bounds.upper, sympy.Integer) and int(bounds.upper) < sys.maxsize - 1
    minimum = int(bounds.lower) if isinstance(bounds.lower, sympy.Integer) else 0
    return SizeRange(max(minimum, 0), int(bounds.upper) if finite else None)


def dimension_names(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> dict[tuple[int, int], str]:
    """The names of the ``Dim`` objects in ``dynamic_shapes``; every other form of it names nothing."""
    if not isinstance(dynamic_shapes, dict | tuple | list):
        return {}
    arguments = _by_parameter(model, args, kwargs)
    if isinstance(dynamic_shapes, dict):
        pairs = [(arguments[name], spec) for name, spec in dynamic_shapes.items() if name in arguments]
    else:
        pairs = list(zip(arguments.values(), dynamic_shapes, strict=False))
    found = {(id(tensor), axis): name for value, spec in pairs for tensor, axis, name in _dims(value, spec)}
    leaves = pytree.tree_leaves((args, kwargs))
    return {
        (position, axis): name
        for position, leaf in enumerate(leaves)
        for (owner, axis), name in found.items()
        if owner == id(leaf)
    }


def names_in_program(program: torch.export.ExportedProgram, leaves: Sequence[torch.Tensor | None]) -> DimensionNames:
    """The names of the ``Dim`` objects that ``program`` was exported with, of its inputs ``leaves``.

    PyTorch keeps them as long as the program is in memory; a saved one (``.pt2``) has none.
    """
    names: dict[tuple[int, int], str] = {}
    for position, tensor in enumerate(leaves):
        environment = getattr(getattr(tensor, "fake_mode", None), "shape_env", None)
        if tensor is None or environment is None:
            continue
        given = {
            environment.source_to_var.get(source): name
            for source, name in environment.source_name_to_debug_name.items()
        }
        for axis, size in enumerate(map(_formula, tensor.shape)):
            if isinstance(size, sympy.Symbol) and (name := given.get(size, "")).isidentifier():
                names[position, axis] = name
    return names


def renamed(inputs: Sequence[tuple[str, torch.Tensor | None]], wanted: Mapping[str, str]) -> DimensionNames:
    """``wanted`` names by those that the sizes of ``inputs`` have without them.

    Raises :class:`UsageError` for a size that there is none of, and for what is no name.
    """
    axes = {
        f"{name}_{axis}": (position, axis)
        for position, (name, tensor) in enumerate(inputs)
        if tensor is not None
        for axis, size in enumerate(tensor.shape)
        if isinstance(size, torch.SymInt)
    }
    for size, name in wanted.items():
        if size not in axes:
            known = ", ".join(axes) or "none"
            raise UsageError(f"the model has no symbolic size {size} to be called {name}; its sizes are {known}")
        if not name.isidentifier() or name in axes or list(wanted.values()).count(name) > 1:
            raise UsageError(f"the size {size} cannot be called {name!r}; give it a name of its own, of letters and _")
    return {axes[size]: name for size, name in wanted.items()}


def _by_parameter(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(model.forward)
    out: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        out |= value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return out


def _dims(value: Any, spec: Any) -> Iterator[tuple[torch.Tensor, int, str]]:
    """Each named dimension: its tensor, its axis, its name. ``spec`` has the structure of ``value``."""
    if isinstance(value, torch.Tensor):
        axes = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
        dims = ((axis, dim.__name__) for axis, dim in axes if isinstance(dim, torch.export.Dim))
        # A derived dimension is named after its formula (2*rows + 1), which is no name.
        yield from ((value, axis, name) for axis, name in dims if name.isidentifier())
    elif isinstance(value, dict) and isinstance(spec, dict):
        for key in spec:
            yield from _dims(value[key], spec[key])
    elif isinstance(spec, list | tuple):
        children = pytree.tree_leaves(value, is_leaf=lambda node: node is not value)
        for child, child_spec in zip(children, spec, strict=False):
            yield from _dims(child, child_spec)
