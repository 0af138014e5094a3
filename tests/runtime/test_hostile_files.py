"""Artifacts and .pt2 files that somebody made to do harm: refused with a reason, before anything in them runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tkc
from tests.runtime.manifests import write_manifest
from tkc.kernels.kernel_library import file_sha256
from tkc.runtime.artifact.folder import DIGEST, MANIFEST
from tkc.runtime.artifact.reading import open_artifact

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def saved(executable: tkc.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled model, saved; not to be changed."""
    return executable.save(tmp_path_factory.mktemp("hostile") / "model.tkc")


@pytest.fixture
def artifact(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "model.tkc"))


def test_every_flipped_bit_is_noticed(artifact: Path) -> None:
    """In each byte of the manifest and of its digest, and wherever either is cut off."""
    for name in (MANIFEST, DIGEST):
        whole = (artifact / name).read_bytes()
        changed = [
            *(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))),
            *(whole[:length] for length in range(0, len(whole), 97)),
        ]
        for content in changed:
            (artifact / name).write_bytes(content)
            with pytest.raises(tkc.ArtifactError):
                open_artifact(artifact)
        (artifact / name).write_bytes(whole)
    tkc.load(artifact)


def test_manifests_made_by_an_enemy(artifact: Path) -> None:
    """With a digest that fits: wrong types, names and numbers, and what no JSON writer writes."""
    text = (artifact / MANIFEST).read_text()
    manifest = json.loads(text)
    main = manifest["entries"]["main"]
    leaf = next(leaf for leaf in main["signature"]["leaves"] if "shape" in leaf)

    def refuse(content: str) -> None:
        write_manifest(artifact, content.encode())
        with pytest.raises(tkc.ArtifactError):
            tkc.load(artifact)

    for value in (True, -1, 10**30, 1.5, "b*999", "__import__('os')", None, [1]):
        leaf["shape"], kept = [value, *leaf["shape"][1:]], leaf["shape"]
        refuse(json.dumps(manifest))
        leaf["shape"] = kept
    for name in ("/etc/passwd", "../model.so", "kernels/../../x.so", "kernels/\u0000", "kernels//etc/x.so", ""):
        refuse(text.replace('"model.so"', json.dumps(name)))
        refuse(text.replace(json.dumps(manifest["kernels"][0]["file"]), json.dumps(name)))
    refuse(text.replace('"float32"', '"os"'))
    refuse(text.replace("{", '{"format": 3, ', 1))
    refuse(text.replace("{", '{"more": 3, ', 1))
    refuse("[" * 100_000)
    refuse('{"a":' * 100_000)
    refuse(text.replace('"report": {', '"report": {"x": NaN, ').replace('"report":{', '"report":{"x": NaN, '))
    refuse(text.replace('"report": {', '"report": {"x": 1e999, ').replace('"report":{', '"report":{"x": 1e999, '))
    refuse("9" * 100_000)
    write_manifest(artifact, text.encode())
    tkc.load(artifact)


@pytest.mark.parametrize(
    "spec",
    [
        '[1, {"type": "collections.defaultdict", "context": {"default_factory_module": "os", '
        '"default_factory_name": "getcwd", "dict_context": []}, "children_spec": []}]',
        '[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": true, \\"fqn\\": \\"antigravity:X\\", '
        '\\"name\\": \\"X\\"}]", "children_spec": []}]',
        '[1, {"type": "collections.namedtuple", "context": "os.system", "children_spec": []}]',
        '[1, {"type": "builtins.tuple", "context": "null", "children_spec": ' * 5000,
        '[1, {"type": "builtins.tuple"}]',
        "[2, {}]",
        "x" * 2_000_000,
    ],
)
def test_structures_made_by_an_enemy(artifact: Path, spec: str) -> None:
    """Nothing that a structure names is imported or called."""
    manifest = json.loads((artifact / MANIFEST).read_text())
    manifest["entries"]["main"]["signature"]["in_spec"] = spec
    write_manifest(artifact, json.dumps(manifest).encode())
    with pytest.raises(tkc.ArtifactError):
        tkc.load(artifact)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        {"up.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [0, 4]}},
        {"up.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [2048, 0]}},
        {"up.weight": {"dtype": "F32", "shape": [2**62, 16], "data_offsets": [0, 2048]}},
        {"up.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [1 << 40, (1 << 40) + 2048]}},
        {"up.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [-2048, 0]}},
        {"up.weight": {"dtype": "X32", "shape": [32, 16], "data_offsets": [0, 2048]}},
        {
            "up.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [0, 2048]},
            "up.bias": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]},
        },
    ],
)
def test_weights_whose_header_lies(artifact: Path, header: bytes | dict[str, Any]) -> None:
    """Lengths, offsets and shapes that do not fit, with a digest that does."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    if not isinstance(header, bytes):
        content = len(content).to_bytes(8, "little") + content + bytes(2048 + 128)
    (artifact / "params.safetensors").write_bytes(content)
    manifest = json.loads((artifact / MANIFEST).read_text())
    manifest["files"]["params.safetensors"] = file_sha256(artifact / "params.safetensors")
    write_manifest(artifact, json.dumps(manifest).encode())
    with pytest.raises(tkc.ArtifactError, match=r"params.safetensors"):
        tkc.load(artifact)


def test_links_and_pipes(artifact: Path, tmp_path: Path) -> None:
    """No file is read through a link out of the folder, and none that is a pipe."""
    outside = tmp_path / "outside"
    for name in ("model.so", MANIFEST, DIGEST, "params.safetensors"):
        (artifact / name).rename(outside)
        (artifact / name).symlink_to(outside)
        with pytest.raises(tkc.ArtifactError):
            tkc.load(artifact)
        (artifact / name).unlink()
        os.mkfifo(artifact / name)
        with pytest.raises(tkc.ArtifactError):
            tkc.load(artifact)
        (artifact / name).unlink()
        outside.rename(artifact / name)
    (artifact / "kernels").rename(outside)
    (artifact / "kernels").symlink_to(outside)
    with pytest.raises(tkc.ArtifactError):
        tkc.load(artifact)
    with pytest.raises(tkc.ArtifactError):
        tkc.load("model\0.tkc")
    with pytest.raises(tkc.UsageError):
        tkc.load(3)  # type: ignore[arg-type]


def test_archives_made_by_an_enemy(tmp_path: Path) -> None:
    """A zip bomb, members outside of the archive, compiled code, noise; PyTorch's own archive is read."""
    path = tmp_path / "model.pt2"
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.randn(1, 4),))
    torch.export.save(program, path)
    tkc.explain(path, database=False)
    whole = path.read_bytes()

    def add(name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
        path.write_bytes(whole)
        with zipfile.ZipFile(path, "a", compression) as archive:
            archive.writestr(name, content)
        with pytest.raises(tkc.UnsupportedModelError, match=r"torch\.export\.save"):
            tkc.explain(path, database=False)

    add("model/data/weights/bomb", bytes(50_000_000), zipfile.ZIP_DEFLATED)
    add("../outside", b"x")
    add("/etc/outside", b"x")
    add("model/data/aotinductor/model/model.so", b"\x7fELF")
    numbers = random.Random(0)
    for _ in range(30):
        changed = bytearray(whole)
        for _ in range(numbers.randint(1, 20)):
            changed[numbers.randrange(len(whole))] = numbers.randrange(256)
        path.write_bytes(changed[: numbers.choice((len(whole), numbers.randrange(len(whole))))])
        try:
            tkc.explain(path, database=False)
        except tkc.Error as error:
            assert not isinstance(error, tkc.InternalError), error
