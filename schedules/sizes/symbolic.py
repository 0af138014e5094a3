"""The sizes that a TensorIR function takes from its arguments: their names, and the function at given ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal

from tkc.schedules.blocks import static


def size_variables(func: tirx.PrimFunc) -> dict[str, tirx.Var]:
    """The symbolic sizes of ``func`` by name, in the order of its parameters; empty if every size is known.

    They are the variables in the shapes of its buffers, and its integer parameters. Of two that share a name, the later
    gets a number (``n_1``).
    """
    found: dict[str, tirx.Var] = {}
    for variable in _variables(func):
        if not any(variable.same_as(known) for known in found.values()):
            found[_unused(variable.name, found)] = variable
    return found


def specialize(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> tirx.PrimFunc:
    """``func`` at the given ``sizes``, which are static in it; one that is a parameter is a parameter no more.

    Raises :class:`ValueError` for a name that is no size of ``func``, and for a size below one.
    """
    variables = size_variables(func)
    for name, size in sizes.items():
        if name not in variables:
            raise ValueError(f"the function has no size {name!r}; its sizes are {', '.join(variables) or 'all static'}")
        if size < 1:
            raise ValueError(f"size {name} cannot be {size}; it must be at least 1")
    return bind_sizes(func, {variables[name]: tirx.IntImm(variables[name].dtype, size) for name, size in sizes.items()})


def bind_sizes(func: tirx.PrimFunc, values: Mapping[tirx.Var, tirx.PrimExpr]) -> tirx.PrimFunc:
    """``func`` with ``values`` in place of those of its sizes."""
    # TVM specializes parameters only, and finds sizes from given buffers only where a dimension is the bare variable.
    params = [*func.params, *(size for size in values if not any(size.same_as(param) for param in func.params))]
    widened = tirx.PrimFunc(params, func.body, func.ret_type, func.buffer_map, func.attrs)
    return widened.specialize(dict(values))


def dimensions(func: tirx.PrimFunc) -> tuple[tirx.PrimExpr, ...]:
    """The different dimensions of the buffers of ``func`` that depend on its sizes (``n``, ``batch * n``), in order."""
    return tuple(extent for extent, _ in _first_places(func))


def dimensions_at(func: tirx.PrimFunc, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The values of :func:`dimensions` where the buffers of ``func``, in the order of its parameters, have ``shapes``.

    Raises :class:`ValueError` for shapes of another number of buffers or dimensions.
    """
    found, expected = [len(shape) for shape in shapes], [len(buffer.shape) for buffer in parameter_buffers(func)]
    if found != expected:
        raise ValueError(f"shapes of {found} dimensions do not belong to a function that takes {expected}")
    return tuple(int(shapes[buffer][axis]) for _, (buffer, axis) in _first_places(func))


def parameter_buffers(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """The buffers that ``func`` takes, in the order of its parameters."""
    return [func.buffer_map[param] for param in func.params if param in func.buffer_map]


def _first_places(func: tirx.PrimFunc) -> list[tuple[tirx.PrimExpr, tuple[int, int]]]:
    """Each different symbolic dimension, and the buffer and axis where it first stands."""
    found: list[tuple[tirx.PrimExpr, tuple[int, int]]] = []
    for position, buffer in enumerate(parameter_buffers(func)):
        for axis, extent in enumerate(buffer.shape):
            if static(extent) is None and not any(structural_equal(extent, known) for known, _ in found):
                found.append((extent, (position, axis)))
    return found


def _variables(func: tirx.PrimFunc) -> list[tirx.Var]:
    """Every occurrence of a size."""
    found: list[tirx.Var] = []
    for param in func.params:
        if param in func.buffer_map:
            for extent in func.buffer_map[param].shape:
                found.extend(undefined_vars(extent))
        elif param.dtype.startswith("int"):
            found.append(param)
    return found


def _unused(name: str, taken: Mapping[str, object]) -> str:
    suffix = 0
    candidate = name
    while candidate in taken:
        suffix += 1
        candidate = f"{name}_{suffix}"
    return candidate
