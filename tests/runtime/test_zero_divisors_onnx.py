"""ONNX models that divide integers by zero, or index out of range, in the graph and in the branches of an If."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import pytest
import torch
from numpy.testing import assert_array_equal

import tkc


def parsed(graph: str, checks: bool = False) -> tkc.Executable:
    """The model of a graph in ONNX's text form, compiled for the CPU."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]>\n{graph}')
    return tkc.compile(model, target="cpu", kernels="none", checks=checks)


def check(exe: tkc.Executable, inputs: list[Any], expected: list[Any]) -> None:
    """The one output of a call."""
    (found,) = exe.run_flat([torch.as_tensor(value) for value in inputs])
    assert_array_equal(found.numpy(), expected)


def raises(exe: tkc.Executable, inputs: list[Any], match: str) -> None:
    """The call raises; a later one does not feel it."""
    with pytest.raises(tkc.InputError, match=match):
        exe.run_flat([torch.as_tensor(value) for value in inputs])


DIVISIONS = {
    "Div(x, y)": [-3, 2, 2],
    "Mod(x, y)": [1, -2, 1],
    "Mod<fmod = 1>(x, y)": [-1, -2, 1],
    "Div(x, computed)": [-3, 2, 2],
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("node", DIVISIONS)
@pytest.mark.daily(2)
def test_a_call_that_divides_by_zero_raises(node: str, dtype: str) -> None:
    """For which ONNX has no result."""
    zero = f"zero = Constant<value = {dtype} {{0}}>()  computed = Add(y, zero)"
    exe = parsed(f"g ({dtype}[N] x, {dtype}[N] y) => ({dtype}[N] z) {{ {zero}  z = {node} }}")
    x = torch.tensor([-7, -8, 7]).to(getattr(torch, dtype))
    y = torch.tensor([2, -3, 3]).to(x.dtype)
    check(exe, [x, y], DIVISIONS[node])
    raises(exe, [x, torch.where(y == 3, 0, y)], r"1 by .*ONNX node 'z' \((Div|Mod)\)")
    check(exe, [x, y], DIVISIONS[node])


def test_unsigned_and_broadcast() -> None:
    """One divisor for all rows."""
    exe = parsed("g (uint8[N, 3] x, uint8[1] y) => (uint8[N, 3] z) { z = Div(x, y) }")
    x, y = torch.arange(250, 256, dtype=torch.uint8).reshape(2, 3), torch.tensor([100], dtype=torch.uint8)
    check(exe, [x, y], [[2, 2, 2], [2, 2, 2]])
    raises(exe, [x, y * 0], "1 by input 'y'")


def test_a_constant_zero_is_refused() -> None:
    """Of a node, and where all that a node takes is constant, for which NumPy has a quotient."""
    zero = "zero = Constant<value = int64[2] {1, 0}>()"
    for dividend in ("x", "zero"):
        with pytest.raises(tkc.UnsupportedModelError, match=r"'z' \(Div\) divides integers by the constant 'zero'.*0"):
            parsed(f"g (int64[2] x) => (int64[2] w) {{ {zero}  z = Div({dividend}, zero)  w = Add(x, z) }}")


@pytest.mark.parametrize(
    "divisor",
    [
        "y = Constant<value = int64 {3}>()",
        "one = Constant<value = int64 {1}>()  y = Max(d, one)",
        "one = Constant<value = int64 {1}>()  y = Clip(d, one)",
        "zero = Constant<value = int64 {0}>()  one = Constant<value = int64 {1}>()  "
        "bad = Equal(d, zero)  y = Where(bad, one, d)",
        "s = Shape(x)  one = Constant<value = int64 {1}>()  y = Max(s, one)",
    ],
)
def test_what_is_never_zero_costs_nothing(divisor: str) -> None:
    """No flag is made."""
    exe = parsed(f"g (int64[N] x, int64[N] d) => (int64[N] z) {{ {divisor}  z = Div(x, y) }}")
    assert not exe.signature.index_flags
    exe.run_flat([torch.arange(3), torch.zeros(3, dtype=torch.int64)])


BRANCHES = """g (int64[N] x, int64[N] y, bool c) => (int64[N] z) {
    z = If(c) <
        then_branch = a () => (int64[N] t) { t = THEN },
        else_branch = b () => (int64[N] u) { u = ELSE }
    >
}"""


@pytest.mark.daily(1)
@pytest.mark.parametrize(("then", "other"), [("Div(x, y)", "Mod(x, y)"), ("Neg(x)", "Mod(x, y)"),
                                             ("Div(x, y)", "Neg(x)"), ("Gather(x, y)", "Div(x, y)")])  # fmt: skip
def test_a_branch_counts_its_own(then: str, other: str) -> None:
    """The branch that is not taken neither raises nor computes."""
    exe = parsed(BRANCHES.replace("THEN", then).replace("ELSE", other))
    x, y = torch.tensor([7, 8, 9]), torch.tensor([0, 1, 2])
    good = torch.tensor([2, 1, 2])
    for taken, node in ((True, then), (False, other)):
        exe.run_flat([x, good, torch.tensor(taken)])
        bad = good + 9 if "Gather" in node else y
        if "Neg" in node:
            check(exe, [x, bad, taken], -x)
        else:
            raises(exe, [x, bad, taken], r"3 by ONNX node 't' \(Gather" if "Gather" in node else "1 by input 'y'")


def test_branches_in_branches() -> None:
    """Each raises for itself, also where both hold several."""
    inner = "If(d) <then_branch = e () => (int64[N] v) { v = Div(x, y) }, else_branch = f () => (int64[N] w) "
    inner += "{ q = Div(y, x)  w = Mod(q, y) }>"
    graph = BRANCHES.replace("THEN", inner).replace("ELSE", "Mod(y, x)").replace("bool c)", "bool c, bool d)")
    exe = parsed(graph)
    x, y = torch.tensor([0, 5, 9]), torch.tensor([4, 0, 2])
    good = torch.tensor([1, 2, 3])
    for c, d, wrong, inputs in [
        (True, True, "1 by input 'y' of ONNX node 'v'", (x, y)),
        (True, True, None, (x, good)),
        (True, False, "1 by input 'x' of ONNX node 'q'", (x, good)),
        (True, False, "1 by input 'y' of ONNX node 'w'", (good, y)),
        (False, True, "1 by input 'x' of ONNX node 'u'", (x, y)),
        (False, False, None, (good, y)),
    ]:
        if wrong is None:
            exe.run_flat([*inputs, torch.tensor(c), torch.tensor(d)])
        else:
            raises(exe, [*inputs, c, d], f"(?s)^[^;]*; [^;]*{wrong}[^;]*$")


def test_constants_of_a_branch_are_wrong_where_it_is_taken() -> None:
    """A model may hold what is never reached."""
    exe = parsed(
        """g (int64[2] x, bool c) => (int64[2] z) {
        zero = Constant<value = int64[2] {1, 0}>()
        z = If(c) <
            then_branch = a () => (int64[2] t) { t = Div(x, zero) },
            else_branch = b () => (int64[2] u) { u = Neg(x) }
        > }"""
    )
    x = torch.tensor([3, 4])
    check(exe, [x, False], [-3, -4])
    raises(exe, [x, True], "1 by 'zero' of ONNX node 't'")


@pytest.mark.daily(1)
def test_checks_cover_what_a_branch_computes() -> None:
    """With ``checks``; without, the nearest index is taken."""
    branches = BRANCHES.replace("t = THEN", "i = Add(x, y)  t = Gather(x, i)").replace("ELSE", "Neg(x)")
    x, y = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2])
    exe = parsed(branches, checks=True)
    raises(exe, [x, y, True], r"indices are out of range.*1 by ONNX node 't' \(Gather\)")
    check(exe, [x, y, False], -x)
    check(exe, [x, y - y, True], x)
    parsed(branches).run_flat([x, y, torch.tensor(True)])


@pytest.mark.parametrize("checks", [False, True])
def test_each_part_of_an_index_has_its_axis(checks: bool) -> None:
    """GatherND of axes of different sizes, by an index that is handed in, and by one that is computed."""
    exe = parsed("g (int64[4, 3] x, int64[2, 2] i) => (int64[2] y) { y = GatherND(x, i) }", checks)
    x = torch.arange(12).reshape(4, 3)
    check(exe, [x, [[3, 2], [-4, -3]]], [11, 0])
    for bad, number in (([[4, 0], [0, 0]], 1), ([[0, 3], [0, 3]], 2), ([[-5, 0], [0, 0]], 1), ([[0, -4], [0, 0]], 1)):
        raises(exe, [x, bad], rf"indices are out of range.*{number} by ONNX node 'y' \(GatherND\)")
    shifted = "one = Constant<value = int64 {1}>()  j = Add(i, one)"
    exe = parsed(f"g (int64[4, 3] x, int64[2, 2] i) => (int64[2] y) {{ {shifted}  y = GatherND(x, j) }}", checks)
    check(exe, [x, [[2, 1], [0, 0]]], [11, 4])
    if checks:
        raises(exe, [x, [[2, 2], [0, 0]]], r"1 by ONNX node 'y' \(GatherND\)")


def test_a_constant_index_of_several_parts_is_refused() -> None:
    """3 is an index of the first axis, and none of the second."""
    for index in ("3, 3", "4, 0"):
        constant = f"i = Constant<value = int64[1, 2] {{{index}}}>()"
        with pytest.raises(tkc.UnsupportedModelError, match=r"GatherND\) has index [34] for an axis"):
            parsed(f"g (int64[4, 3] x) => (int64[1] y) {{ {constant}  y = GatherND(x, i) }}")
