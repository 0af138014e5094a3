"""Sizes that are remainders, or quotients of them: TVM bounds some wrongly, and takes another number for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.export import Dim
from tvm import arith, tirx
from tvm.tirx.stmt_functor import substitute

from tests.frontend.onnx_execution import compiled
from tests.frontend.side_by_side import Function, compare
from tkc.frontend.onnx.sizes import SizeAlgebra, UndecidedError
from tkc.frontend.torch.converters.symbols import Symbols
from tkc.kernels.remainders import are_bounded


def _asserted(x: torch.Tensor) -> torch.Tensor:
    torch._check((4 * x.shape[0] + 2) % 6 < 5)
    return x * 2


SIZES: dict[str, Function] = {
    "quotient of a remainder": lambda x: x.new_ones((4 * x.shape[0] + 2) % 6 // 3 + 2),
    "remainder of a quotient": lambda x: x.new_ones((4 * x.shape[0] + 2) // 3 % 2 + 2),
    "six by ten": lambda x: x.new_ones((6 * x.shape[0] + 2) % 10 // 5 + 2),
    "nine by six": lambda x: x.new_ones((9 * x.shape[0] + 4) // 2 % 3 + 2),
    "a rest": lambda x: x.new_ones((4 * x.shape[0] + 2 - (4 * x.shape[0] + 2) // 6 * 6) // 3 + 2),
    "slice": lambda x: x.repeat(3)[: (4 * x.shape[0] + 2) % 6 // 3 + 2] * 2,
    "padding": lambda x: torch.nn.functional.pad(x, (0, (4 * x.shape[0] + 2) % 6 // 3 + 2)),
    "number": lambda x: torch.full((3,), (4 * x.shape[0] + 2) % 6 // 3) + x.sum(),
    "assertion": _asserted,
}


@pytest.mark.daily(2)
def test_sizes_of_models() -> None:
    """For sizes whose remainders are all of those that there are."""
    calls = [(torch.randn(size),) for size in (4, 2, 3, 5, 7, 8, 10)]
    compare(SIZES, *calls, dynamic_shapes=({0: Dim.DYNAMIC},))


def test_a_view_whose_elements_divide() -> None:
    """PyTorch makes it a condition of calls that they do, in which TVM finds a contradiction."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x, x, x, x[:2]]).view(-1, 6).sum(1)

    compare({"rows": rows}, *((torch.randn(size),) for size in (4, 7, 10)), dynamic_shapes=({0: Dim.DYNAMIC},))


Terms = Callable[[object, Callable[[object, int], object], Callable[[object, int], object]], object]


def _formula(seed: int) -> Terms:
    """A chain of quotients, remainders and sums, over any numbers that know these."""
    chosen = random.Random(seed)
    factor, offset = chosen.choice([1, 2, 4, 6, 8, 9, 12]), chosen.randrange(12)
    steps = [(chosen.choice("/%+"), chosen.choice([2, 3, 4, 5, 6, 9, 10])) for _ in range(chosen.choice([2, 3, 4]))]

    def value(n: object, quotient: Callable[..., object], remainder: Callable[..., object]) -> object:
        found = n * factor + offset  # type: ignore[operator]
        for step, number in steps:
            found = {"/": quotient, "%": remainder, "+": lambda a, b: a * 2 + b}[step](found, number)
        return found

    return value


@pytest.mark.parametrize("part", range(4))
def test_any_chain_is_simplified_to_its_value(part: int) -> None:
    """Torch's sizes name a dividend where they have to; the simplifier then keeps every value."""
    n, analyzer = tirx.SizeVar("n", "int64"), arith.Analyzer()
    for seed in range(part, 800, 4):
        formula = _formula(seed)
        symbols, named = Symbols({}, {n: 0}), {}

        def name(value: tirx.PrimExpr, named: dict[tirx.Var, tirx.PrimExpr] = named) -> tirx.PrimExpr:
            variable = tirx.SizeVar(f"number_{len(named)}", "int64")
            named[variable] = value
            return variable

        symbols.name_number = name
        simple = analyzer.simplify(formula(n, symbols.quotient, symbols.remainder))
        for value in (*range(40), 1001):
            known: dict[tirx.Var, tirx.PrimExpr] = {n: tirx.IntImm("int64", value)}
            for variable, dividend in named.items():
                known[variable] = analyzer.simplify(substitute(dividend, known))
            expected = formula(value, lambda a, b: a // b, lambda a, b: a % b)
            assert int(analyzer.simplify(substitute(simple, known))) == expected, (seed, value)


@pytest.mark.parametrize("part", range(4))
def test_the_algebra_of_onnx_simplifies_to_the_value_or_leaves_it_to_the_call(part: int) -> None:
    """What it leaves is computed in tensors."""
    n, left = tirx.SizeVar("n", "int64"), 0
    algebra = SizeAlgebra()
    algebra.declare_input(n, minimum=1)
    for seed in range(part, 800, 4):
        formula = _formula(seed)
        try:
            simple = algebra.simplify(formula(n, algebra.divide, algebra.remainder))
        except UndecidedError:
            left += 1
            continue
        for value in (*range(1, 40), 1001):
            known = {n: tirx.IntImm("int64", value)}
            found = simple if isinstance(simple, int) else int(arith.Analyzer().simplify(substitute(simple, known)))
            assert found == formula(value, lambda a, b: a // b, lambda a, b: a % b), (seed, value)
    assert 0 < left < 100


def test_which_remainders_are_bounded() -> None:
    """Those of common sizes are: of windows, strides and paddings."""
    n, m, analyzer = tirx.SizeVar("n", "int64"), tirx.SizeVar("m", "int64"), arith.Analyzer()
    right = [n % 7, (2 * n + 1) % 6, (8 * n + 3) // 4 % 2, (n + 3) // 2 // 2 % 5, (32 * n) % 8, (4 * n + 6 * m + 1) % 3]
    assert all(are_bounded(size, analyzer) for size in right)
    wrong = [(4 * n + 2) % 6, (4 * n + 2) // 3 % 2, (6 * n + 2) % 10, (9 * n + 4) // 2 % 3]
    assert not any(are_bounded(size, analyzer) for size in wrong)


ONNX = {
    "quotient of a remainder": "r = Mod(a, six)  q = Div(r, three)",
    "remainder of a quotient": "r = Div(a, three)  q = Mod(r, two)",
    "a rest": "d = Div(a, six)  e = Mul(d, six)  r = Sub(a, e)  q = Div(r, three)",
    "comparison": "r = Mod(a, six)  l = Less(r, two)  q = Where(l, three, two)",
}


@pytest.mark.parametrize("name", ONNX)
def test_sizes_of_onnx_files(name: str) -> None:
    """In files sizes are tensors, which are computed at import where that is right."""
    numbers = " ".join(
        f"{each} = Constant<value_ints=[{value}]>()"
        for each, value in (("two", 2), ("three", 3), ("four", 4), ("six", 6))
    )
    call = compiled(f"""g (float[n] x) => (float[k] y) {{
        {numbers}
        s = Shape(x)  m = Mul(s, four)  a = Add(m, two)  {ONNX[name]}
        c = Add(q, two)  t = ReduceSum<keepdims=0>(x)  y = Expand(t, c)
    }}""")
    for size in (2, 3, 4, 5, 7, 8):
        a = 4 * size + 2
        q = {"remainder of a quotient": a // 3 % 2, "comparison": 3 if a % 6 < 2 else 2}.get(name, a % 6 // 3)
        np.testing.assert_array_equal(call(np.ones(size, "float32"))[0], np.full(q + 2, size, "float32"))
