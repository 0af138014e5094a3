"""Tests for what a kernel's cache key covers: its definition's imports, and nothing that shapes no kernel."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tkc.kernels
from tkc.builder import kernel_sources
from tkc.builder.kernel_sources import sources_digest
from tkc.kernels import SPECS


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernels' sources in place of them."""
    (source,) = map(Path, tkc.kernels.__path__)
    copy = tmp_path / "kernels"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tkc.kernels, "__path__", [str(copy)])
    yield copy
    _forget()


def _forget() -> None:
    kernel_sources._digest.cache_clear()
    kernel_sources._imported.cache_clear()


def _digests() -> dict[str, str]:
    _forget()
    return {name: sources_digest(spec) for name, spec in SPECS.items()}


def _changed(path: Path, text: str = "\n# edited\n") -> set[str]:
    """The kernels whose digest changes with a file's end."""
    before = _digests()
    with path.open("a") as file:
        file.write(text)
    after = _digests()
    return {name for name in SPECS if before[name] != after[name]}


def test_a_new_family_changes_no_key(kernels: Path) -> None:
    """Nor does its line in the table."""
    before = _digests()
    (kernels / "new_family").mkdir()
    for name in ("__init__", "spec", "definition", "parameters", "reference", "cases"):
        (kernels / "new_family" / f"{name}.py").write_text('"""New."""\nfrom tkc.kernels.spec import KernelSpec\n')
    with (kernels / "registry.py").open("a") as file:
        file.write("from tkc.kernels.new_family import spec\n")
    assert _digests() == before


@pytest.mark.parametrize("name", ["cases.py", "library.py", "reference.py"])
def test_what_kernels_are_compared_with_changes_no_key(name: str, kernels: Path) -> None:
    """Neither sizes worth measuring nor what the results are compared with."""
    assert _changed(kernels / "matmul" / name) == set()


@pytest.mark.parametrize("name", ["registry.py", "requests.py", "records.py", "__init__.py"])
def test_the_table_and_records_change_no_key(name: str, kernels: Path) -> None:
    """They say which kernels are built, and not how."""
    assert _changed(kernels / name) == set()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("path", "shaped"),
    [
        ("rotary/definition.py", {"rotary"}),
        ("rotary/spec.py", {"rotary"}),
        ("moe_combine/weighted_sum.py", {"moe.combine", "normalization"}),
        ("attention/latent_alternating.py", {"attention.latent_decode"}),
        ("attention/pieces.py", {"attention.prefill"}),
        ("matmul/epilogue.py", {"convolution", "matmul", "matmul.gated", "matmul.grouped", "matmul.batched"}),
        ("swiglu/cuda.py", {"swiglu"}),
        ("devices.py", set(SPECS)),
        ("spec.py", set(SPECS)),
    ],
)
def test_what_a_definition_imports_changes_its_key(path: str, shaped: set[str], kernels: Path) -> None:
    """Its own files, and others that it imports, through other files too."""
    assert _changed(kernels / path) == shaped


def test_imports_are_followed_in_every_form(kernels: Path) -> None:
    """Also those that stand in a function, of a module by its package, and of a name that the package hands on."""
    for number, line in enumerate(
        ("import tkc.kernels.extra0", "from tkc.kernels import extra1", "from tkc.kernels.rotary import extra2")
    ):
        folder = kernels / "rotary" if number == 2 else kernels
        (folder / f"extra{number}.py").write_text('"""Extra."""\n')
        assert _changed(kernels / "rotary" / "definition.py", f"\ndef f{number}():\n    {line}\n") == {"rotary"}
        assert _changed(folder / f"extra{number}.py") == {"rotary"}
    assert _changed(kernels / "rotary" / "definition.py", "\nfrom tkc.kernels import Choice\n") == {"rotary"}


def test_what_cannot_be_followed_is_an_error(kernels: Path) -> None:
    """A key that misses a source would give an old library for a new one."""
    with (kernels / "rotary" / "definition.py").open("a") as file:
        file.write("\nfrom . import spec\n")
    with pytest.raises(ValueError, match="relative imports"):
        _digests()


def test_a_file_that_other_threads_spoil_is_parsed_again(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 raises where they parse at the same time."""
    before, parse, failures = _digests(), ast.parse, [1, 1]

    def spoiled(text: str) -> ast.Module:
        if failures and failures.pop():
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(text)

    monkeypatch.setattr(ast, "parse", spoiled)
    assert _digests() == before and not failures
