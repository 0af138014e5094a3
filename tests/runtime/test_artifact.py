"""Artifacts: saved whole, loaded equal, and refused when anything about them is not as it was saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tkc
from tests.runtime.manifests import edit_manifest
from tkc.runtime.artifact.reading import open_artifact


@pytest.fixture
def artifact(executable: tkc.Executable, tmp_path: Path) -> Path:
    """The compiled model, saved."""
    return executable.save(tmp_path / "model.tkc")


def test_a_loaded_artifact_computes_the_same(executable: tkc.Executable, artifact: Path) -> None:
    """Bit for bit, with the same signature and report."""
    loaded = tkc.load(artifact)
    x, y = torch.randn(7, 16), torch.randn(7, 32)
    assert torch.equal(loaded(x, extra={"y": y})["gated"], executable(x, extra={"y": y})["gated"])
    assert loaded.signature == executable.signature
    assert loaded.report == executable.report


def test_an_artifact_in_place_of_a_loaded_one_is_the_new_one(tmp_path: Path) -> None:
    """In one process, as in a notebook; the one that was loaded before goes on as it was."""
    x, path = torch.randn(4, 16), tmp_path / "model.tkc"
    loaded = []
    for layer in (torch.nn.ReLU(), torch.nn.Tanh()):
        tkc.compile(layer, (x,), database=False).save(path, overwrite=True)
        loaded.append(tkc.load(path))
        torch.testing.assert_close(loaded[-1](x), layer(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loaded[0](x), torch.relu(x))


def test_it_holds_what_it_says(artifact: Path) -> None:
    """The named files and no others; weights without pickle."""
    files = {str(path.relative_to(artifact)) for path in artifact.rglob("*") if path.is_file()}
    manifest = open_artifact(artifact).manifest
    assert files == {"manifest.json", "manifest.sha256", *manifest.files}
    stored = safetensors.torch.load_file(artifact / "params.safetensors")
    assert set(stored) == {spec.name for spec in manifest.parameters}


@pytest.mark.parametrize("file", ["model.so", "params.safetensors", "kernels"])
def test_a_changed_byte_is_noticed(artifact: Path, file: str) -> None:
    """In generated code, weights or a kernel library."""
    path = artifact / file
    path = next(path.iterdir()) if path.is_dir() else path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(tkc.ArtifactError, match=f"was changed: .*{path.name}"):
        tkc.load(artifact)


def test_a_missing_file_is_noticed(artifact: Path) -> None:
    """The error names the file."""
    (artifact / "model.so").unlink()
    with pytest.raises(tkc.ArtifactError, match=r"incomplete: model\.so is missing"):
        tkc.load(artifact)


def test_other_versions_targets_and_machines_are_refused(artifact: Path) -> None:
    """A newer format, another TVM, a GPU that is not here, an instruction set that is not here."""
    copies = {name: shutil.copytree(artifact, artifact.with_name(name)) for name in ("format", "tvm", "target", "cpu")}
    edit_manifest(copies["format"], lambda m: m.update(format=9))
    with pytest.raises(tkc.ArtifactError, match="artifact format 9, and this TKC reads formats 3 to 5"):
        tkc.load(copies["format"])
    edit_manifest(copies["tvm"], lambda m: m["versions"].update({"apache-tvm": "9.9"}))
    with pytest.raises(tkc.ArtifactError, match=r"made with apache-tvm 9\.9"):
        tkc.load(copies["tvm"])
    edit_manifest(copies["target"], lambda m: m.update(target="cuda:sm_80"))
    with pytest.raises(tkc.ArtifactError, match="cannot run here"):
        tkc.load(copies["target"])
    edit_manifest(copies["cpu"], lambda m: m.update(cpu_features=["avx9000"]))
    with pytest.raises(tkc.ArtifactError, match="lacks \\(avx9000\\)"):
        tkc.load(copies["cpu"])


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    """A folder without a manifest, a file, nothing at all, a broken manifest."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(tkc.ArtifactError, match="is no artifact"):
            tkc.load(path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(tkc.ArtifactError, match="not valid"):
        tkc.load(tmp_path)


def test_saving_replaces_an_artifact_and_nothing_else(executable: tkc.Executable, artifact: Path) -> None:
    """Saving again replaces where that is said; what is no artifact stays untouched in any case."""
    with pytest.raises(tkc.UsageError, match=r"is an artifact already.*overwrite=True.*--force"):
        executable.save(artifact)
    executable.save(artifact, overwrite=True)
    tkc.load(artifact)
    other = artifact.with_name("other")
    other.mkdir()
    (other / "precious").write_text("data")
    with pytest.raises(tkc.UsageError, match="is no artifact"):
        executable.save(other, overwrite=True)
    assert (other / "precious").read_text() == "data"


def test_a_full_disk_leaves_nothing_half_written(
    executable: tkc.Executable, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of the weights fails; the earlier artifact still loads, and no scratch folder is left."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(tkc.ArtifactError, match="No space left on device"):
        executable.save(artifact, overwrite=True)
    assert [path.name for path in artifact.parent.iterdir()] == ["model.tkc"]
    tkc.load(artifact)
