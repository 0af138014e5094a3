"""An artifact's folder, written whole or not at all."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from tkc.errors import ArtifactError, UsageError
from tkc.kernels.kernel_library import file_sha256
from tkc.runtime.artifact.contents import MAIN, Contents, named_weights
from tkc.runtime.artifact.folder import CODE, DIGEST, KERNELS, MANIFEST, PARAMETERS, code_file
from tkc.runtime.artifact.manifest import FORMAT, PINNED, PROGRAM_FORMAT, Entry, KernelEntry, Manifest
from tkc.runtime.artifact.manifest_file import digest_of
from tkc.runtime.cpu_features import cpu_features
from tkc.runtime.requirements import all_requirements
from tkc.runtime.signature import TensorSpec


def save(contents: Contents, path: Path, *, overwrite: bool = False) -> Path:
    """Write ``contents`` as the folder ``path``.

    Raises :class:`UsageError` if there is something at ``path``: an artifact is replaced where ``overwrite`` is true,
    and anything else never. Raises :class:`ArtifactError` if it cannot be written (a full disk); nothing is left behind
    then, and an earlier artifact stays.
    """
    check_destination(path, overwrite)
    scratch: Path | None = None
    path = path.resolve()  # a link stays one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        _write(contents, scratch)
        _replace(path, scratch)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"the artifact {path} could not be written: {error}") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return path


def check_destination(path: Path, overwrite: bool) -> None:
    """Raise :class:`UsageError` if an artifact cannot be written to ``path`` because of what is there."""
    if not (path.exists() or path.is_symlink()):
        return
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path} exists and is no artifact; choose another name or remove it")
    if not overwrite:
        raise UsageError(
            f"{path} is an artifact already; choose another name, or replace it with overwrite=True "
            "(on the command line: --force)"
        )


def to_bytes(contents: Contents) -> bytes:
    """The artifact of ``contents`` packed in memory, as :func:`from_bytes` reads it."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="tkc-") as scratch:
        folder = Path(scratch)
        _write(contents, folder)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(folder).as_posix())
    return packed.getvalue()


def _write(contents: Contents, folder: Path) -> None:
    (folder / KERNELS).mkdir()
    if contents.is_program:
        (folder / "code").mkdir()
    stored, names = named_weights(contents.entries)
    weights = _unshared(stored)
    kernels: dict[str, KernelEntry] = {}
    entries: dict[str, Entry] = {}
    for name, entry in contents.entries.items():
        code = code_file(name) if contents.is_program else CODE
        shutil.copyfile(entry.code, folder / code)
        called = []
        for library in entry.libraries:
            file = f"{KERNELS}/{library.path.name}"
            if file not in kernels:
                shutil.copyfile(library.path, folder / file)
                kernels[file] = KernelEntry(file=file, key=library.key, request=dict(library.request))
            called.append(file)
        own = {"kernels": tuple(called), "requires": entry.requires, "report": entry.report.to_json()}
        entries[name] = Entry(
            signature=entry.signature,
            parameters=names[name],
            code=code,
            weights=entry.weights,
            **(own if contents.is_program else {}),  # type: ignore[arg-type]  # a dictionary of several types
        )
    safetensors.torch.save_file(weights, folder / PARAMETERS)
    all_entries = list(contents.entries.values())
    files = [*(entry.code for entry in entries.values()), PARAMETERS, *kernels]
    manifest = Manifest(
        format=PROGRAM_FORMAT if contents.is_program else FORMAT,
        versions={name: importlib.metadata.version(name) for name in ("tkc", *PINNED, "tilelang")},
        target=str(contents.target),
        cpu_features=() if contents.target.is_cuda else tuple(sorted(cpu_features())),
        requires=all_requirements([entry.requires for entry in all_entries]),
        entries=entries,
        parameters=tuple(
            TensorSpec(name, tuple(weight.shape), str(weight.dtype).removeprefix("torch."))
            for name, weight in weights.items()
        ),
        kernels=tuple(kernels.values()),
        files={name: file_sha256(folder / name) for name in files},
        report={} if contents.is_program else all_entries[0].report.to_json(),
    )
    # An artifact without entries is as earlier releases read it.
    later = None if contents.is_program else {"entries": {MAIN: {"code", "kernels", "requires", "report"}}}
    content = manifest.model_dump_json(indent=1, exclude=later).encode()
    (folder / MANIFEST).write_bytes(content)
    (folder / DIGEST).write_bytes(digest_of(content))


def _replace(path: Path, scratch: Path) -> None:
    """Put the folder ``scratch`` where ``path`` is or is to be."""
    if not path.exists():
        scratch.rename(path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    path.rename(aside / path.name)
    try:
        scratch.rename(path)
    except OSError:
        (aside / path.name).rename(path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unshared(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights, each with storage of its own: safetensors stores no aliases."""
    owners: set[int] = set()
    weights = {}
    for name, weight in parameters.items():
        tensor = weight.detach().contiguous()
        storage = tensor.untyped_storage()
        alone = storage.data_ptr() not in owners and storage.nbytes() == tensor.nbytes
        weights[name] = tensor if alone else tensor.clone()
        owners.add(storage.data_ptr())
    return weights
