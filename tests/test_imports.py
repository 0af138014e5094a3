"""Imports between files go in no circle, at the top of a file, in a function or for types only; no file is unused."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest


def _circle(package: str) -> list[str]:
    """Modules of which each imports the next, the first and the last the same; empty if there are none."""
    graph = grimp.build_graph(package, cache_dir=None)
    imported = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def test_no_import_goes_in_a_circle() -> None:
    """A file can be read, imported and tested after those that it imports."""
    assert not _circle("tkc")


def test_circles_through_functions_and_types_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three files, one imports the next at the top, one in a function, and one for its annotations."""
    package = tmp_path / "in_a_circle"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from in_a_circle import second\n")
    (package / "second.py").write_text("def later():\n    from in_a_circle.third import name\n")
    third = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from in_a_circle.first import second\n"
    (package / "third.py").write_text(third)
    monkeypatch.syspath_prepend(tmp_path)
    circle = _circle("in_a_circle")
    assert circle[0] == circle[-1]
    assert set(circle) == {f"in_a_circle.{name}" for name in ("first", "second", "third")}
    assert circle[circle.index("in_a_circle.first") + 1] == "in_a_circle.second"


def test_every_file_is_imported_by_another() -> None:
    """A pass or a schedule rule that no table names would do nothing. Families are read by name, and two files run as
    programs."""
    graph = grimp.build_graph("tkc", cache_dir=None)
    alone = {
        module
        for module in graph.modules
        if not graph.find_modules_that_directly_import(module) and not graph.find_children(module)
    }
    assert {name for name in alone if not name.startswith("tkc.kernels.")} == {
        "tkc.bench.tile_kernels_worker",
        "tkc.builder.worker",
    }
