"""Special functions: Bessel's, incomplete gamma, of the normal distribution, orthogonal polynomials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax
from tvm.relax import op

from tkc.frontend.loops import Loops, Number, Program, emit_loops
from tkc.frontend.torch.converters.emitter import Converter, Emitter
from tkc.frontend.torch.special import airy, bessel, gamma, normal, polynomials


def _special(name: str, program: Program, tables: Callable[[], Sequence[Any]] = tuple) -> Converter:
    """``program`` of operands that PyTorch brings to the dtype of the result; ``tables`` makes arrays that it reads."""

    def convert(b: Emitter, *operands: Any) -> relax.Expr:
        wide = [b.wide(b.tensor(value, b.dtype)) for value in operands]
        dtype = wide[0].struct_info.dtype

        def element(loops: Loops, *values: Number) -> Number:
            count = len(wide)
            narrow = (value.astype("float64") for value in values[:count])
            held = [loops.cell(f"v{position}", value).value for position, value in enumerate(narrow)]
            return program(loops, *held, *values[count:]).astype(dtype)

        flat = [b.emit(b.reshape(b.emit(op.broadcast_to(value, b.shape)), [prod(b.shape)])) for value in wide]
        constants = [relax.const(table, str(table.dtype)) for table in tables()]
        return b.reshape(emit_loops(b.builder, name, element, flat, dtype, constants), b.shape)

    return convert


def _hermite(name: str, *, of_probability: bool) -> Converter:
    """PyTorch has NaN of degrees above 128 in float32, and above 512 in float64."""

    def convert(b: Emitter, x: Any, n: Any) -> relax.Expr:
        program = polynomials.hermite(of_probability=of_probability, most=512 if b.dtype == "float64" else 128)
        result: relax.Expr = _special(name, program)(b, x, n)
        return result

    return convert


_UNARY = {
    "i0": bessel.first_kind(0),
    "special_i0e": bessel.first_kind(0, scaled=True),
    "special_i1": bessel.first_kind(1),
    "special_i1e": bessel.first_kind(1, scaled=True),
    "special_modified_bessel_i0": bessel.first_kind(0),
    "special_modified_bessel_i1": bessel.first_kind(1),
    "special_modified_bessel_k0": bessel.second_kind(0),
    "special_modified_bessel_k1": bessel.second_kind(1),
    "special_scaled_modified_bessel_k0": bessel.second_kind(0, scaled=True),
    "special_scaled_modified_bessel_k1": bessel.second_kind(1, scaled=True),
    "special_airy_ai": airy.airy,
    "special_ndtri": normal.quantile,
    "special_erfcx": normal.scaled_complement,
    "special_log_ndtr": normal.log_distribution,
}
_POLYNOMIALS = {
    **{
        f"special_{prefix}chebyshev_polynomial_{kind}": _special(
            f"chebyshev_{kind}", polynomials.chebyshev(kind, shifted=bool(prefix))
        )
        for prefix in ("", "shifted_")
        for kind in "tuvw"
    },
    "special_hermite_polynomial_h": _hermite("hermite", of_probability=False),
    "special_hermite_polynomial_he": _hermite("hermite", of_probability=True),
    "special_laguerre_polynomial_l": _special("laguerre", polynomials.laguerre),
    "special_legendre_polynomial_p": _special("legendre", polynomials.legendre),
}
_ZETA = _special("zeta", gamma.zeta)

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}.default": _special(name.removeprefix("special_"), program) for name, program in _UNARY.items()},
    **{
        f"aten.{name}.{overload}": converter
        for name, converter in _POLYNOMIALS.items()
        for overload in ("default", "x_scalar", "n_scalar")
    },
    **{f"aten.special_zeta.{overload}": _ZETA for overload in ("default", "self_scalar", "other_scalar")},
    **{
        f"aten.{name}.default": _special(
            name, gamma.incomplete_gamma(upper=upper), lambda: [gamma.uniform_coefficients()]
        )
        for name, upper in (("igamma", False), ("igammac", True))
    },
}
