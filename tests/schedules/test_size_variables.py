"""Sizes that are formulas while GPU code is scheduled: what a strided convolution of any image leaves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tvm import te, tirx

import tkc
from tests.schedules.sources import generated_sources
from tkc.compiler.options import Kernels
from tkc.schedules.lowering.size_variables import sizes_as_variables


def _cast(size: tirx.PrimExpr) -> tirx.PrimFunc:
    batch = tirx.SizeVar("batch", "int64")
    x = te.placeholder((batch, size, size, 64), "bfloat16", name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda *at: x(*at).astype("float32"), name="y")])


def _rules(model: nn.Module, channels: int, kernels: Kernels = "auto") -> dict[str, str]:
    """What schedules each function of ``model``, compiled for Hopper and images of any size and ``channels``."""
    free = torch.export.Dim.AUTO
    executable = tkc.compile(
        model.eval().bfloat16(),
        (torch.rand(4, channels, 64, 48).bfloat16(),),
        target="cuda:sm_90a",
        dynamic_shapes=({0: free, 2: free, 3: free},),
        kernels=kernels,
    )
    return {entry.function: entry.scheduled_by for entry in executable.report.scheduled}


def test_each_formula_has_one_variable() -> None:
    """Of arguments and loops, though loops have formulas simplified; sizes and products stay."""
    n = tirx.SizeVar("n", "int64")
    text = sizes_as_variables(_cast((n + 1 + 1 - 3) // 2 + 1)).script()
    assert "//" not in text and "size0" in text and "size1" not in text
    for plain in (n, n * 4, tirx.IntImm("int64", 8)):
        func = _cast(plain)
        assert sizes_as_variables(func).same_as(func)


def test_other_sums_of_a_formula_are_sums_of_its_variable() -> None:
    """Of zeros around an image, which has two rows more, and of the last row."""
    n, batch = (tirx.SizeVar(name, "int64") for name in ("n", "batch"))
    rows = (n - 1) // 4 + 1
    x = te.placeholder((batch, rows, 8), "float32", name="x")
    last = te.compute((batch, rows + 2, 8), lambda b, i, j: x(b, te.min(i, (n - 1) // 4), j), name="y")
    text = sizes_as_variables(te.create_prim_func([x, te.compute(x.shape, lambda b, i, j: last(b, i + 2, j))])).script()
    assert "//" not in text and "size0 + T.int64(2)" in text and "size0 - T.int64(1)" in text


@pytest.mark.daily(1)
def test_strided_convolutions_of_any_image_compile() -> None:
    """Their results' elements are copied in registers, of which there is a number: pooled, cast, normalized, padded."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
    )
    rules = _rules(model, 3)
    assert rules and "fallback" not in rules.values(), rules


@pytest.mark.daily(1)
@pytest.mark.parametrize("groups", [32, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_grouped_convolutions_of_any_image_compile(groups: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each channel, without a copy of the image; of large groups, whose windows are copied once."""
    generated_sources(monkeypatch)
    model = nn.Sequential(nn.Conv2d(32, 32, 3, stride, 1, groups=groups), nn.ReLU())
    rules = _rules(model, 32)
    assert not [name for name in rules if name.startswith("reshape")], rules
    assert ("gpu-windows" in rules.values()) == (groups == 32), rules


def test_windows_of_what_a_strided_convolution_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each channel of patches, as SegFormer has them."""
    generated_sources(monkeypatch)
    model = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.GELU())
    rules = _rules(model, 3, kernels="none")
    assert "gpu-windows" in rules.values() and not {"fallback", "dlight-fallback"} & set(rules.values()), rules
