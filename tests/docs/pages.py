"""The blocks of code on the documentation's pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CUSTOM_KERNEL = DOCS / "tutorial" / "custom-kernel.md"
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
    return [
        Block(found[1], found[2], found[3], text.count("\n", 0, found.start()) + 1) for found in _BLOCK.finditer(text)
    ]


def pages_with_code() -> Iterator[Path]:
    """Every page of the site that has a block to run."""
    yield ROOT / "CONTRIBUTING.md"
    for folder in ("", "tutorial", "how-to"):
        for page in sorted((DOCS / folder).glob("*.md")):
            if blocks_of(page) and page != CUSTOM_KERNEL:
                yield page


def run_page(page: Path) -> None:
    """Run the blocks of a page, one after the other, with the same names; what fails names the page and the line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        source = "\n" * block.line + block.text  # so that lines count as on the page
        exec(compile(source, str(page), "exec"), names)
