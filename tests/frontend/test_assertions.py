"""What a model asserts of tensors (``torch._assert_async``) is checked in each call."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import sympy
import torch
from torch.export import Dim
from torch.fx.experimental.sym_node import SymNode

import tkc
from tests.frontend.whole_models import compiled
from tests.schedules.graphs import Model
from tkc.frontend.torch import importer


def _asserting(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > 0, "the sum must be positive")
    torch._assert_async((x < 9).all())
    return x * 2


def _asserting_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum() < 5, "the sum must be small")
        return x * 2

    return torch.cond(x[0] > 0, checked, lambda x: x * 3, (x,))


def test_assertions_are_checked_in_each_call(tmp_path: Path) -> None:
    """With any number of elements, of a loaded model too; a call that holds is right after one that does not."""
    shapes = {"inputs": ({0: Dim("n", min=0, max=99)},)}
    exe = compiled(_asserting, torch.ones(3), dynamic_shapes=shapes, fallback=False)
    exe.save(tmp_path / "model")
    for model in (exe, tkc.load(tmp_path / "model")):
        torch.testing.assert_close(model(torch.ones(5)), torch.full((5,), 2.0))
        with pytest.raises(tkc.InputError, match=r"'the sum must be positive'.*in forward"):
            model(-torch.ones(5))
        with pytest.raises(tkc.InputError, match="'the sum must be positive'"):
            model(torch.zeros(0))
        with pytest.raises(tkc.InputError, match="single nonzero value"):
            model(torch.tensor([3.0, 9.0]))
        with pytest.raises(tkc.InputError, match=r"'the sum.*; .*single nonzero value"):
            model(torch.tensor([math.nan]))
        torch.testing.assert_close(model(torch.ones(1)), torch.full((1,), 2.0))


def test_an_assertion_of_a_branch_that_is_not_taken_is_not_checked() -> None:
    """What the other branch asserts may not hold."""
    exe = compiled(_asserting_in_a_branch, torch.ones(3))
    torch.testing.assert_close(exe(torch.tensor([-1.0, 9, 9])), torch.tensor([-3.0, 27, 27]))
    torch.testing.assert_close(exe(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(tkc.InputError, match="'the sum must be small'"):
        exe(torch.tensor([1.0, 9, 9]))


@pytest.mark.gpu
def test_assertions_on_a_gpu() -> None:
    """The call that breaks one returns; the next one, or ``check``, raises, and the GPU stays usable."""
    exe = tkc.compile(Model(_asserting), (torch.ones(3, device="cuda"),), target="cuda", fallback=False)
    for _ in range(3):
        torch.testing.assert_close(exe(torch.ones(3, device="cuda")), torch.full((3,), 2.0, device="cuda"))
    exe(-torch.ones(3, device="cuda"))
    with pytest.raises(tkc.InputError, match="'the sum must be positive'"):
        exe.check()
    torch.testing.assert_close(exe(torch.ones(3, device="cuda")), torch.full((3,), 2.0, device="cuda"))
    exe.check()


def test_a_truth_value_that_the_program_takes_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 writes what ``torch._check`` asserts in place of the symbol; here the program is made to be one."""

    class Asserting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check((x > 0).all().item())
            return x * 2

    program = torch.export.export(Asserting(), (torch.ones(3),))
    (read,) = (node for node in program.graph.nodes if node.target == torch.ops.aten.item.default)
    read.meta["val"] = torch.SymBool(SymNode(sympy.true, read.meta["val"].node.shape_env, bool, None))
    for node in reversed(list(program.graph.nodes)):  # the checks of the symbol, which that program has not
        if node.op == "call_function" and node is not read and not isinstance(node.meta.get("val"), torch.Tensor):
            program.graph.erase_node(node)
    monkeypatch.setattr(importer, "simplified", lambda program, **options: program)
    exe = tkc.compile(program)
    assert torch.equal(exe(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(tkc.InputError, match=r"asserts that .*in forward reads True"):
        exe(-torch.ones(3))
