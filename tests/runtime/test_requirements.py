"""What must be there where an executable runs: shared libraries that its kernels call."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

import tkc
from tests.runtime.manifests import edit_manifest
from tkc.compiler.report import requirements_of
from tkc.kernels.library_calls import LIBRARIES, Library
from tkc.runtime.report_rows import OperatorUse
from tkc.runtime.requirements import Requirements, all_requirements

ABSENT = Library("cuBLASLt", ("libtkc-absent.so.2", "libtkc-absent.so.1"), "pip install what-brings-it")
REQUIREMENTS = Requirements(shared_libraries=("cublaslt",))


def test_a_library_that_is_not_here_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its versions is enough."""
    monkeypatch.setitem(LIBRARIES, "cublaslt", ABSENT)  # type: ignore[arg-type]  # a dictionary
    reason = REQUIREMENTS.missing()
    assert reason is not None
    for part in ("cuBLASLt", "libtkc-absent.so.2 or libtkc-absent.so.1", "pip install what-brings-it"):
        assert part in reason
    here = Library("cuBLASLt", ("libtkc-absent.so.2", "libc.so.6"), "")
    monkeypatch.setitem(LIBRARIES, "cublaslt", here)  # type: ignore[arg-type]
    assert REQUIREMENTS.missing() is None


def test_a_loaded_artifact_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal comes before anything of the model is loaded."""
    layer = torch.nn.Linear(4, 4)
    path = tkc.compile(layer, (torch.randn(2, 4),), target="cpu", database=False).save(tmp_path / "layer.tkc")

    def change(manifest: dict[str, Any]) -> None:
        manifest["requires"]["shared_libraries"] = ["cublaslt"]

    edit_manifest(Path(path), change)
    monkeypatch.setitem(LIBRARIES, "cublaslt", ABSENT)  # type: ignore[arg-type]
    with pytest.raises(tkc.ArtifactError, match=r"its kernels call cuBLASLt \(libtkc-absent.*what-brings-it"):
        tkc.load(path)


def test_what_is_no_library_is_an_error() -> None:
    """What an artifact names is not loaded for being named."""
    with pytest.raises(ValueError, match=r"'libc.so.6' is no library that kernels call; there are cublaslt"):
        Requirements(shared_libraries=("libc.so.6",))


def test_several_are_one() -> None:
    """And what was written before there were libraries reads as none."""
    both = all_requirements([Requirements(("aten::nonzero",)), REQUIREMENTS, REQUIREMENTS])
    assert both == Requirements(("aten::nonzero",), {}, ("cublaslt",))
    assert TypeAdapter(Requirements).validate_python({"operators": [], "libraries": {}}) == Requirements()


def test_packages_are_looked_for_only_where_an_operator_is_not_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look reads the files of all that is installed, which once took more than half of a small compilation."""
    looked: list[bool] = []

    def distributions() -> dict[str, list[str]]:
        looked.append(True)
        return {"mylib": ["pytest"], "aten": ["torch"]}

    monkeypatch.setattr(importlib.metadata, "packages_distributions", distributions)
    own = [OperatorUse(f"{namespace}::nonzero", 1, (), "") for namespace in ("aten", "prims", "mkldnn")]
    assert requirements_of(own) == Requirements(tuple(each.operator for each in own)) and not looked
    found = requirements_of([*own, OperatorUse("mylib::first", 1, (), ""), OperatorUse("mylib::second", 2, (), "")])
    assert found.libraries == {"pytest": importlib.metadata.version("pytest")} and len(looked) == 1
