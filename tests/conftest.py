"""What all tests share: a kernel cache, a tuning database, a process with TileLang, and why some tests are skipped."""

from __future__ import annotations

import datetime
import os
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

from tkc.builder import client, toolchain
from tkc.builder.fork_server import ForkServer
from tkc.errors import TargetError


def pytest_configure(config: pytest.Config) -> None:
    """Give the session one cache folder, so that kernels are built once in it and the user's cache stays untouched.

    What the user has tuned must decide nothing either: the session's own database is empty. Every compilation verifies
    its stages, also in processes that tests start.
    """
    os.environ.setdefault("TKC_VERIFY", "1")
    if "TKC_CACHE_DIR" not in os.environ:
        os.environ["TKC_CACHE_DIR"] = tempfile.mkdtemp(prefix="tkc-test-cache-")
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # OpenMP's threads of several workers would wait for each other on the same cores
    os.environ["TKC_DATABASE_DIR"] = tempfile.mkdtemp(prefix="tkc-test-database-")


class _LastingServer(ForkServer):
    """Outlives the builders that have workers of it."""

    def close(self) -> None:
        """Nothing: the next builder takes it."""

    def end(self) -> None:
        """End the server."""
        super().close()


@pytest.fixture(scope="session", autouse=True)
def lasting_server() -> Iterator[None]:
    """Compilations take turns with one process that has loaded TileLang, which each would load anew; builders' own
    tests (``builder/conftest.py``) and commands in processes of their own do not.
    """
    servers: list[_LastingServer] = []

    def server() -> ForkServer:
        if not servers or servers[-1].failed:
            servers.append(_LastingServer())
        return servers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "ForkServer", server)
        yield
    for each in servers:
        each.end()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason; leave out what is another day's."""
    no_gpu = None if torch.cuda.is_available() else "needs a CUDA GPU, and this machine has none"
    no_nvcc = _missing_nvcc()
    for item in items:
        for marker, reason in (("gpu", no_gpu), ("nvcc", no_nvcc)):
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    if (day := os.environ.get("TKC_TEST_DAY")) and (others := _other_days(items, datetime.date.fromisoformat(day))):
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


_DAYS_OF_A_PART = 10
"""Each part of a ``daily`` test is spread over so many days: the whole command has 25 minutes."""


def _other_days(items: list[pytest.Item], day: datetime.date) -> set[pytest.Item]:
    """The cases of ``daily`` tests that are not run on this day.

    ``daily(N)`` splits a test's cases into 10 N parts; the day and the test's name decide which part is run.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("daily"):
            cases[item.nodeid.partition("[")[0]].append(item)
    others: set[pytest.Item] = set()
    for every in cases.values():
        marker = every[0].get_closest_marker("daily")
        assert marker is not None
        parts = marker.args[0] * _DAYS_OF_A_PART
        first = zlib.crc32(every[0].nodeid.partition("[")[0].encode())  # or all that have one case ran on one day
        others.update(item for place, item in enumerate(every, first) if place % parts != day.toordinal() % parts)
    return others


def _missing_nvcc() -> str | None:
    try:
        toolchain.nvcc()
    except TargetError as error:
        return str(error)
    return None
