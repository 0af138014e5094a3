"""What all tests share: a kernel cache and a tuning database of their own, and why some tests are skipped."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

from tkc.builder import toolchain
from tkc.errors import TargetError


def pytest_configure(config: pytest.Config) -> None:
    """Give the session one cache folder, so that kernels are built once in it and the user's cache stays untouched.

    What the user has tuned must decide nothing either: the session's own database is empty.
    """
    if "TKC_CACHE_DIR" not in os.environ:
        os.environ["TKC_CACHE_DIR"] = tempfile.mkdtemp(prefix="tkc-test-cache-")
    os.environ["TKC_DATABASE_DIR"] = tempfile.mkdtemp(prefix="tkc-test-database-")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason."""
    no_gpu = None if torch.cuda.is_available() else "needs a CUDA GPU, and this machine has none"
    no_nvcc = _missing_nvcc()
    for item in items:
        for marker, reason in (("gpu", no_gpu), ("nvcc", no_nvcc)):
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing_nvcc() -> str | None:
    try:
        toolchain.nvcc()
    except TargetError as error:
        return str(error)
    return None
