"""A compiled model on disk: one folder, written whole or not at all, checked before anything in it runs.

``manifest.json`` says what the folder holds; ``model.so`` is the generated code; ``kernels/`` the kernel libraries;
``params.safetensors`` the weights, and the initial values of the state. There is no pickle in it, but it is machine
code all the same.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError

from tkc.builder.cache import KernelLibrary, file_sha256
from tkc.cpu_features import cpu_features
from tkc.errors import ArtifactError, UsageError
from tkc.frontend.model import Signature
from tkc.kernels import KernelRequest, Target
from tkc.report import Report
from tkc.targets import runs_here

if TYPE_CHECKING:
    from tkc.executable import Executable

FORMAT: Literal[2] = 2
MANIFEST = "manifest.json"
_CODE, _PARAMETERS, _KERNELS = "model.so", "params.safetensors", "kernels"
_PINNED = ("apache-tvm", "apache-tvm-ffi")
"""The packages whose versions an artifact's code is tied to."""


class KernelEntry(BaseModel):
    """One kernel library of an artifact."""

    model_config = ConfigDict(frozen=True)
    file: str
    key: str
    request: dict[str, Any]


class Manifest(BaseModel):
    """What an artifact holds. ``files`` gives the SHA-256 of each file, by its path in the folder."""

    model_config = ConfigDict(frozen=True)
    format: Literal[2] = FORMAT
    versions: dict[str, str]
    target: str
    cpu_features: tuple[str, ...] = ()
    signature: Signature
    parameters: tuple[str, ...]
    kernels: tuple[KernelEntry, ...]
    files: dict[str, str]
    report: dict[str, Any]


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest was read and whose files were checked."""

    folder: Path
    manifest: Manifest

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum((self.folder / name).stat().st_size for name in self.manifest.files)


def save(executable: Executable, path: Path) -> Path:
    """Write ``executable`` as the folder ``path``, replacing an artifact of that name.

    Raises :class:`UsageError` if ``path`` is something else than an artifact, :class:`ArtifactError` if it cannot be
    written (a full disk); nothing is left behind then, and an earlier artifact stays.
    """
    if path.exists() and not (path / MANIFEST).is_file():
        raise UsageError(f"{path} exists and is no artifact; choose another name or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _write(executable, scratch)
        if path.exists():
            old = path.with_name(f".{path.name}-old")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            scratch.rename(path)
            shutil.rmtree(old)
        else:
            scratch.rename(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"the artifact {path} could not be written: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path


def load(path: str | Path) -> Executable:
    """Read the artifact folder ``path`` back as an executable, on the GPU if it is for one.

    Raises :class:`ArtifactError` for a folder that is no artifact, has a missing or changed file, or is for another
    version, target or device. Load only what you trust: an artifact is machine code.
    """
    from tkc.executable import Executable

    artifact = open_artifact(path)
    manifest, folder = artifact.manifest, artifact.folder
    _check_versions(manifest, folder)
    target = Target.parse(manifest.target)
    if reason := runs_here(target):
        raise ArtifactError(f"{folder} cannot run here: {reason}")
    if missing := sorted(set(manifest.cpu_features) - cpu_features()):
        raise ArtifactError(
            f"{folder} uses CPU instructions this machine lacks ({', '.join(missing)}); compile the model here"
        )
    return Executable(
        target=target,
        signature=manifest.signature,
        parameters=_parameters(artifact, "cuda" if target.is_cuda else "cpu"),
        code=folder / _CODE,
        libraries=tuple(_library(folder, entry, manifest) for entry in manifest.kernels),
        report=Report.from_json(manifest.report),
    )


def _parameters(artifact: Artifact, device: str) -> dict[str, torch.Tensor]:
    """The weights on ``device``, and the initial values of the state as the signature has them."""
    manifest, folder = artifact.manifest, artifact.folder
    stored = safetensors.torch.load_file(folder / _PARAMETERS, device=device)
    parameters = {name: stored[name] for name in manifest.parameters}
    for spec in manifest.signature.state:
        found = parameters.get(spec.name)
        if found is None:
            raise ArtifactError(f"{folder} was changed: its state {spec.name} has no initial value")
        if tuple(found.shape) != spec.shape or str(found.dtype) != f"torch.{spec.dtype}":
            raise ArtifactError(
                f"{folder} was changed: the initial value of {spec.name} is {found.dtype} {list(found.shape)}, "
                f"and the state is {spec.dtype} {list(spec.shape)}"
            )
    return parameters


def open_artifact(path: str | Path) -> Artifact:
    """Read an artifact's manifest and check every file against it, without loading any code."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise ArtifactError(f"{folder} is incomplete: {name} is missing; copy or compile it again")
        if file_sha256(file) != expected:
            raise ArtifactError(
                f"{folder} was changed: {name} is not the file that was saved; copy or compile it again"
            )
    return Artifact(folder, manifest)


def _read_manifest(folder: Path) -> Manifest:
    try:
        text = (folder / MANIFEST).read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}") from None
    except UnicodeDecodeError:
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not text; copy or compile it again") from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        if first["loc"] == ("format",):
            raise ArtifactError(
                f"{folder} has artifact format {first['input']!r}, and this TKC reads format {FORMAT}; "
                "use the TKC that made it, or compile again"
            ) from None
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not valid at {where} ({first['msg']})") from None


def _check_versions(manifest: Manifest, folder: Path) -> None:
    for package in _PINNED:
        made, here = manifest.versions.get(package), importlib.metadata.version(package)
        if made != here:
            raise ArtifactError(
                f"{folder} was made with {package} {made}, and this is {here}; "
                f"install {package}=={made} or compile again"
            )


def _library(folder: Path, entry: KernelEntry, manifest: Manifest) -> KernelLibrary:
    return KernelLibrary(
        KernelRequest.from_json(entry.request), folder / entry.file, entry.key, manifest.files[entry.file]
    )


def _write(executable: Executable, folder: Path) -> None:
    shutil.copyfile(executable.code, folder / _CODE)
    (folder / _KERNELS).mkdir()
    entries = []
    for library in executable.libraries:
        file = f"{_KERNELS}/{library.path.name}"
        shutil.copyfile(library.path, folder / file)
        entries.append(KernelEntry(file=file, key=library.key, request=library.request.to_json()))
    safetensors.torch.save_file(_unshared(executable), folder / _PARAMETERS)
    files = [_CODE, _PARAMETERS, *(entry.file for entry in entries)]
    manifest = Manifest(
        versions={name: importlib.metadata.version(name) for name in ("tkc", *_PINNED, "tilelang")},
        target=str(executable.target),
        cpu_features=() if executable.target.is_cuda else tuple(sorted(cpu_features())),
        signature=executable.signature,
        parameters=tuple(executable.parameters),
        kernels=tuple(entries),
        files={name: file_sha256(folder / name) for name in files},
        report=executable.report.to_json(),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))


def _unshared(executable: Executable) -> dict[str, torch.Tensor]:
    """The weights, each with storage of its own: safetensors stores no aliases."""
    owners: set[int] = set()
    weights = {}
    for name, weight in executable.parameters.items():
        tensor = weight.detach().contiguous()
        storage = tensor.untyped_storage()
        alone = storage.data_ptr() not in owners and storage.nbytes() == tensor.nbytes
        weights[name] = tensor if alone else tensor.clone()
        owners.add(storage.data_ptr())
    return weights
