"""The code of the documentation's pages runs, in order, as a reader would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITES_FILES = DOCS / "tutorial" / "custom-kernel.md"
"""The page whose blocks are files of the source tree, which the others' are not."""

_BLOCK = re.compile(r"^```(python|diff)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code of a page: what it is written in, the file that it belongs to, and the line before it."""

    language: str
    title: str | None
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """The blocks of Python, and of changes to it, on a page."""
    text = page.read_text()
    return [Block(*found.groups(), text.count("\n", 0, found.start()) + 1) for found in _BLOCK.finditer(text)]


def pages_with_code() -> Iterator[Path]:
    """Every page of the site that has a block to run."""
    for folder in ("", "tutorial", "how-to"):
        for page in sorted((DOCS / folder).glob("*.md")):
            if blocks_of(page) and page != WRITES_FILES:
                yield page


def run_page(page: Path) -> None:
    """Run the blocks of a page, one after the other, with the same names; what fails names the page and the line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        source = "\n" * block.line + block.text  # so that lines count as on the page
        exec(compile(source, str(page), "exec"), names)


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: str(page.relative_to(DOCS)))
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


@pytest.fixture(scope="module")
def with_custom_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source to which the page's files and changes were made."""
    copy = tmp_path_factory.mktemp("source")
    for folder in ("tkc", "kernels", "passes", "schedules", "tuning_db"):
        place = copy / ("tkc" if folder == "tkc" else f"tkc/{folder}")
        shutil.copytree(ROOT / folder, place, ignore=_links_and_caches)
    for block in blocks_of(WRITES_FILES):
        if block.title is None:
            continue
        file = copy / "tkc" / block.title
        if block.language == "diff":
            file.write_text(changed(file.read_text(), block.text))
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
    return copy


def run_in(copy: Path, script: str) -> None:
    """Run a script with the modules of a copy of the source."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", script], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_custom_kernel_is_added_as_the_page_says(with_custom_kernel: Path) -> None:
    """In a copy of the source, where the page's last block is run."""
    run_in(with_custom_kernel, "".join(block.text for block in blocks_of(WRITES_FILES) if block.title is None))


@pytest.mark.nvcc
def test_the_custom_kernel_compiles_for_cuda(with_custom_kernel: Path) -> None:
    """Its other definition, which the page's code does not come to without a GPU."""
    run_in(
        with_custom_kernel,
        """
from tkc.builder import KernelBuilder
from tkc.kernels import SPECS, KernelRequest, Target

from tkc.kernels.all_cases import cases_of

target = Target.parse("cuda:sm_90a")
case = cases_of("squared_relu").checked[1]
(configuration, *_) = SPECS["squared_relu"].configurations(case.parameters, target)
with KernelBuilder() as builder:
    builder.build([KernelRequest("squared_relu", case.parameters, configuration, target)])
""",
    )


def _links_and_caches(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__" or (Path(folder) / name).is_symlink()}


def changed(text: str, changes: str) -> str:
    """``text`` with the hunks of a unified diff; each hunk's old lines must stand in it once."""
    for hunk in re.split(r"^@@.*\n", changes, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"these lines stand {text.count(old)} times in the file:\n{old}"
        text = text.replace(old, new)
    return text
