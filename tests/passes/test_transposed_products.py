"""Products with a transposed right operand read it where it lies, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from tvm import relax

from tests.passes.reference_execution import evaluated, imported
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.lowering.transposed_products import TransposedProducts

Product = Callable[[Tensor, Tensor], Tensor]
FUSED: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "matrices": (lambda x, w: x @ w.T, (5, 8), (3, 8)),
    "a vector": (lambda x, w: x @ w.T, (8,), (3, 8)),
    "a batch and a matrix": (lambda x, w: x @ w.T, (2, 5, 8), (3, 8)),
    "a matrix and a batch": (lambda x, w: x @ w.mT, (5, 8), (2, 3, 8)),
    "batches": (lambda x, w: x @ w.mT, (4, 5, 8), (4, 3, 8)),
    "batches of one": (lambda x, w: x[:, None] @ w.mT, (4, 5, 8), (1, 6, 3, 8)),
    "a Gram matrix": (lambda x, w: x @ x.T + w, (5, 8), (5, 5)),
    "negative axes": (lambda x, w: x @ w.transpose(-1, -2), (2, 5, 8), (2, 3, 8)),
}
LEFT: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "not transposed": (lambda x, w: x @ w, (5, 8), (8, 3)),
    "other axes": (lambda x, w: x @ w.permute(1, 2, 0), (5, 8), (3, 4, 8)),
    "the left operand": (lambda x, w: x.T @ w, (8, 5), (8, 3)),
}


def fused(product: Product, *operands: Tensor) -> str:
    """The script of the product after the pass, which must compute what PyTorch does."""
    module = TransposedProducts()(imported(product, *operands, symbolic=()))
    module = relax.transform.DeadCodeElimination()(module)
    torch.testing.assert_close(evaluated(module, *operands)[0], product(*operands))
    return module.script()


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", FUSED)
def test_transposition_vanishes(form: str) -> None:
    """The product is one function of both tensors as they are, also where they are the same."""
    product, *shapes = FUSED[form]
    script = fused(product, *map(torch.randn, shapes))
    assert "R.permute_dims" not in script
    assert "R.matmul" not in script


@pytest.mark.parametrize("form", LEFT)
def test_other_products_stay(form: str) -> None:
    """What looks alike is left to TVM."""
    product, *shapes = LEFT[form]
    assert "R.matmul" in fused(product, *map(torch.randn, shapes))


def test_rows_may_be_symbolic() -> None:
    """And a transposed tensor that is a result as well stays one."""
    x, w = torch.randn(7, 8), torch.randn(3, 8)
    module = TransposedProducts()(imported(lambda x, w: (x @ w.T, w.T + 1), x, w, symbolic=[0]))
    product, transposed = evaluated(module, x, w)
    torch.testing.assert_close(product, x @ w.T)
    torch.testing.assert_close(transposed, w.T + 1)


def test_axes_left_out_are_all_of_them_reversed() -> None:
    """As ONNX leaves them out; neither this pass nor canonicalization takes such a transposition for none."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorStructInfo(shape, "float32")) for name, shape in (("x", (5, 8)), ("w", (3, 8))))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, builder.emit(relax.op.permute_dims(w))))
            out = builder.emit_output(builder.emit(relax.op.permute_dims(product)))
        builder.emit_func_output(out)
    module = TransposedProducts()(Canonicalize()(builder.get()))
    inputs = torch.randn(5, 8), torch.randn(3, 8)
    torch.testing.assert_close(evaluated(module, *inputs)[0], (inputs[0] @ inputs[1].T).T)
    assert "R.matmul" not in module.script()
