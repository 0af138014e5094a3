"""What the spec of the matmul kernels supports, which configurations it has, and where it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.kernels.matmul_checks import CPU, HOPPER, SPEC, tilings
from tkc.kernels import Target
from tkc.kernels.matmul.float32_tilings import shared_memory
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_configurations_fit_the_architecture(arch: str) -> None:
    """Each configuration's tiles fit into shared memory, and there are several to choose from, small ones included."""
    target = Target("cuda", arch)
    configurations = tilings(MatmulParameters(4096, 4096, "bfloat16"), target)
    assert max(c.shared_memory() for c in configurations) <= target.shared_memory
    assert len(set(configurations)) == len(configurations) >= 6
    assert configurations[0].block_m >= 128 and min(c.block_m for c in configurations) == 16


def test_operands_that_tma_cannot_load_get_no_wgmma() -> None:
    """On Hopper, WGMMA is only for operands whose rows start at multiples of 16 bytes."""
    for k in (1001, 1004):  # rows that start at multiples of 2 and of 8 bytes
        assert all(c.block_m < 64 for c in tilings(MatmulParameters(512, k, "bfloat16"), HOPPER))
    odd_n = MatmulParameters(1001, 512, "bfloat16", weight_layout="kn")
    assert all(c.block_m < 64 for c in tilings(odd_n, HOPPER))
    assert tilings(MatmulParameters(1001, 512, "bfloat16"), HOPPER)[0].block_m == 128


def test_support_and_benefit() -> None:
    """The CPU and tiny products are left to the graph compiler, each with a reason."""
    single, half = MatmulParameters(64, 64, "float32"), MatmulParameters(64, 64, "float16")
    assert SPEC.unsupported(single, CPU) is None and SPEC.unsupported(half, HOPPER) is None
    assert SPEC.beneficial(single, CPU) is not None and SPEC.beneficial(half, HOPPER) is None
    assert "n=1 " in (SPEC.beneficial(MatmulParameters(1, 64, "float16"), HOPPER) or "")
    assert "k=8 " in (SPEC.beneficial(MatmulParameters(64, 8, "float16"), HOPPER) or "")
    # A router of eight experts and a head of two classes read all of their rows.
    assert all(SPEC.beneficial(MatmulParameters(n, 64, "float16"), HOPPER) is None for n in (2, 3, 8))


@pytest.mark.parametrize(
    ("arch", "changes", "reason"),
    [
        ("sm_90a", {}, None),
        ("sm_90a", {"k": 62}, "rows of 62 elements of float32"),
        ("sm_90a", {"n": 66}, "rows of 66 elements of float32"),
        ("sm_90a", {"n": 68, "out_dtype": "bfloat16"}, "rows of 68 elements of bfloat16"),
        ("sm_90a", {"weight_layout": "kn", "outputs": (30, 34)}, "rows of 30 elements"),
        ("sm_90a", {"residual": True, "out_dtype": "bfloat16"}, "residual of bfloat16"),
        ("sm_80", {}, "sm_90a"),
        ("sm_120", {}, "sm_90a"),
    ],
)
def test_which_float32_products_a_gpu_has_a_kernel_for(arch: str, changes: dict[str, Any], reason: str | None) -> None:
    """Those whose operands and outputs tensor maps describe, on Hopper; what it takes fits there."""
    target, parameters = Target("cuda", arch), replace(MatmulParameters(64, 64, "float32"), **changes)
    found = SPEC.unsupported(parameters, target)
    assert found is None if reason is None else reason in (found or "")
    for layout in ("nk", "kn"):
        offered = tilings(MatmulParameters(512, 512, "float32", layout), HOPPER)
        assert {32, 128} <= {c.block_n for c in offered} and {64, 128} == {c.block_m for c in offered}
        assert min(c.stages for c in offered) > 1
        assert all(shared_memory(c, layout, "float32") <= HOPPER.shared_memory for c in offered)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outputs": (32, 16)}, "b has 64"),
        ({"outputs": (32, 16, 8, 4, 4)}, "at most 4"),
        ({"outputs": (32, 32), "residual": True}, "residual"),
    ],
)
def test_unsupported_outputs(changes: dict[str, Any], reason: str) -> None:
    """Outputs that the kernel cannot write are refused with the reason, on the CPU too."""
    assert reason in (SPEC.unsupported(MatmulParameters(64, 64, "bfloat16", **changes), HOPPER) or "")
    assert reason in (SPEC.unsupported(MatmulParameters(64, 64, "bfloat16", **changes), CPU) or "")


def test_several_outputs_have_the_tilings_of_one() -> None:
    """Tiles need not divide the outputs, but no tile is more than twice as wide as the widest of them."""
    merged = MatmulParameters(6144, 4096, "bfloat16", outputs=(4096, 1024, 1024))
    assert tilings(merged, HOPPER) == tilings(replace(merged, outputs=()), HOPPER)
    narrow = MatmulParameters(192, 4096, "bfloat16", outputs=(64, 64, 64))
    assert {c.block_n for c in tilings(narrow, HOPPER)} == {112, 96, 80, 64, 48, 32}


def test_persistent_blocks_store_by_tma() -> None:
    """They are offered where the rows of every output start at multiples of 16 bytes."""
    for outputs, offered in (((1024, 512, 24), True), ((1024, 516, 20), False)):
        parameters = MatmulParameters(sum(outputs), 512, "bfloat16", outputs=outputs)
        assert any(c.blocks for c in tilings(parameters, HOPPER)) == offered


@pytest.mark.parametrize(("out_dtype", "offered"), [(None, True), ("bfloat16", True), ("float16", False)])
def test_blocks_that_stay_add_a_residual_of_the_operands_dtype(out_dtype: Any, offered: bool) -> None:
    """It comes in slices that take the place of operands'."""
    parameters = MatmulParameters(512, 512, "bfloat16", out_dtype=out_dtype, residual=True)
    assert any(c.blocks for c in tilings(parameters, HOPPER)) == offered


def test_work_counts_every_tensor() -> None:
    """FLOPs and bytes of a small product, counted by hand."""
    work = SPEC.work(MatmulParameters(8, 4, "bfloat16", bias=True, residual=True, out_dtype="float32"), {"m": 2})
    assert work.flops == 2 * 2 * 8 * 4
    assert work.bytes == 2 * (2 * 4 + 4 * 8 + 8) + 4 * (2 * 8 + 2 * 8)


def test_warpgroups_share_the_depth_of_small_tiles() -> None:
    """Of 64 rows, which one multiplies, or of 128 by two."""
    shares = {Tiling(64, threads=384): 3, Tiling(64, threads=128): 1, Tiling(128): 1, Tiling(128, threads=512): 2}
    assert {tiling: tiling.shares for tiling in shares} == shares
    assert {tiling.warpgroup_rows for tiling in shares} == {64} and Tiling(256).warpgroup_rows == 128


def test_one_row_of_float32_is_left_to_generated_code_on_a_gpu() -> None:
    """What reads its weight once is no work for tensor cores."""
    single, half = MatmulParameters(64, 64, "float32"), MatmulParameters(64, 64, "float16")
    assert SPEC.least_beneficial_size(single, HOPPER) == 2
    assert SPEC.least_beneficial_size(single, CPU) == SPEC.least_beneficial_size(half, HOPPER) == 0
