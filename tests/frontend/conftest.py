"""Fixtures of the importers' tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def same_numbers_every_time() -> None:
    """PyTorch's random numbers are those of seed 0."""
    torch.manual_seed(0)
