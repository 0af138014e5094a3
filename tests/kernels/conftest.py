"""One kernel builder for all kernel tests, because its processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tkc.builder import KernelBuilder


@pytest.fixture(scope="session")
def builder() -> Iterator[KernelBuilder]:
    """A kernel builder with its processes running."""
    with KernelBuilder() as running:
        yield running
