"""PyTorch's symbolic sizes as TVM expressions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

import sympy
import torch
from tvm import arith, tirx
from tvm_ffi import structural_equal

from tkc.contracts import SIGNED
from tkc.errors import UnsupportedModelError
from tkc.kernels.remainders import is_bounded, reduced

Size: TypeAlias = "int | tirx.PrimExpr"
"""A size: known, or an expression over the model's symbolic sizes (int64)."""


def _real(value: Size | float) -> tirx.PrimExpr:
    if isinstance(value, int | float):  # a Python float would become float32
        return tirx.const(float(value), "float64")
    return value if value.dtype == "float64" else tirx.Cast("float64", value)


def _either_real(function: Callable[[Size, Size], Size]) -> Callable[..., Size]:
    """``function`` of terms, two at a time, in float64 where one is no whole number: TVM would take float32."""

    def combined(left: Size, right: Size) -> Size:
        if isinstance(left, int | float) and isinstance(right, int | float):
            return function(left, right)
        return function(*map(_real, (left, right))) if _is_real(left) or _is_real(right) else function(left, right)

    return lambda *terms: functools.reduce(combined, terms)


def _is_real(value: Size | float) -> bool:
    return isinstance(value, float) or (isinstance(value, tirx.PrimExpr) and "float" in value.dtype)


def _floor(value: tirx.PrimExpr) -> tirx.PrimExpr:
    return tirx.Cast("int64", tirx.floor(value))


def _power(base: Size, exponent: Size) -> Size:
    if isinstance(exponent, int) and exponent >= 0:
        return functools.reduce(operator.mul, [base] * exponent, 1)
    return tirx.pow(_real(base), _real(exponent))


def _extreme(numbers: Callable[..., Size], values: Callable[..., Size], left: Size, right: Size) -> Size:
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    return (numbers if are_numbers else values)(left, right)


_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "Add": _either_real(operator.add),
    "Mul": _either_real(operator.mul),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "Abs": lambda a: abs(a) if isinstance(a, int | float) else tirx.max(a, -a),
    "Max": _either_real(lambda left, right: _extreme(max, tirx.max, left, right)),
    "Min": _either_real(lambda left, right: _extreme(min, tirx.min, left, right)),
    "ToFloat": _real,
    "IntTrueDiv": lambda a, b: _real(a) / _real(b),
    "FloatTrueDiv": lambda a, b: _real(a) / _real(b),
    "OpaqueUnaryFn_sqrt": lambda a: tirx.sqrt(_real(a)),
    "FloorToInt": _floor,
    "floor": _floor,
    "CeilToInt": lambda a: tirx.Cast("int64", tirx.ceil(a)),
    "TruncToInt": lambda a: tirx.Cast("int64", tirx.trunc(a)),
    "RoundToInt": lambda a: tirx.Cast("int64", tirx.nearbyint(a)),
}


_WHOLE = frozenset(("FloorToInt", "floor", "CeilToInt", "TruncToInt", "RoundToInt"))
"""Functions from a float to a whole number."""

_LARGEST_PART = 2**20


def _quotient(value: sympy.Expr) -> tuple[sympy.Expr, int, int] | None:
    """A whole number, a factor and a divisor that make ``value``, a product or a quotient in floats, if there are any
    so small that no rounding moves the quotient of a size across a whole number."""
    match type(value).__name__, value.args:
        case "IntTrueDiv", (number, sympy.Integer() as divisor):
            part = Fraction(1, int(divisor)) if divisor else None
        case "FloatTrueDiv", (of, sympy.Number() as divisor) if type(of).__name__ == "ToFloat":
            number, part = of.args[0], 1 / Fraction(float(divisor)) if divisor else None
        case "Mul", (sympy.Number() as factor, of) if type(of).__name__ == "ToFloat":
            number, part = of.args[0], Fraction(float(factor))
        case _:
            return None
    if part is None or max(abs(part.numerator), part.denominator) > _LARGEST_PART:
        return None
    return number, part.numerator, part.denominator


_RELATIONS: dict[type[sympy.Basic], Callable[[Size, Size], tirx.PrimExpr]] = {
    sympy.Eq: tirx.EQ,
    sympy.Ne: tirx.NE,
    sympy.Lt: tirx.LT,
    sympy.Le: tirx.LE,
    sympy.Gt: tirx.GT,
    sympy.Ge: tirx.GE,
}


def _selected(condition: tirx.PrimExpr, holds: Size, otherwise: Size) -> tirx.PrimExpr:
    values = (tirx.const(value, "int64") if isinstance(value, int) else value for value in (holds, otherwise))
    return tirx.Select(condition, *values)


def signed_number(name: str) -> tirx.Var:
    """A variable of a number that may be negative, as no size is."""
    return tirx.Var(f"{name}{SIGNED}", "int64")


class Symbols:
    """The TVM expression of each sympy symbol; a symbol that is met for the first time (the size of a result that
    depends on data) gets a variable of its own name."""

    def __init__(self, known: Mapping[sympy.Symbol, tirx.PrimExpr], least: Mapping[tirx.Var, int]) -> None:
        """``known`` are the symbols of inputs, whose variables have a ``least`` value each."""
        self._known: dict[sympy.Expr, Size] = dict(known)
        self.name_number: Callable[[tirx.PrimExpr], tirx.PrimExpr] | None = None
        """Gives a number a variable that TVM knows nothing of: one that is computed in floats, as no functions over
        sizes that call others are fused, and a dividend whose remainders TVM bounds wrongly."""
        self._named: list[tuple[Size, tirx.PrimExpr]] = []
        self._analyzer = arith.Analyzer()
        for variable, minimum in least.items():
            self._analyzer.update(variable, arith.ConstIntBound(minimum, arith.ConstIntBound.POS_INF))

    @property
    def known(self) -> frozenset[sympy.Symbol]:
        """The symbols that have an expression."""
        return frozenset(self._known)

    def within(self, used: Iterable[sympy.Symbol]) -> tuple[Symbols, dict[tirx.Var, tirx.PrimExpr]]:
        """The symbols ``used`` in a function of its own: its variables, and what each of them is here."""
        found = {symbol: self._known[symbol] for symbol in used if symbol in self._known}
        given = {symbol: size for symbol, size in found.items() if not isinstance(size, int)}
        own: dict[sympy.Symbol, tirx.Var] = {}
        least: dict[tirx.Var, int] = {}
        for symbol, size in given.items():
            minimum = self._analyzer.const_int_bound(size).min_value
            own[symbol] = tirx.SizeVar(symbol.name, "int64") if minimum >= 0 else signed_number(symbol.name)
            if minimum > 0:
                least[own[symbol]] = minimum
        return Symbols({**found, **own}, least), {own[symbol]: size for symbol, size in given.items()}

    def is_positive(self, size: Size) -> bool:
        """Whether ``size`` is above zero in every call."""
        return size > 0 if isinstance(size, int) else bool(self._analyzer.can_prove(size > 0))

    def define(self, symbol: sympy.Symbol, *, nonnegative: bool) -> None:
        """Give ``symbol``, unless it has one, a variable of its own name, of any number or of one that is a size."""
        variable = tirx.SizeVar(symbol.name, "int64") if nonnegative else signed_number(symbol.name)
        self._known.setdefault(symbol, variable)

    def define_float(self, symbol: sympy.Symbol) -> tirx.Var:
        """The variable of ``symbol``, a float that is read out of a tensor."""
        variable = tirx.Var(symbol.name, "float64")
        self._known[symbol] = variable
        return variable

    def replace(self, expression: sympy.Expr, size: Size) -> None:
        """Let ``expression``, a symbol or what is computed from some, be ``size`` from now on.

        What was computed from the symbol is computed anew: the state of a loop is another in the condition behind it.
        """
        for known in [known for known in self._known if known != expression and expression in known.free_symbols]:
            del self._known[known]
        self._known[expression] = size

    def is_certain(self, condition: tirx.PrimExpr) -> bool:
        """Whether ``condition`` holds in every call."""
        return bool(self._analyzer.can_prove(condition))

    def condition(self, value: sympy.Basic) -> tirx.PrimExpr:
        """The TVM expression of a condition; errors are those of :meth:`expression`."""
        if value in (sympy.true, sympy.false):
            return tirx.const(value is sympy.true, "bool")
        if isinstance(value, sympy.And | sympy.Or):
            combine = tirx.all if isinstance(value, sympy.And) else tirx.any
            return combine(*map(self.condition, value.args))
        if isinstance(value, sympy.Not):
            return tirx.Not(self.condition(value.args[0]))
        relation = _RELATIONS.get(type(value))
        if relation is None:
            raise UnsupportedModelError(f"The model asserts {value}, which TKC cannot check. Assert it of the inputs.")
        left, right = map(self.expression, value.args)
        if _is_real(left) or _is_real(right):
            return relation(_real(left), _real(right))
        return relation(*(tirx.IntImm("int64", side) if isinstance(side, int) else side for side in (left, right)))

    def size(self, value: int | float | torch.SymInt | torch.SymFloat | torch.SymBool) -> Size:
        """The expression of a size, or of a number or a truth value computed from sizes."""
        if isinstance(value, torch.SymBool):
            return self.condition(value.node.expr)
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return self.expression(value.node.expr)
        return value

    def expression(self, value: sympy.Expr) -> Size:
        """The TVM expression of a sympy one.

        Raises UnsupportedModelError where it uses a function that TVM has no counterpart of.
        """
        if isinstance(value, sympy.Integer):
            return int(value)
        if isinstance(value, sympy.Number):
            return float(value)
        if not isinstance(value, sympy.Symbol) and value in self._known:
            return self._known[value]
        if isinstance(value, sympy.Symbol):
            return self._known.setdefault(value, tirx.SizeVar(value.name, "int64"))
        if isinstance(value, sympy.Rel | sympy.And | sympy.Or | sympy.Not) or value in (sympy.true, sympy.false):
            return _selected(self.condition(value), 1, 0)  # a truth value that is calculated with
        if isinstance(value, sympy.Piecewise) and value.args[-1].cond is sympy.true:  # torch.sym_ite
            *cases, last = value.args
            chosen = self.expression(last.expr)
            for case in reversed(cases):
                chosen = _either_real(functools.partial(_selected, self.condition(case.cond)))(
                    self.expression(case.expr), chosen
                )
            return chosen
        name = type(value).__name__
        if name in _WHOLE:
            return self._whole(value)
        if name in _QUOTIENTS:
            return _QUOTIENTS[name](self, *map(self.expression, value.args))
        function = _FUNCTIONS.get(name)
        if function is None:
            raise UnsupportedModelError(
                f"The model has a size {value}, whose function {name} TKC cannot express. "
                "Compute the size from sums, products, quotients, remainders, minima and maxima."
            )
        return function(*map(self.expression, value.args))

    def _whole(self, value: sympy.Expr) -> Size:
        """A whole number that is computed in floats: in whole numbers, where that is the same, or with a name."""
        name, (real, *_) = type(value).__name__, value.args
        if (exact := _quotient(real)) is not None:
            number, factor, divisor = exact
            product = self.expression(number) * factor
            is_positive = not isinstance(product, int) and self._analyzer.can_prove(product >= 0)
            if name in ("FloorToInt", "floor") or (name == "TruncToInt" and is_positive):
                return self.quotient(product, divisor)
            if name == "CeilToInt":
                return self.quotient(product + (divisor - 1), divisor)
        found = _FUNCTIONS[name](*map(self.expression, value.args))
        if self.name_number is None or isinstance(found, int):
            return found
        return self._known.setdefault(value, self.name_number(found))

    def quotient(self, dividend: Size, divisor: Size) -> Size:
        """``dividend // divisor``."""
        dividend, divisor, _ = self._reduced(dividend, divisor)
        return dividend // divisor

    def remainder(self, dividend: Size, divisor: Size) -> Size:
        """``dividend % divisor``."""
        dividend, divisor, factor = self._reduced(dividend, divisor)
        return dividend % divisor * factor

    def _reduced(self, dividend: Size, divisor: Size) -> tuple[Size, Size, int]:
        """``dividend`` and ``divisor`` as TVM bounds their remainder rightly, and the factor that both lost."""
        dividend, divisor, factor = reduced(dividend, divisor, self._analyzer)
        if is_bounded(dividend, divisor, self._analyzer):
            return dividend, divisor, factor
        if self.name_number is None:
            raise UnsupportedModelError(
                f"The model has a size that divides {dividend} by {divisor}, which TKC cannot express. "
                "Compute the size from dividends of other factors."
            )
        name = next((name for known, name in self._named if structural_equal(known, dividend)), None)
        if name is None:
            name = self.name_number(dividend)
            self._named.append((dividend, name))
        return name, divisor, factor


_QUOTIENTS: dict[str, Callable[..., Size]] = {
    "FloorDiv": Symbols.quotient,
    "CleanDiv": Symbols.quotient,
    "CeilDiv": lambda symbols, a, b: symbols.quotient(a + b - 1, b),
    "Mod": Symbols.remainder,
    "PythonMod": Symbols.remainder,
    "ModularIndexing": lambda symbols, a, b, modulus: symbols.remainder(symbols.quotient(a, b), modulus),
}
"""Functions of whole numbers that divide."""
