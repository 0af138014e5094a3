"""The inputs that kernels are measured on."""

from __future__ import annotations

import torch

from tkc.kernels.cases import Case
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.measure.prepared_case import Prepared

CPU = torch.device("cpu")


def test_rows_are_numbers_where_they_are_fetched_and_values_where_they_are_added() -> None:
    """One kernel's ``rows`` say which of its tokens it takes, another's are what it adds up."""
    gathered = GroupedMatmulParameters(4, 8, 16, "float32", rows="int64")
    numbers = Prepared(Case("matmul.grouped", gathered, {"m": 64, "tokens": 8}), CPU).inputs[1]
    assert set(numbers.tolist()) <= set(range(8)) and len(set(numbers.tolist())) > 1
    combined = MoeCombineParameters(16, 8, "float32")
    values = Prepared(Case("moe.combine", combined, {"tokens": 8, "copies": 64}), CPU).inputs[0]
    assert (values != values.round()).float().mean() > 0.9


def test_rows_are_spread_over_groups_as_trained_routers_spread_them() -> None:
    """Most experts get some of few rows, all of many, and one more than twice the mean."""
    experts = GroupedMatmulParameters(128, 8, 16, "float32")
    for rows, least in ((512, 95), (8192, 127)):
        ends = Prepared(Case("matmul.grouped", experts, {"m": rows}), CPU).inputs[-1]
        counts = ends.diff(prepend=ends.new_zeros(1))
        assert ends[-1] == rows and int((counts > 0).sum()) >= least and counts.max() > 2 * rows / 128
