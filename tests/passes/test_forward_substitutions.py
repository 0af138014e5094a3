"""Loops over rows that add combinations of earlier rows are one function; what only looks like one stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
import tvm
from torch import Tensor
from tvm import relax, tirx
from tvm.ir import IRModule

from tests.passes.reference_execution import CPU, evaluated, imported
from tkc.kernels import Target
from tkc.passes.canonical.forward_substitutions import ForwardSubstitutions

Step = Callable[[Tensor, int], Tensor]


def as_transformers_writes_it(a: Tensor, i: int) -> Tensor:
    """The new elements of row ``i``, of the chunked gated delta rule."""
    row, earlier = a[..., i, :i].clone(), a[..., :i, :i].clone()
    return row + (row.unsqueeze(-1) * earlier).sum(-2)


def looped(a: Tensor, rows: Iterable[int], step: Step = as_transformers_writes_it) -> Tensor:
    """``a`` after the step for each of ``rows``."""
    a = a * 1
    for i in rows:
        a[..., i, :i] = step(a, i)
    return a


def the_sum_first(a: Tensor, i: int) -> Tensor:
    """With other views, and both operands of both operators the other way round."""
    factors = a.narrow(-2, i, 1)[..., :i].transpose(-1, -2)
    return (a[..., :i, :i] * factors).sum(-2, keepdim=True).squeeze(-2) + a.select(-2, i)[..., :i]


def counted(a: Tensor) -> Tensor:
    """Each row after the first."""
    return looped(a, range(1, a.shape[-2]))


LOOPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], int]] = {
    "as transformers writes it": (counted, (2, 3, 6, 6), 1),
    "one matrix": (counted, (6, 6), 1),
    "more columns than rows": (counted, (3, 4, 7), 1),
    "fewer columns than rows": (lambda a: looped(a, range(1, 4)), (3, 6, 3), 1),
    "the sum first": (lambda a: looped(a, range(1, 6), the_sum_first), (2, 6, 6), 1),
    "some rows": (lambda a: looped(a, range(2, 5)), (3, 7, 7), 1),
    "two loops": (lambda a: looped(looped(a, range(1, 5)), range(1, 5)), (2, 5, 5), 2),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize(("function", "shape", "loops"), LOOPS.values(), ids=LOOPS)
def test_loops_are_functions(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], loops: int) -> None:
    """Their values are PyTorch's, and of their steps nothing is left. Nothing is asked of the matrices."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    module = found(function, x)
    assert calls(module) == loops
    assert "R.concat" not in module["main"].script()
    torch.testing.assert_close(evaluated(module, x), [function(x)], rtol=1e-5, atol=1e-5)


def test_what_is_read_on_the_way_stays() -> None:
    """Beside the loop, which does not end there."""

    def function(a: Tensor) -> Tensor:
        a = a * 1
        for i in range(1, 5):
            a[..., i, :i] = as_transformers_writes_it(a, i)
            if i == 2:
                kept = a.clone()
        return a * kept

    x = torch.randn(2, 5, 5)
    module = found(function, x)
    assert calls(module) == 1 and "R.concat" in module["main"].script()
    torch.testing.assert_close(evaluated(module, x), [function(x)], rtol=1e-5, atol=1e-5)


def factor(number: float) -> Step:
    """A multiple of the combination."""
    return lambda a, i: a[..., i, :i] + number * (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "twice the sum": lambda a: looped(a, range(1, 5), factor(2)),
    "without the sum of another axis": lambda a: looped(
        a, range(1, 5), lambda a, i: a[..., i, :i] + (a[..., i, :i, None] * a[..., :i, :i]).sum(-1)
    ),
    "transposed": lambda a: looped(
        a, range(1, 5), lambda a, i: a[..., i, :i] + (a[..., i, :i, None] * a[..., :i, :i].mT).sum(-2)
    ),
    "a column's elements": lambda a: looped(
        a, range(1, 5), lambda a, i: a[..., i, :i] + (a[..., :i, i, None] * a[..., :i, :i]).sum(-2)
    ),
    "another row is kept": lambda a: looped(
        a, range(1, 5), lambda a, i: a[..., i - 1, :i] + (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)
    ),
    "rows as they were": lambda a: looped(
        a, range(1, 5), lambda b, i: b[..., i, :i] + (b[..., i, :i, None] * a[..., :i, :i]).sum(-2)
    ),
    "later columns": lambda a: looped(
        a, range(1, 4), lambda a, i: a[..., i, :i] + (a[..., i, :i, None] * a[..., :i, 1 : i + 1]).sum(-2)
    ),
    "descending rows": lambda a: looped(a, range(4, 0, -1)),
    "every other row": lambda a: looped(a, range(1, 5, 2)),
    "one row": lambda a: looped(a, [3]),
    "of other matrices": lambda a: looped(
        a, range(1, 5), lambda a, i: a[..., i, :i] + (a[..., i, :i, None] * a.flip(0)[..., :i, :i]).sum(-2)
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_other_loops_stay(function: Callable[[Tensor], Tensor]) -> None:
    """What a step does in another way, or rows in another order."""
    module = imported(function, torch.randn(2, 5, 5), symbolic=())
    assert ForwardSubstitutions(CPU)(module).same_as(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_numbers_that_are_rounded_at_each_step_stay(dtype: torch.dtype) -> None:
    """And whole numbers, which wrap around."""
    assert calls(found(counted, torch.ones(2, 5, 5, dtype=dtype))) == 0


def test_any_number_of_matrices() -> None:
    """A symbolic batch; none at all, too."""
    x = torch.randn(4, 3, 5, 5)
    module = ForwardSubstitutions(CPU)(imported(counted, x))
    assert calls(module) == 1
    for count in (2, 7):
        x = torch.randn(count, 3, 5, 5)
        torch.testing.assert_close(evaluated(module, x), [counted(x)], rtol=1e-5, atol=1e-5)


def test_infinities_and_negative_zeros_stay_what_they_are() -> None:
    """Also behind the diagonal, where nothing is added."""
    x = torch.randn(2, 5, 5)
    x[0, 0, 4], x[0, 2, 3], x[1, 3, 1], x[0, 4, 4] = torch.inf, -0.0, torch.nan, -torch.inf
    (values,) = evaluated(found(counted, x), x)
    torch.testing.assert_close(values, counted(x), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(values.signbit().triu(), x.signbit().triu())


@pytest.mark.parametrize("shape", [(3, 2, 6, 6), (70, 4, 7)], ids=["square", "wide"])
def test_a_gpu_s_threads_compute_the_same(shape: tuple[int, ...]) -> None:
    """One after the other: no thread reads what another one writes."""
    x = torch.randn(shape)
    module = ForwardSubstitutions(Target.parse("cuda:sm_90a"))(imported(counted, x, symbolic=()))
    assert calls(module) == 1
    torch.testing.assert_close(evaluated(one_by_one(module), x), [counted(x)], rtol=1e-5, atol=1e-5)


def found(function: Callable[[Tensor], Tensor], x: Tensor) -> IRModule:
    """``function`` after the pass."""
    return ForwardSubstitutions(CPU)(imported(function, x, symbolic=()))


def calls(module: IRModule) -> int:
    """How many loops are calls of a function."""
    seen: list[relax.Expr] = []
    relax.analysis.post_order_visit(module["main"], seen.append)
    functions = [call.args[0] for call in seen if isinstance(call, relax.Call) and call.op.same_as(CALL_TIR)]
    assert all(name.name_hint.startswith("forward_substitution") for name in functions)
    return len(functions)


CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def one_by_one(module: IRModule) -> IRModule:
    """``module`` with loops in place of threads, the last thread first."""

    def unbound(loop: tirx.For) -> tirx.For | None:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return None
        last_first = loop.extent - 1 - loop.loop_var
        body = tirx.stmt_functor.substitute(loop.body, {loop.loop_var: last_first})
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)

    result = tvm.IRModule(module.functions, attrs=module.attrs)
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            body = tirx.stmt_functor.ir_transform(function.body, None, unbound, ["tirx.For"])
            result[name] = function.with_body(body)
    return result
