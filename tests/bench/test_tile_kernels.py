"""TileKernels beside ours, from an environment that only looks like one: its functions are the few lines below."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.command_line import tkc
from tkc.bench.contenders import contenders
from tkc.bench.tile_kernels_calls import tile_kernels_calls
from tkc.bench.tile_kernels_client import TileKernels
from tkc.errors import UsageError
from tkc.kernels.all_cases import benchmark_cases
from tkc.kernels.cases import Case
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.measure.prepared_case import Prepared

CPU = torch.device("cpu")
GATE = Case("moe.topk_gate", MoeGateParameters(16, 4, "softmax", normalize=True), {"tokens": 8})
SWIGLU = Case("swiglu", SwiGLUParameters(128, "bfloat16", packed=True, scale="token"), {"tokens": 4})
SIMILAR = """
import torch

print("loading")

class moe:
    def topk_gate(scores, num_topk):
        print("choosing")
        return scores.topk(num_topk).indices

    def top2_sum_gate(logits, bias, **arguments):
        raise RuntimeError("#include <cuda.h>\\nkernel.cu(1): error: this one is broken\\nnvcc -c")

    def reduce_fused(x, topk_weights, token_topk_to_pos):
        return (x[token_topk_to_pos].float() * topk_weights[..., None]).sum(1).to(x.dtype)

    def get_fused_mapping(topk_idx, num_experts, num_expanded_tokens, alignment):
        in_order, order = topk_idx.flatten().sort(descending=True)
        ends = topk_idx.flatten().bincount(minlength=num_experts).cumsum(0)
        other = torch.zeros(0)
        return in_order.flip(0).int(), other, other, other, other, ends.int(), other, []

class quant:
    def swiglu_forward_and_per_token_cast(x, fmt, num_per_channels, round_sf, sf_clamp_min):
        assert fmt == "e4m3" and not round_sf and sf_clamp_min == 1e-4
        gate, up = x.float().chunk(2, -1)
        values = torch.nn.functional.silu(gate) * up
        scales = values.unflatten(-1, (-1, num_per_channels)).abs().amax(-1) / 448
        return torch.zeros_like(values).to(torch.float8_e4m3fn), scales
"""


def environment(folder: Path, package: str) -> str:
    """The interpreter of an environment that has torch, ``package`` as tile_kernels, and no tkc."""
    (folder / "tile_kernels.py").write_text(package)
    (folder / "tkc.py").write_text("raise ImportError('there is no tkc here')")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.daily(1)
def test_functions_are_measured_and_compared_with_ours(tmp_path: Path) -> None:
    """Those that fail are noted, and the next is measured; those that do less say so."""
    with TileKernels(environment(tmp_path, SIMILAR), CPU) as theirs:
        found = contenders(Prepared(GATE, CPU), [], theirs)
        assert theirs.versions["torch"] == torch.__version__
    assert list(found.measured) == ["TileKernels topk_gate"]
    assert found.measured["TileKernels topk_gate"].milliseconds > 0
    assert found.notes == {
        "TileKernels failed": "RuntimeError: kernel.cu(1): error: this one is broken",
        "TileKernels topk_gate error": 0.0,
        "TileKernels topk_gate differs": "chooses only: computes no scores and no weights",
    }


def test_wrong_outputs_show(tmp_path: Path) -> None:
    """Here all zeros, with the right scales."""
    with TileKernels(environment(tmp_path, SIMILAR), CPU) as theirs:
        found = contenders(Prepared(SWIGLU, CPU), [], theirs)
    assert found.notes["TileKernels error"] == 1.0 and "TileKernels" in found.measured


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "case",
    [
        Case("moe.permute", MoePermuteParameters(16, top_k=4), {"copies": 32}),
        Case("moe.combine", MoeCombineParameters(32, 4, "bfloat16", "bfloat16"), {"tokens": 8, "copies": 32}),
    ],
    ids=lambda case: case.kernel,
)
def test_tensors_are_passed_in_their_form(tmp_path: Path, case: Case) -> None:
    """Experts by token, weights in the tokens' order: what comes back is what ours return."""
    with TileKernels(environment(tmp_path, SIMILAR), CPU) as theirs:
        found = contenders(Prepared(case, CPU), [], theirs)
    assert found.notes["TileKernels error"] == 0.0


def test_cases_that_have_their_equal_say_so() -> None:
    """All gates, permutations and combinations of the benchmark, and SwiGLU to FP8; nothing else."""
    sizes = {"tokens": 2, "copies": 16}
    having: dict[str, set[str]] = {}
    for case in benchmark_cases():
        if case.kernel in ("moe.topk_gate", "moe.permute", "moe.combine", "swiglu", "rotary"):
            small = Case(case.kernel, case.parameters, {name: sizes.get(name, 1) for name in case.sizes})
            functions = {call.function for call in tile_kernels_calls(Prepared(small, CPU))}
            scale = getattr(case.parameters, "scale", "") if case.kernel == "swiglu" else ""
            having.setdefault(f"{case.kernel} {scale}".strip(), set()).update(functions)
    assert having == {
        "moe.topk_gate": {"moe.topk_gate", "moe.top2_sum_gate"},
        "moe.permute": {"moe.get_fused_mapping"},
        "moe.combine": {"moe.reduce_fused"},
        "swiglu None": set(),
        "swiglu token": {"quant.swiglu_forward_and_per_token_cast"},
        "swiglu group": {"quant.swiglu_forward_and_per_token_cast"},
        "rotary": set(),
    }


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("import nothing_that_exists", "No module named 'nothing_that_exists'"),
        ("import os; os.write(2, b'what(): twice registered\\n'); os.abort()", "twice registered"),
    ],
)
def test_a_broken_environment_is_refused(tmp_path: Path, package: str, why: str) -> None:
    """With what is wrong in it, and what is needed."""
    python = environment(tmp_path, package)
    with pytest.raises(UsageError) as refused:
        TileKernels(python, CPU)
    for part in (f"--tile-kernels {python}", why, "tile_kernels 1.0.0, tilelang 0.1.10"):
        assert part in str(refused.value)


@pytest.mark.parametrize(("program", "why"), [("no-such-python", "No such file"), ("echo", "it answered ")])
def test_what_is_no_interpreter_is_refused(program: str, why: str) -> None:
    """Whether it does not start or does something else."""
    with pytest.raises(UsageError, match=rf"--tile-kernels {program}: .*{why}.*; name the Python interpreter"):
        TileKernels(program, CPU)


def test_this_environments_packages_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``PYTHONPATH`` they would come first in the other, where they cannot be loaded."""
    (tmp_path / "tile_kernels.py").write_text("raise ImportError('of the wrong environment')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match="No module named 'tile_kernels'"):
        TileKernels(sys.executable, CPU)


def test_an_environment_whose_pytorch_finds_no_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ours is measured on one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match=r"its PyTorch .* finds no GPU"):
        TileKernels(environment(tmp_path, SIMILAR), torch.device("cuda"))


def test_the_command_refuses_before_it_measures() -> None:
    """With exit code 2."""
    refused = tkc("bench", "kernels", "swiglu", "--target", "cpu", "--tile-kernels", "/no/such/python", code=2)
    assert "/no/such/python" in refused.stderr and not refused.stdout
