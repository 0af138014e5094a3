"""A hook of MkDocs: writes the tables that are read off the code, and takes the root's pages into the site.

Nothing that it writes is committed. ``make docs`` runs it; ``mkdocs.yml`` names it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests make the pages without MkDocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


ROOT = Path(__file__).parents[1]
_FROM_ROOT = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
"""Pages at the root of the repository, and where the site has them."""


def generated_pages() -> dict[str, str]:
    """The pages that the code is read for, and those of the root, by their place in the site."""
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
    from site_tables.commands import command_line
    from site_tables.kernels import kernels
    from site_tables.models_and_devices import devices, models
    from site_tables.operators import onnx_operators, pytorch_operators

    from_root = {path: _from_root(source) for source, path in _FROM_ROOT.items() if path != "index.md"}
    return {
        "reference/command-line.md": command_line(),
        "reference/kernels.md": kernels(),
        "reference/pytorch-operators.md": pytorch_operators(),
        "reference/onnx-operators.md": onnx_operators(),
        "reference/models.md": models(),
        "reference/devices.md": devices(),
        **from_root,
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The site's files, with the generated pages among them."""
    from mkdocs.structure.files import File

    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """``markdown`` with links to the root's pages leading to the site's."""

    def link(found: re.Match[str]) -> str:
        return f"]({'../' * page.file.src_uri.count('/')}{_FROM_ROOT[found[1]]}"

    return re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, _FROM_ROOT))})", link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """``html`` with Sphinx's roles, in which docstrings name other objects, as plain code."""
    html = re.sub(r":(?:class|meth|func|attr|data|mod|exc):<code>~([^<]*\.)?([^<]+)</code>", r"<code>\2</code>", html)
    return re.sub(r":(?:class|meth|func|attr|data|mod|exc):<code>", "<code>", html)


def _from_root(name: str) -> str:
    """A page of the root as a page of the site: links into ``docs/`` lose that folder."""
    text = (ROOT / name).read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(rf"\]\(({'|'.join(map(re.escape, _FROM_ROOT))})", lambda found: f"]({_FROM_ROOT[found[1]]}", text)
