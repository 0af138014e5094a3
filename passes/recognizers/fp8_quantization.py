"""FP8 quantization: values divided by a scale, clamped or not, and cast.

``scale = y.abs().amax(...) / FP8_MAX`` and ``(y / scale).to(torch.float8_e4m3fn)``, also in views of ``y``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import Literal

from tvm import relax, tirx
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tkc.kernels.fp8 import FP8_MAX, QUANTIZATION_BLOCK, Fp8
from tkc.passes.graph.bindings import Graph, dtype, shape, static
from tkc.passes.graph.matching import matched
from tkc.passes.graph.patterns import any_of, maybe
from tkc.passes.recognizers.fp8_scales import Scale, reduced_axes, scale_of

_QUOTIENT = is_op("relax.divide")(wildcard(), wildcard()) | is_op("relax.multiply")(wildcard(), wildcard())
_LOW, _HIGH = wildcard(), wildcard()


def _clamped(x: DFPattern) -> DFPattern:
    maximum, minimum = is_op("relax.maximum"), is_op("relax.minimum")
    return any_of(
        (
            minimum(maximum(x, _LOW), _HIGH),
            maximum(minimum(x, _HIGH), _LOW),
            is_op("relax.clip")(x, _LOW, _HIGH),
            x,
        )
    )


_CAST = is_op("relax.astype")(maybe("relax.reshape", _clamped(maybe("relax.reshape", _QUOTIENT))))


@dataclass(frozen=True)
class FP8Cast:
    """A cast to ``dtype`` of ``quotient``, a division or multiplication, clamped to ``bounds`` if there are any."""

    dtype: Fp8
    quotient: relax.Call
    bounds: tuple[relax.Expr, ...]


def fp8_cast(graph: Graph, var: relax.Var) -> FP8Cast | None:
    """The cast to FP8 that ``var`` holds, if it is one of a quotient or product."""
    name = dtype(var)
    quantized = next((known for known in FP8_MAX if known == name), None)
    parts = None if quantized is None else matched(graph, _CAST, var)
    if quantized is None or parts is None:
        return None
    bounds = tuple(parts[bound] for bound in (_LOW, _HIGH) if bound in parts)
    return FP8Cast(quantized, graph.value(parts[_QUOTIENT]), bounds)


@dataclass(frozen=True)
class Quantization:
    """``values``, a view of ``base``, divided by ``divisor`` (or multiplied, if inverted), which holds ``scale``."""

    cast: FP8Cast
    base: relax.Expr
    values: relax.Expr
    divisor: relax.Expr
    scale: Scale

    def unfit(self, graph: Graph) -> str | None:
        """Why ``scale`` is not that of the values, or leaves other numbers than kernels do; ``None`` if all is well.

        It may have no lower bound.
        """
        return self._unfit_scale(graph) or self._unfit_limit() or unfit_bounds(graph, self.cast)

    def _unfit_scale(self, graph: Graph) -> str | None:
        maximum = graph.value(self.scale.amax)
        magnitudes = graph.call(graph.through_views_and_casts(maximum.args[0]), "relax.abs")
        if magnitudes is None:
            return "its scales come from maxima that are not of magnitudes"
        if not graph.value(graph.through_views_and_casts(magnitudes.args[0])).same_as(graph.value(self.base)):
            return "its scales come from other values"
        dims, reduced = shape(self.values), reduced_axes(maximum)
        if not graph.same_shape(shape(maximum.args[0]), dims):
            return "its scales come from the values in another shape"
        kept = [1 if axis in reduced else dim for axis, dim in enumerate(dims)]
        missing = len(dims) - len(shape(self.divisor))
        if not graph.same_shape((*[1] * missing, *shape(self.divisor)), kept):
            return "its scales are applied along another axis than they are found on"
        return None

    def _unfit_limit(self) -> str | None:
        limit = FP8_MAX[self.cast.dtype]
        if isclose(self.scale.factor, 1 / limit, rel_tol=1e-6):
            return None
        return (
            f"its scales are the largest magnitude divided by {1 / self.scale.factor:g}, and the kernel's by {limit:g}"
        )

    def shared(self, graph: Graph) -> Literal["token", "group", "block", "channel"] | None:
        """What shares a scale, ``base`` having been viewed as ``values``; ``None`` where it is none of these.

        A view keeps the elements' order. So its rows are the tokens where they are as long, and groups where they have
        128 elements and these divide a token.
        """
        whole, dims = shape(self.base), shape(self.values)
        reduced = reduced_axes(graph.value(self.scale.amax))
        last = len(dims) - 1
        if not whole or not dims:
            return None
        if reduced == {last} and graph.equal(whole[-1], dims[-1]):
            return "token"
        if reduced == set(range(last)) and graph.same_shape(whole, dims):
            return "channel"
        in_groups = static(dims[-1]) == QUANTIZATION_BLOCK
        if in_groups and reduced == {last} and graph.equal(tirx.floormod(whole[-1], QUANTIZATION_BLOCK), 0):
            return "group"
        in_blocks = in_groups and len(whole) == 2 and len(dims) == 4 and static(dims[1]) == QUANTIZATION_BLOCK
        return "block" if in_blocks and reduced == {1, 3} else None

    def not_shared(self, graph: Graph, offered: str) -> str:
        """The reason why a kernel that has scales for what is ``offered`` does not have these."""
        whole, dims = list(shape(self.base)), list(shape(self.values))
        reduced = sorted(reduced_axes(graph.value(self.scale.amax)))
        return (
            f"values of shape {whole}, seen as {dims}, share scales along the axes {reduced}, "
            f"and the kernel has scales for {offered}"
        )


def quantization(graph: Graph, cast: FP8Cast) -> Quantization | None:
    """The dynamic quantization that ``cast`` ends; ``None`` where its divisor does not come from a maximum."""
    call = cast.quotient
    by_reciprocal = call.op.name == "relax.multiply"
    for values, divisor in [call.args, call.args[::-1]] if by_reciprocal else [call.args]:
        scale = scale_of(graph, divisor)
        if scale is not None and scale.inverted == by_reciprocal:
            return Quantization(cast, graph.through_views_and_casts(values), values, divisor, scale)
    return None


def unfit_bounds(graph: Graph, cast: FP8Cast) -> str | None:
    """Why clamping leaves other numbers than kernels do; ``None`` if it does not, or there is none."""
    if not cast.bounds:
        return None
    limit = FP8_MAX[cast.dtype]
    low, high = map(graph.constant, cast.bounds)
    if low is None or high is None or low > -limit or high < limit:
        return f"it clamps to [{low}, {high}], inside the range of {cast.dtype}"
    return None
