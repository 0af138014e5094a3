"""What a rule consumes: it vanishes if nothing else reads it, and keeps the operators if something does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tvm import relax
from tvm.relax import op

from tests.passes.reference_execution import substituted
from tests.passes.swiglu_modules import CHANNELS, built, named, operand, rule_for, swiglu_of
from tkc.passes.graph.found import Found
from tkc.passes.rules.rule import Site


def doubled(site: Site) -> Found:
    """``tanh(early)``, for which ``early`` must vanish."""
    x = site.graph.value(named(site, "early")).args[0]
    return swiglu_of(site, x, x, consumed="early")


def test_what_is_consumed_vanishes() -> None:
    """Nothing else reads it, so that the call takes its place."""
    module, report = substituted(
        built(lambda b, x: b.emit(op.tanh(b.emit(op.exp(x), "early")), "root")), (rule_for("relax.tanh", doubled),)
    )
    assert report.substitutions[0].variables == ("root",)
    assert "exp" not in module["main"].script()


def read_too(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
    """An operator reads it."""
    early = b.emit(op.exp(x), "early")
    return [b.emit(op.negative(early), "other"), b.emit(op.tanh(early), "root")]


def returned_too(b: relax.BlockBuilder, x: relax.Var) -> Sequence[relax.Expr]:
    """It is one of the results."""
    early = b.emit(op.exp(x), "early")
    return [early, b.emit(op.tanh(early), "root")]


@pytest.mark.parametrize(("write", "reader"), [(read_too, "by other"), (returned_too, "by ")])
def test_what_is_consumed_is_read_by_nothing_else(
    write: Callable[[relax.BlockBuilder, relax.Var], Sequence[relax.Expr]], reader: str
) -> None:
    """The refusal names the binding and what reads it; nothing is replaced."""
    _, report = substituted(built(write), (rule_for("relax.tanh", doubled),))
    assert report.substitutions == ()
    (refused,) = report.refusals
    assert refused.reason.startswith("early, ") and reader in refused.reason


def test_what_the_function_returns_does_not_vanish() -> None:
    """Also where no binding reads it: a function's one result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorStructInfo((4, CHANNELS), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            early = builder.emit(op.exp(x), "early")
            root = builder.emit_output(op.tanh(early), "root")
            out = builder.emit_output(early)
        builder.emit(op.negative(root), "unread")
        builder.emit_func_output(out)
    _, report = substituted(builder.get(), (rule_for("relax.tanh", doubled),))
    assert [refused.reason.partition(": ")[2] for refused in report.refusals] == ["as a result"]


def test_an_input_is_not_consumed() -> None:
    """A kernel cannot read what it makes vanish."""

    def recognize(site: Site) -> Found:
        return swiglu_of(site, operand(site), operand(site), consumed="early")

    module = built(lambda b, x: b.emit(op.tanh(b.emit(op.exp(x), "early")), "root"))
    _, report = substituted(module, (rule_for("relax.tanh", recognize),))
    assert report.substitutions == ()
    assert "also one of its inputs" in report.refusals[0].reason
