"""Tables and docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    head = list(head)
    return "\n".join([line(head), line("---" for _ in head), *map(line, rows)]) + "\n"


def plain_text(docstring: str | None) -> str:
    """A docstring as Markdown."""
    text = inspect.cleandoc(docstring or "").replace("``", "`")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)


def first_sentence(docstring: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return plain_text(docstring).split("\n\n")[0].replace("\n", " ")


def bullets(names: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {name}" for name in names) + "\n"
