"""Fixtures of the importers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frontend import models


@pytest.fixture
def same_numbers_every_time() -> None:
    """PyTorch's random numbers are those of seed 0."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama exported with gradients, so that its ``no_grad`` blocks are subgraphs, and saved."""
    case = models.LLAMA
    program = torch.export.export(
        case.model(num_hidden_layers=1), (), case.inputs(2, 7), dynamic_shapes=dict(case.dynamic_shapes)
    )
    path = tmp_path_factory.mktemp("programs") / "llama.pt2"
    torch.export.save(program, path)
    return path
