"""Tables of names, as they are: rich would take what stands in brackets for markup, such as the shape ``[n, 4]``."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


class PlainTable(Table):
    """A table whose title, caption, columns and cells are text and no markup, whoever prints it."""

    def __init__(self, title: str | None = None, **options: Any) -> None:
        """As :class:`rich.table.Table`, with the title and the caption to the left."""
        named = None if title is None else Text(title, style="table.title")
        super().__init__(title=named, title_justify="left", caption_justify="left", **options)

    def add_column(self, header: Any = "", *others: Any, **options: Any) -> None:
        """Add a column under ``header``."""
        super().add_column(_as_text(header), *others, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of ``cells``."""
        super().add_row(*map(_as_text, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if isinstance(self.caption, str):
            self.caption = Text(self.caption, style="table.caption")
        return super().__rich_console__(console, options)


def _as_text(value: Any) -> Any:
    return Text(value) if isinstance(value, str) else value
