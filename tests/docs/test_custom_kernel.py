"""The tutorial's custom kernel, added to a copy of the source as the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import CUSTOM_KERNEL, ROOT, blocks_of


@pytest.fixture(scope="module")
def with_custom_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source to which the page's files and changes were made."""
    copy = tmp_path_factory.mktemp("source")
    for folder in ("tkc", "kernels", "passes", "schedules", "tuning_db"):
        place = copy / ("tkc" if folder == "tkc" else f"tkc/{folder}")
        shutil.copytree(ROOT / folder, place, ignore=_links_and_caches)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=_links_and_caches)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for block in blocks_of(CUSTOM_KERNEL):
        if block.title is None:
            continue
        file = copy / place_of(block.title)
        if block.language == "diff":
            file.write_text(changed(file.read_text(), block.text))
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
    return copy


def place_of(title: str) -> str:
    """Where a copy has a file of the checkout: the folders that are linked into ``tkc`` stand in it."""
    return title if title.startswith("tests/") else f"tkc/{title}"


def run_in(copy: Path, script: str) -> None:
    """Run a script with the modules of a copy of the source."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", script], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.daily(3)
def test_a_custom_kernel_is_added_as_the_page_says(with_custom_kernel: Path) -> None:
    """In a copy of the source, where the page's last block is run."""
    run_in(with_custom_kernel, "".join(block.text for block in blocks_of(CUSTOM_KERNEL) if block.title is None))


@pytest.mark.parametrize("command", [("check", "--no-cache"), ("format", "--check", "--no-cache")], ids=" ".join)
def test_its_files_are_as_lint_wants_them(with_custom_kernel: Path, command: tuple[str, ...]) -> None:
    """By ruff, with the rules of the repository."""
    files = [place_of(block.title) for block in blocks_of(CUSTOM_KERNEL) if block.title is not None]
    ruff = [sys.executable, "-m", "ruff", *command, *files]
    done = subprocess.run(ruff, cwd=with_custom_kernel, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.daily(3)
def test_its_tests_pass(with_custom_kernel: Path) -> None:
    """That of the rule, which stands on the page, and one of those that take every family."""
    chosen = ["tests/passes/test_squared_relu_rule.py", "tests/kernels/test_reduction_order.py"]
    arguments = ["-q", "-p", "no:cacheprovider", "-k", "squared_relu or every_family", *chosen]
    run_in(with_custom_kernel, f"import sys, pytest; sys.exit(pytest.main({arguments!r}))")


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
