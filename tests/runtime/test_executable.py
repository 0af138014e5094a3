"""Calling a compiled model: structure, tensor kinds, symbolic sizes, and every way a call can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tkc


def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs of a batch."""
    return torch.randn(batch, 16), torch.randn(batch, 32)


@pytest.mark.parametrize("batch", [1, 3, 17, 64])
def test_agrees_with_the_source_at_every_size(executable: tkc.Executable, model: torch.nn.Module, batch: int) -> None:
    """One build serves every batch, and returns the model's own structure."""
    x, y = inputs(batch)
    with torch.no_grad():
        expected = model(x, {"y": y})
    result = executable(x, extra={"y": y})
    assert result.keys() == expected.keys() and isinstance(result["rest"], tuple)
    torch.testing.assert_close(result["gated"], expected["gated"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result["rest"], expected["rest"], rtol=1e-4, atol=1e-5)


def test_uses_the_kernel_and_says_so(executable: tkc.Executable) -> None:
    """The SwiGLU runs in a kernel library, and the report names it."""
    assert [use.kernel for use in executable.report.uses].count("swiglu") == 1
    assert "swiglu" in str(executable.report)
    assert any(library.kernel == "swiglu" for library in executable.libraries)


def test_returns_the_kind_of_tensor_it_was_given(executable: tkc.Executable) -> None:
    """NumPy in, NumPy out, with the same values."""
    x, y = inputs(4)
    result = executable(x.numpy(), extra={"y": y.numpy()})
    assert isinstance(result["gated"], np.ndarray)
    np.testing.assert_array_equal(result["gated"], executable(x, extra={"y": y})["gated"].numpy())


def test_named_inputs_may_come_in_any_order_and_with_constants(executable: tkc.Executable) -> None:
    """The order of keywords does not matter, nor whether a fixed argument is repeated."""
    x, y = inputs(2)
    first = executable(x, extra={"y": y})["gated"]
    assert torch.equal(first, executable(x, double=False, extra={"y": y})["gated"])


class Named(torch.nn.Module):
    """Positional and keyword inputs, some of them left out."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, factor: float = 2.0, bias: torch.Tensor
    ) -> torch.Tensor:
        """Tensors of one shape."""
        y = x * factor - bias
        return y if mask is None else torch.where(mask, y, x)


@pytest.mark.parametrize("masked", [False, True])
def test_inputs_by_position_or_by_name(masked: bool, tmp_path: Path) -> None:
    """However they were exported, as PyTorch takes them; and what is wrong with the names is told."""
    x, bias, mask = torch.randn(3, 4), torch.randn(3, 4), torch.tensor([True, False, True, True]) if masked else None
    compiled = tkc.compile(Named(), (x, mask), {"bias": bias}, target="cpu", kernels="none")
    for executable in (compiled, tkc.load(compiled.save(tmp_path / "named.tkc"))):
        expected = executable(x, mask, bias=bias)
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((x,), {"mask": mask, "bias": bias}),
            ((), {"bias": bias, "mask": mask, "x": x}),
            ((), {"x": x, "mask": mask, "bias": bias}),
        ]
        if not masked:  # what was left out may be left out
            calls += [((x,), {"bias": bias}), ((), {"bias": bias, "x": x})]
        for args, kwargs in calls:
            assert torch.equal(executable(*args, **kwargs), expected)
        wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((x, mask), {"bias": bias, "x": x}, "given twice: x"),
            ((x, mask), {"bias": bias, "msk": mask}, "unknown: msk"),
            ((x, mask), {}, "missing: bias"),
            ((), {"mask": mask, "bias": bias}, "missing: x$"),
        ]
        if not masked:
            wrong.append(((x, bias), {"bias": bias}, "input 'mask' was fixed to None when .*; found a Tensor"))
        for args, kwargs, message in wrong:
            with pytest.raises(tkc.InputError, match=message):
                executable(*args, **kwargs)


def test_a_tensor_in_place_of_a_number_is_refused() -> None:
    """That the model was compiled with, also where all arguments are tensors then."""

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
            return x * factor

    x = torch.randn(3)
    executable = tkc.compile(Scaled(), (x, 3.0), target="cpu", kernels="none")
    assert torch.equal(executable(x), x * 3) and torch.equal(executable(factor=3.0, x=x), x * 3)
    for call in (lambda: executable(x, x), lambda: executable(x, factor=x)):
        with pytest.raises(tkc.InputError, match=r"'factor' was fixed to 3\.0 when .*; found a Tensor$"):
            call()


def test_views_that_are_not_contiguous_or_aligned_are_read_right(
    executable: tkc.Executable, model: torch.nn.Module
) -> None:
    """A transposed view and one that starts in the middle of a vector."""
    x = torch.randn(16, 5).T
    y = torch.randn(5 * 32 + 1)[1:].view(5, 32)
    with torch.no_grad():
        expected = model(x, {"y": y})["gated"]
    torch.testing.assert_close(executable(x, extra={"y": y})["gated"], expected, rtol=1e-4, atol=1e-5)


WRONG: dict[str, tuple[Callable[[tkc.Executable], object], str]] = {
    "too few": (lambda e: e(torch.randn(3, 16)), r"takes x \(float32 \[batch, 16\]\).*another structure"),
    "unknown name": (lambda e: e(torch.randn(3, 16), extra={"y": torch.randn(3, 32)}, z=1), "unknown: z"),
    "dtype": (lambda e: e(torch.randn(3, 16).double(), extra={"y": torch.randn(3, 32)}), "'x' has dtype float64"),
    "axes": (lambda e: e(torch.randn(16), extra={"y": torch.randn(3, 32)}), "'x' has shape .*expected 2 axes"),
    "size": (
        lambda e: e(torch.randn(3, 15), extra={"y": torch.randn(3, 32)}),
        "axis 1 of input 'x' is 15, expected 16",
    ),
    "unequal": (
        lambda e: e(torch.randn(3, 16), extra={"y": torch.randn(4, 32)}),
        "is 4, but 'batch' is 3 in input 'x'",
    ),
    "range": (lambda e: e(torch.randn(65, 16), extra={"y": torch.randn(65, 32)}), "is 65; .* at most 64"),
    "empty": (lambda e: e(torch.randn(0, 16), extra={"y": torch.randn(0, 32)}), "is 0; .* at least 1"),
    "constant": (
        lambda e: e(torch.randn(3, 16), extra={"y": torch.randn(3, 32)}, double=True),
        "'double' was fixed to False",
    ),
    "no tensor": (lambda e: e([1.0], extra={"y": torch.randn(3, 32)}), "another structure|no tensor|is a list"),
    "device": (
        lambda e: e(torch.randn(3, 16, device="meta"), extra={"y": torch.randn(3, 32)}),
        "'x' is on meta, expected cpu",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_before_anything_runs(executable: tkc.Executable, case: str) -> None:
    """Each names the input, what was found and what was expected; the next call works."""
    call, message = WRONG[case]
    with pytest.raises(tkc.InputError, match=message):
        call(executable)
    x, y = inputs(2)
    assert executable(x, extra={"y": y})["gated"].shape == (2, 32)


def test_another_target_than_this_machines_is_refused(model: torch.nn.Module) -> None:
    """Targets and settings that do not exist name the ones that do."""
    with pytest.raises(tkc.TargetError, match="sm_90a"):
        tkc.compile(model, target="cuda:sm_1")
    with pytest.raises(tkc.TargetError, match="does not exist"):
        tkc.compile(model, target="tpu")
    with pytest.raises(tkc.UsageError, match="auto, all, none"):
        tkc.compile(model, kernels="some")
    with pytest.raises(tkc.UsageError, match="no tuning database folder"):
        tkc.compile(model, database="/nowhere")


@pytest.mark.nvcc
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="only a machine without a GPU cannot run what it compiles for one"
)
def test_cuda_code_compiles_without_a_gpu_but_does_not_run(model: torch.nn.Module) -> None:
    """The error says why it cannot run here; the code holds machine code and no source to compile later."""
    import tvm

    half = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval().bfloat16()
    executable = tkc.compile(half, (torch.randn(4, 64).bfloat16(),), target="cuda:sm_90a")
    code = tvm.runtime.load_module(str(executable.code))
    while code.kind != "library":
        code = code.imports[0]
    assert all(module.kind != "cuda" or module.inspect_source("cuda") == "" for module in code.imports)
    with pytest.raises(tkc.TargetError, match="cannot run here"):
        executable(torch.randn(4, 64).bfloat16())


@pytest.mark.daily(1)
def test_constants_that_are_returned_are_new_in_each_call() -> None:
    """One alone, views and several of them; what a caller writes into them is not in the next call's."""

    class Constants(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            places = torch.arange(3)
            return torch.arange(6).view(2, 3), torch.arange(4.0).view(2, 2).t(), places, places, x + 1

    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(6).view(2, 3)

    x = torch.ones(2)
    for model in (Constants(), One()):
        compiled = tkc.compile(model, (x,))
        for _ in range(2):
            found = compiled(x)
            torch.testing.assert_close(found, model(x))
            for tensor in torch.utils._pytree.tree_leaves(found):
                tensor.fill_(77)
