"""The code of the documentation's pages runs, in order, as a reader would run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from pages import ROOT, pages_with_code, run_page

from tkc.frontend.onnx.converters import CONVERTERS as ONNX_CONVERTERS
from tkc.frontend.torch.converters import CONVERTERS

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _converters_of_a_page_are_its_own() -> Iterator[None]:
    with patch.dict(CONVERTERS), patch.dict(ONNX_CONVERTERS):
        yield


@pytest.mark.daily(4)
@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with an empty database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TKC_DATABASE_DIR", str(tmp_path / "database"))
    run_page(page)


def test_a_broken_block_is_found(tmp_path: Path) -> None:
    """With the page, and the line that the block has on it."""
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\nMore.\n\n```python\n\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as error:
        run_page(page)
    assert (error.traceback[-1].path, error.traceback[-1].lineno + 1) == (page, 11)
