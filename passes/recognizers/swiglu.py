"""SwiGLU, ``silu(gate) * up``, however its factors are grouped and cast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.passes.graph.bindings import Graph, has_known_shape, shape, static
from tkc.passes.graph.found import Refusal
from tkc.passes.graph.kernel_floats import is_kernel_float, unfit_dtype
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe_cast, silu


def _factors(gate: DFPattern, up: DFPattern) -> DFPattern:
    """``silu(gate) * up``, however its two or three factors are grouped."""
    multiply, sigmoid = is_op("relax.multiply"), maybe_cast(is_op("relax.sigmoid")(maybe_cast(gate)))
    return any_of(
        (
            multiply(maybe_cast(silu(gate)), up),
            multiply(gate, maybe_cast(multiply(sigmoid, up))),
            multiply(sigmoid, maybe_cast(multiply(gate, up))),
        )
    )


_GATE, _UP = wildcard(), wildcard()
_SWIGLU = _factors(_GATE, _UP)
_CAST_SWIGLU = maybe_cast(_SWIGLU)


def swiglu_factors(graph: Graph, expr: relax.Expr, cast: bool = True) -> tuple[relax.Expr, relax.Expr] | None:
    """``gate`` and ``up`` where ``expr`` is ``silu(gate) * up``, or, with ``cast``, a cast of it."""
    found = matched(graph, _CAST_SWIGLU if cast else _SWIGLU, expr)
    return None if found is None else (found[_GATE], found[_UP])


@dataclass(frozen=True)
class SwiGLUOperands:
    """What the kernel reads: ``gate`` and ``up``, or ``packed``, whose halves these are."""

    parameters: SwiGLUParameters
    inputs: Mapping[str, relax.Expr]


def operands_of(graph: Graph, gate: relax.Expr, up: relax.Expr, name: str) -> SwiGLUOperands | Refusal | None:
    """The kernel's operands in the dtype ``name``; ``None`` where they would have to be rounded to it."""
    if not (has_known_shape(gate) and has_known_shape(up)) or len(shape(gate)) != len(shape(up)):
        return None
    if not graph.same_shape(shape(gate), shape(up)):
        return Refusal(f"gate has the shape {list(shape(gate))} and up {list(shape(up))}")
    if not shape(gate):
        return None
    channels = static(shape(gate)[-1])
    if channels is None:
        return Refusal(f"its number of channels, {shape(gate)[-1]}, is not constant")
    if not is_kernel_float(name):
        return unfit_dtype(name)
    parameters = SwiGLUParameters(channels, name)
    packed = joined_halves(graph, gate, up, name)
    if packed is not None:
        return SwiGLUOperands(replace(parameters, packed=True), {"packed": packed})
    narrow_gate, narrow_up = (graph.before_widening(operand, name) for operand in (gate, up))
    if narrow_gate is None or narrow_up is None:
        return None
    return SwiGLUOperands(parameters, {"gate": narrow_gate, "up": narrow_up})


def joined_halves(graph: Graph, gate: relax.Expr, up: relax.Expr, name: str) -> relax.Expr | None:
    """The tensor of dtype ``name`` whose first half is ``gate`` and whose second half is ``up``, if there is one."""
    channels = static(shape(gate)[-1])
    if channels is None:
        return None
    halves = [graph.last_axis_slice(graph.before_widening(operand)) for operand in (gate, up)]
    pieces = [piece for piece in halves if piece is not None]
    if [piece.begin for piece in pieces] != [0, channels]:
        return None
    first, second = (graph.before_widening(piece.source, name) for piece in pieces)
    if first is None or second is None or not graph.variable(first).same_as(graph.variable(second)):
        return None
    return first if static(shape(first)[-1]) == 2 * channels else None
