"""What the tests of ``torch.compile(backend="tkc")`` share: nothing compiled before, and no graph refused unsaid."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from tests.dynamo.graphs import Graphs
from tkc.dynamo import backend

LOGGER = "tkc.dynamo"
_NEWER = ", which has more."  # what an older PyTorch's complex numbers are refused with


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Each test compiles anew."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.texts.append(record.getMessage())


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """The warnings of the backend, as they come."""
    handler = _Warnings()
    logging.getLogger(LOGGER).addHandler(handler)
    yield handler.texts
    logging.getLogger(LOGGER).removeHandler(handler)


@pytest.fixture(autouse=True)
def nothing_refused(request: pytest.FixtureRequest, warned: list[str]) -> Iterator[None]:
    """A graph that runs in PyTorch unsaid would make a test say nothing of TKC; a test that expects one takes
    ``warned``."""
    yield
    if "warned" not in request.function.__code__.co_varnames:
        assert [text for text in warned if _NEWER not in text] == []


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """The graphs that are compiled."""
    noted = Graphs()
    monkeypatch.setattr(backend, "CompiledGraph", noted.noting())
    return noted
