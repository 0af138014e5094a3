"""Builders here start all their processes themselves, as they do outside of tests."""

from __future__ import annotations

import pytest

from tkc.builder import client
from tkc.builder.fork_server import ForkServer


@pytest.fixture(autouse=True)
def _own_server(lasting_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ForkServer", ForkServer)
