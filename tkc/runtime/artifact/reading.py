"""An artifact's folder, read back and checked before anything in it runs."""

from __future__ import annotations

import importlib.metadata
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from tkc.errors import ArtifactError, UsageError
from tkc.kernels.kernel_library import KernelLibrary, file_sha256
from tkc.kernels.target import Target
from tkc.runtime.artifact.contents import Contents, EntryContents
from tkc.runtime.artifact.folder import MANIFEST, PARAMETERS, is_own_file, may_have
from tkc.runtime.artifact.manifest import PINNED, PROGRAM_FORMAT, KernelEntry, Manifest
from tkc.runtime.artifact.manifest_file import read_manifest
from tkc.runtime.cpu_features import cpu_features
from tkc.runtime.local_gpu import runs_here
from tkc.runtime.report import Report
from tkc.runtime.signature import TensorSpec
from tkc.runtime.structures import UnknownClassError
from tkc.runtime.weights import check_weights


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest was read and whose files were checked."""

    folder: Path
    manifest: Manifest

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum((self.folder / name).stat().st_size for name in self.manifest.files)


def read(path: str | os.PathLike[str]) -> Contents:
    """What the artifact folder ``path`` holds, its weights on the GPU if it is for one, its code in files of their own.

    Raises :class:`ArtifactError` for a folder that is no artifact, has a missing or changed file, is for another
    version, target or device, or needs an operator that is not here.
    """
    artifact = open_artifact(path)
    manifest, folder = artifact.manifest, artifact.folder
    _check_versions(manifest, folder)
    target = _target(manifest, folder)
    if reason := runs_here(target):
        raise ArtifactError(f"{folder} cannot run here: {reason}")
    if missing := sorted(set(manifest.cpu_features) - cpu_features()):
        raise ArtifactError(
            f"{folder} uses CPU instructions this machine lacks ({', '.join(missing)}); compile the model here"
        )
    if absent := manifest.requires.missing():
        raise ArtifactError(f"{folder} cannot run here: {absent}")
    parameters = _parameters(artifact, "cuda" if target.is_cuda else "cpu")
    # What was checked is what runs, whatever becomes of the folder.
    own = tempfile.TemporaryDirectory(prefix="tkc-")
    into = Path(own.name)
    libraries = {entry.file: _library(folder, entry, manifest, into) for entry in manifest.kernels}
    entries = {}
    for name, entry in manifest.entries.items():
        code = _copied(folder, entry.code, manifest, into)
        with what_cannot_be(folder):
            report = Report.from_json(manifest.report if entry.report is None else entry.report)
        entries[name] = EntryContents(
            entry.signature,
            {parameter: parameters[parameter] for parameter in entry.parameters},
            code,
            tuple(libraries[file] for file in manifest.kernel_files(entry)),
            report,
            entry.requires if manifest.format == PROGRAM_FORMAT else manifest.requires,
            weights=entry.weights,
        )
        with what_cannot_be(folder):
            _check_weights(entries[name])
    return Contents(target, entries, own)


@contextmanager
def what_cannot_be(folder: object) -> Iterator[None]:
    """Raise :class:`ArtifactError` for what is made inside of the manifest of ``folder`` and cannot be made."""
    try:
        yield
    except UnknownClassError as error:
        raise ArtifactError(
            f"{folder} takes inputs of a class that is not registered here ({error}); import its package first"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{folder} was changed: {MANIFEST} says what cannot be ({error})") from error


def from_bytes(packed: bytes) -> Contents:
    """What :func:`to_bytes` packed. Checks and errors are those of :func:`read`."""
    with tempfile.TemporaryDirectory(prefix="tkc-") as scratch:
        folder = Path(scratch)
        try:
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                for member in archive.infolist():
                    # Stored as they are, files are no larger than what was given.
                    if member.compress_type != zipfile.ZIP_STORED or not may_have(member.filename):
                        raise ArtifactError(f"a packed artifact has no file {member.filename!r}")
                    archive.extract(member, folder)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise ArtifactError(f"a packed artifact cannot be read: {error}") from error
        return read(folder)


def open_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact's manifest and check every file against it, without loading any code."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"an artifact is the path of a folder, not a {type(path).__name__}")
    try:
        return _opened(Path(path))
    except (OSError, ValueError) as error:  # a file that may not be read; a name with a null character
        raise ArtifactError(f"{str(path)!r} cannot be read: {error}") from error


def _opened(folder: Path) -> Artifact:
    manifest = read_manifest(folder)
    code = [entry.code for entry in manifest.entries.values()]
    expected = {*code, PARAMETERS, *(kernel.file for kernel in manifest.kernels)}
    if manifest.files.keys() != expected or not all(map(may_have, expected)):
        names = ", ".join(map(repr, sorted(manifest.files.keys() ^ expected) or sorted(expected)))
        raise ArtifactError(f"{folder} was changed: {MANIFEST} names other files than an artifact has ({names[:200]})")
    for name, digest in manifest.files.items():
        file = folder / name
        if not is_own_file(folder, name):
            raise ArtifactError(f"{folder} is incomplete: {name} is missing; copy or compile it again")
        if file_sha256(file) != digest:
            raise ArtifactError(
                f"{folder} was changed: {name} is not the file that was saved; copy or compile it again"
            )
    return Artifact(folder, manifest)


def _target(manifest: Manifest, folder: Path) -> Target:
    try:
        return Target.parse(manifest.target)
    except ValueError as error:
        raise ArtifactError(f"{folder} is for a target that does not exist here: {error}") from None


def _parameters(artifact: Artifact, device: str) -> dict[str, torch.Tensor]:
    """The weights on ``device``, each as the manifest has it, and the initial values of the state."""
    manifest, folder = artifact.manifest, artifact.folder
    try:
        stored = safetensors.torch.load_file(folder / PARAMETERS, device=device)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder} was changed: {PARAMETERS} cannot be read ({error})") from error
    specs = {spec.name: spec for spec in manifest.parameters}
    if stored.keys() != specs.keys():
        names = ", ".join(sorted(stored.keys() ^ specs.keys()))
        raise ArtifactError(f"{folder} was changed: {PARAMETERS} has other tensors than {MANIFEST} says ({names})")
    for name, tensor in stored.items():
        _check_tensor(folder, "the tensor", specs[name], tensor)
    for entry in manifest.entries.values():
        for spec in entry.signature.state:
            if spec.name not in entry.parameters:
                raise ArtifactError(f"{folder} was changed: its state {spec.name} has no initial value")
            _check_tensor(folder, "the initial value of", spec, stored[spec.name])
    return stored


def _check_tensor(folder: Path, what: str, spec: TensorSpec, found: torch.Tensor) -> None:
    if tuple(found.shape) != spec.shape or str(found.dtype) != f"torch.{spec.dtype}":
        raise ArtifactError(
            f"{folder} was changed: {what} {spec.name} is {found.dtype} {list(found.shape)}, "
            f"and should be {spec.dtype} {list(spec.shape)}"
        )


def _check_weights(entry: EntryContents) -> None:
    tensors = entry.parameters.values()
    state = {spec.name for spec in entry.signature.state}
    check_weights(
        entry.weights or (),
        [tuple(tensor.shape) for tensor in tensors],
        [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
        [name in state for name in entry.parameters],
    )


def _check_versions(manifest: Manifest, folder: Path) -> None:
    for package in PINNED:
        made, here = manifest.versions.get(package), importlib.metadata.version(package)
        if made != here:
            raise ArtifactError(
                f"{folder} was made with {package} {made}, and this is {here}; "
                f"install {package}=={made} or compile again"
            )


def _library(folder: Path, entry: KernelEntry, manifest: Manifest, into: Path) -> KernelLibrary:
    path = _copied(folder, entry.file, manifest, into)
    return KernelLibrary(entry.request, path, entry.key, manifest.files[entry.file])


def _copied(folder: Path, name: str, manifest: Manifest, into: Path) -> Path:
    """A copy of a file in ``into``, which is checked again: it is what will run."""
    copy = into / name
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(folder / name, copy)
    if file_sha256(copy) != manifest.files[name]:
        raise ArtifactError(f"{folder} was changed while it was read: {name}")
    return copy
