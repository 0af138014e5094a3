"""Forms that are made one before rules look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tvm import relax
from tvm.relax import op

from tests.passes.reference_execution import evaluated
from tests.passes.swiglu_modules import CHANNELS, built
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.graph.bindings import shape

SIMPLER: dict[str, tuple[Callable[[relax.Expr], relax.Expr], list[str]]] = {
    "cast to the same": (lambda x: op.astype(x, "float32"), []),
    "widened and back": (lambda x: op.astype(op.astype(x, "float64"), "float32"), []),
    "narrowed and back": (lambda x: op.astype(op.astype(x, "float16"), "float32"), ["astype", "astype"]),
    "two casts": (lambda x: op.astype(op.astype(x, "float64"), "float16"), ["astype"]),
    "reshape to the same": (lambda x: op.reshape(x, shape(x)), []),
    "two reshapes": (lambda x: op.reshape(op.reshape(x, (CHANNELS * shape(x)[0],)), (shape(x)[0], 2, 4)), ["reshape"]),
    "there and back": (lambda x: op.reshape(op.reshape(x, (shape(x)[0], 2, 4)), shape(x)), []),
    "transposed twice": (lambda x: op.permute_dims(op.permute_dims(x, [1, 0])), []),
    "permuted twice": (
        lambda x: op.permute_dims(op.permute_dims(op.expand_dims(x, 0), [1, 2, 0]), [1, 2, 0]),
        ["expand_dims", "permute_dims"],
    ),
}


@pytest.mark.parametrize(("write", "operators"), SIMPLER.values(), ids=SIMPLER)
def test_canonical_forms(write: Callable[[relax.Expr], relax.Expr], operators: list[str]) -> None:
    """Only what changes something stays, and the result is the same."""
    module = built(lambda b, x: b.emit(op.negative(write(x))))
    simple = Canonicalize()(module)
    values = relax.analysis.get_var2val(simple["main"]).values()
    found = [value.op.name.removeprefix("relax.") for value in values if isinstance(value, relax.Call)]
    assert found == [*operators, "negative"]
    x = torch.randn(3, CHANNELS)
    assert torch.equal(evaluated(simple, x)[0], evaluated(module, x)[0])
