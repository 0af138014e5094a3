"""What the documentation says is there: links, files that it names, and the tables that it is generated from."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from pages import CUSTOM_KERNEL, DOCS, ROOT

from tkc import api
from tkc.cli.app import app
from tkc.frontend.onnx.converters import CONVERTERS as ONNX_CONVERTERS
from tkc.frontend.torch.converters import CONVERTERS
from tkc.kernels import SPECS
from tkc.kernels.devices import _UNLISTED, ARCHITECTURES

pytest.importorskip("transformers")

OF_ITS_TIME = DOCS / "notebook"
"""Pages of a day, which name files as they were then."""

_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
_QUOTED = re.compile(r"^ *```python title=\"([^\"]+)\"\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ *(?:\.venv/bin/)?tkc ([a-z].*)$|`tkc ([a-z][^`]*)`", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FILE = re.compile(r"`((?:tkc|passes|kernels|schedules|tests|docs|tuning_db)/[\w/.-]+)`")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The hook that writes the site's generated pages."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(generate: ModuleType) -> dict[str, str]:
    """The generated pages by their place."""
    pages: dict[str, str] = generate.generated_pages()
    return pages


def written_pages() -> Iterator[Path]:
    """The pages that people wrote."""
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    yield from sorted(DOCS.rglob("*.md"))


def test_links_lead_somewhere(generated: dict[str, str]) -> None:
    """To a file of the repository, or to a page that is generated."""
    made = {(DOCS / path).resolve() for path in generated}
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in written_pages()
        for link in _LINK.findall(page.read_text())
        if not (target := (page.parent / link).resolve()).exists() and target not in made
    ]
    assert broken == []


def test_files_that_pages_name_exist() -> None:
    """Where a page names a file or folder of the source, it is there."""
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in written_pages()
        if page != CUSTOM_KERNEL and OF_ITS_TIME not in page.parents
        for name in _FILE.findall(page.read_text())
        if "NAME" not in name and not (ROOT / name).exists()
    ]
    assert missing == []


def test_programs_that_pages_run_are_there() -> None:
    """Modules of the tests, and targets of the Makefile."""
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets, unknown = phony.split(), []
    for page in written_pages():
        if OF_ITS_TIME not in page.parents and page.name != "CHANGELOG.md":
            text = page.read_text()
            modules = (ROOT / name.replace(".", "/") for name in re.findall(r"python -m (tests[.\w]*\w)", text))
            unknown += [path for path in modules if not (path.with_suffix(".py").exists() or path.is_dir())]
            unknown += [name for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M) if name not in targets]
    assert unknown == []


def test_quoted_code_stands_in_its_file() -> None:
    """Where a block is of a file of the source, by its title, it is as the file has it."""
    quoted = [
        (page.name, file, textwrap.dedent(code))
        for page in written_pages()
        if page != CUSTOM_KERNEL and OF_ITS_TIME not in page.parents
        for file, code in _QUOTED.findall(page.read_text())
    ]
    assert quoted
    assert [code for code in quoted if code[2] not in (ROOT / code[1]).read_text()] == []


def test_every_page_is_in_the_navigation(generated: dict[str, str]) -> None:
    """And the navigation has no page that there is not."""
    listed = set(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert listed == written | generated.keys()


def test_tables_have_all_that_there_is(generated: dict[str, str]) -> None:
    """Every kernel with its section, every converter, every command."""
    kernels = generated["reference/kernels.md"]
    assert all(f"| [`{name}`]" in kernels and f"\n## {name} {{#" in kernels for name in SPECS)
    assert all(f"- `{name}`" in generated["reference/pytorch-operators.md"] for name in CONVERTERS)
    assert all(f"| `{name}` | tkc |" in generated["reference/onnx-operators.md"] for _, name in ONNX_CONVERTERS)
    commands = generated["reference/command-line.md"]
    assert all(f"## tkc {name}\n" in commands for name in ("compile", "run", "db stats", "bench kernels", "tune model"))
    assert "--batch-invariant" in commands


def test_commands_on_pages_are_there() -> None:
    """With the options that they are given, or that are named behind them."""
    program: Any = typer.main.get_command(app)
    unknown, count = [], 0
    for page in written_pages():
        if OF_ITS_TIME in page.parents or page.name == "CHANGELOG.md":
            continue
        for line in (block or inline for block, inline in _COMMAND.findall(page.read_text())):
            command, words = program, line.split()
            while words and words[0] in getattr(command, "commands", ()):
                command = command.commands[words.pop(0)]
            groups = getattr(command, "commands", {})  # what is said of a group is of its commands
            known = set().union(*map(options_of, (command, *groups.values())))
            if len(words) == len(line.split()):
                unknown.append((page.name, line, "no such command"))
            unknown += [(page.name, line, option) for option in _OPTION.findall(line) if option not in known]
            count += 1
    assert unknown == [] and count > 50


def options_of(command: Any) -> set[str]:
    """The names of a command's options."""
    return {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}


def test_every_device_is_named() -> None:
    """By the README, those with a row in its table, and by the docstring of ``tkc.compile``."""
    readme, docstring = (ROOT / "README.md").read_text(), str(api.compile.__doc__)
    assert [arch for arch in ARCHITECTURES if f"\n| `cuda:{arch}` |" not in readme] == []
    assert [arch for arch in _UNLISTED if f"`{arch}`" not in readme] == []
    assert [arch for arch in (*ARCHITECTURES, *_UNLISTED) if f"``{arch}``" not in docstring] == []


def test_architecture_has_every_room() -> None:
    """Each folder and module of the package is named."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    places = [path for path in (ROOT / "tkc").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    named = (f"`{path.name}/" if path.is_symlink() else f"`tkc/{path.name}" for path in places)
    assert [name for name in named if name not in text and "__init__" not in name] == []


def test_architecture_is_ten_minutes_of_reading() -> None:
    """At 200 words a minute."""
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= 2000
