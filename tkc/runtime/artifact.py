"""A compiled model on disk: one folder, written whole or not at all, checked before anything in it runs.

``manifest.json`` says what the folder holds, and ``manifest.sha256`` that it is the manifest which was written;
``model.so`` is the generated code, or ``code/`` that of each entry of a program; ``kernels/`` the kernel libraries;
``params.safetensors`` the weights, and the initial values of the state, which entries share. There is no pickle in it,
but it is machine code all the same.

Reading one takes bounded memory, follows no path out of the folder, and imports nothing that the folder names.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError

from tkc.errors import ArtifactError, UsageError
from tkc.kernels.kernel_library import KernelLibrary, file_sha256
from tkc.kernels.target import Target
from tkc.runtime.cpu_features import cpu_features
from tkc.runtime.local_gpu import runs_here
from tkc.runtime.report import Report
from tkc.runtime.requirements import Requirements, all_requirements
from tkc.runtime.signature import Signature, TensorSpec
from tkc.runtime.sizes import Formula
from tkc.runtime.structures import UnknownClassError
from tkc.runtime.tensors import identity
from tkc.runtime.weights import ModelWeight, check_weights

FORMAT: Literal[4] = 4
"""The format that is written. Format 3, in which flags are strings that stand for indices, is read as well."""
PROGRAM_FORMAT: Literal[5] = 5
"""That of programs of several entries: each has code, kernels and a report of its own."""

MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
MOST_MANIFEST = 64 << 20
"""Bytes of the largest manifest that is read; that of a model with thousands of functions has some millions."""

MAIN = "main"
_CODE, _PARAMETERS, _KERNELS = "model.so", "params.safetensors", "kernels"
_FILE = re.compile(rf"{_KERNELS}/[A-Za-z0-9_][A-Za-z0-9_.-]*|code/[A-Za-z0-9_]+\.so", re.ASCII)
ENTRY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""The names that entries of a program may have; ``main`` is that of what has no entries."""
_PINNED = ("apache-tvm", "apache-tvm-ffi")
"""The packages whose versions an artifact's code is tied to."""

_LARGEST = 2**63 - 1
_STRICT = ConfigDict(frozen=True, extra="forbid")


class KernelEntry(BaseModel):
    """One kernel library of an artifact."""

    model_config = _STRICT
    file: str
    key: str
    request: dict[str, Any]


class Entry(BaseModel):
    """A compiled function: how it is called, and which of the parameters it takes, in order.

    Those of a program also name the file of their code and those of their kernels, say what they need, and report.
    ``weights`` says where the model's own weights stand among the parameters.
    """

    model_config = _STRICT
    signature: Signature
    parameters: tuple[str, ...]
    code: str = _CODE
    kernels: tuple[str, ...] | None = None
    requires: Requirements = Requirements()
    report: dict[str, Any] | None = None
    weights: tuple[ModelWeight, ...] | None = None


class Manifest(BaseModel):
    """What an artifact holds.

    ``entries`` are the compiled functions by name, which share ``parameters``: an LLM may have one to
    prefill and one to decode. ``requires`` is what must be there where it runs. ``files`` gives the SHA-256 of each
    file, by its path in the folder.
    """

    model_config = _STRICT
    format: Literal[3, 4, 5] = FORMAT
    versions: dict[str, str]
    target: str
    cpu_features: tuple[str, ...] = ()
    requires: Requirements = Requirements()
    entries: dict[str, Entry]
    parameters: tuple[TensorSpec, ...]
    kernels: tuple[KernelEntry, ...]
    files: dict[str, str]
    report: dict[str, Any]

    def kernel_files(self, entry: Entry) -> tuple[str, ...]:
        """The files of the kernels that ``entry`` calls."""
        return tuple(kernel.file for kernel in self.kernels) if entry.kernels is None else entry.kernels


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest was read and whose files were checked."""

    folder: Path
    manifest: Manifest

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum((self.folder / name).stat().st_size for name in self.manifest.files)


@dataclass(frozen=True)
class EntryContents:
    """What an artifact holds of one entry, in memory and in files that an executable may load.

    ``code`` is the generated code; ``requires`` is what must be there when it runs. With ``shares_weights``, the
    parameters are a model's in this process, whose owner may change them. ``weights`` says where the model's own
    weights stand among the parameters, if that is known.
    """

    signature: Signature
    parameters: Mapping[str, torch.Tensor]
    code: Path
    libraries: tuple[KernelLibrary, ...]
    report: Report
    requires: Requirements
    shares_weights: bool = False
    weights: tuple[ModelWeight, ...] | None = None


@dataclass(frozen=True)
class Contents:
    """What an artifact holds: :data:`MAIN` alone, or the entries of a program, whose equal weights are the same memory.

    ``folder`` is the temporary folder that the code lives in, if any.
    """

    target: Target
    entries: Mapping[str, EntryContents]
    folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_program(self) -> bool:
        """Whether there are entries that have names."""
        return self.entries.keys() != {MAIN}


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


def from_bytes(packed: bytes) -> Contents:
    """What :func:`to_bytes` packed. Checks and errors are those of :func:`read`."""
    with tempfile.TemporaryDirectory(prefix="tkc-") as scratch:
        folder = Path(scratch)
        try:
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                for member in archive.infolist():
                    # Stored as they are, files are no larger than what was given.
                    if member.compress_type != zipfile.ZIP_STORED or not _expected(member.filename):
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
    manifest = _read_manifest(folder)
    code = [entry.code for entry in manifest.entries.values()]
    expected = {*code, _PARAMETERS, *(kernel.file for kernel in manifest.kernels)}
    if manifest.files.keys() != expected or not all(map(_expected, expected)):
        names = ", ".join(map(repr, sorted(manifest.files.keys() ^ expected) or sorted(expected)))
        raise ArtifactError(f"{folder} was changed: {MANIFEST} names other files than an artifact has ({names[:200]})")
    for name, digest in manifest.files.items():
        file = folder / name
        if not _is_own_file(folder, name):
            raise ArtifactError(f"{folder} is incomplete: {name} is missing; copy or compile it again")
        if file_sha256(file) != digest:
            raise ArtifactError(
                f"{folder} was changed: {name} is not the file that was saved; copy or compile it again"
            )
    return Artifact(folder, manifest)


def _expected(name: str) -> bool:
    return name in (MANIFEST, DIGEST, _CODE, _PARAMETERS) or _FILE.fullmatch(name) is not None


def _is_own_file(folder: Path, name: str) -> bool:
    """Whether ``name`` is a file in ``folder``, and neither a link out of it nor a device or a pipe."""
    *parents, _ = Path(name).parts
    try:
        links = any(stat.S_ISLNK((folder / parent).lstat().st_mode) for parent in parents)
        return not links and stat.S_ISREG((folder / name).lstat().st_mode)
    except OSError:
        return False


def _read_manifest(folder: Path) -> Manifest:
    content = _read(folder, MANIFEST, MOST_MANIFEST)
    if content is None:
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}")
    digest = _read(folder, DIGEST, 1024)
    if digest is None:
        raise ArtifactError(_without_digest(folder, content))
    if digest != _digest(content):
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not what was saved; copy or compile it again")
    try:
        loaded = json.loads(content, object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite)
        if _converted_from_format_3(loaded):
            content = json.dumps(loaded).encode()
        return _validated(Manifest.model_validate_json(content, strict=True))
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            raise ArtifactError(_other_format(folder, first["input"])) from None
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not valid at {where} ({first['msg']})") from None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not valid ({error})") from None


def _converted_from_format_3(manifest: Any) -> bool:
    """Whether ``manifest`` is of format 3; its flags are then made what they are in :data:`FORMAT`.

    What is no manifest is left for the checks that follow.
    """
    try:
        if manifest["format"] != 3:
            return False
        for entry in manifest["entries"].values():
            signature = entry["signature"]
            if isinstance(flags := signature["index_flags"], list):
                signature["index_flags"] = [{"source": source} for source in flags]
        return True
    except (AttributeError, KeyError, TypeError):
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refused(number: str) -> None:
    raise ValueError(f"{number} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refused(text)
    return number


def _validated(manifest: Manifest) -> Manifest:
    """``manifest``, of which each part fits the others; :class:`ValueError` if not."""
    if manifest.format == PROGRAM_FORMAT:
        _check_entries(manifest)
    elif MAIN not in manifest.entries:
        raise ValueError(f"it has no entry {MAIN}")
    elif others := sorted(manifest.entries.keys() - {MAIN}):
        raise ValueError(f"it has further entries ({', '.join(others)[:200]})")
    names = [spec.name for spec in manifest.parameters]
    if len(set(names)) != len(names):
        raise ValueError("two parameters have one name")
    for name, entry in manifest.entries.items():
        signature = entry.signature
        for spec in (*signature.inputs, *signature.outputs, *signature.state, *manifest.parameters):
            _check_spec(spec)
        formulas = [size for spec in signature.inputs for size in spec.shape if isinstance(size, str)]
        formulas += [formula for _, formula in signature.size_outputs]
        if strange := {size for text in formulas for size in Formula(text).names} - signature.sizes.keys():
            raise ValueError(f"entry {name} has sizes that are not there ({', '.join(sorted(strange))})")
        if len({spec.name for spec in signature.inputs}) != len(signature.inputs):
            raise ValueError(f"two inputs of entry {name} have one name")
        for size, bounds in signature.sizes.items():
            if not 0 <= bounds.minimum <= (_LARGEST if bounds.maximum is None else bounds.maximum) <= _LARGEST:
                raise ValueError(f"size {size} is at least {bounds.minimum} and at most {bounds.maximum}")
        if strange := set(entry.kernels or ()) - {kernel.file for kernel in manifest.kernels}:
            raise ValueError(f"entry {name} calls kernels that are not there ({', '.join(sorted(strange))[:200]})")
        if unknown := sorted(set(entry.parameters) - set(names)):
            raise ValueError(f"entry {name} takes parameters that are not there ({', '.join(unknown)})")
    return manifest


def _check_entries(manifest: Manifest) -> None:
    """Raise :class:`ValueError` unless each entry of a program has a name, code and kernels that there are."""
    if not manifest.entries or MAIN in manifest.entries:
        raise ValueError("it has no entries with names")
    for name, entry in manifest.entries.items():
        if not ENTRY_NAME.fullmatch(name):
            raise ValueError(f"an entry has the name {name[:100]!r}")
        if entry.code != _code_file(name):
            raise ValueError(f"entry {name} has its code in {entry.code[:100]!r}")
    states: dict[str, TensorSpec] = {}
    for name, entry in manifest.entries.items():
        for spec in entry.signature.state:
            if states.setdefault(spec.name, spec) != spec:
                raise ValueError(f"entry {name} has another state {spec.name} than the entries before it")


def _code_file(entry: str) -> str:
    """Where the artifact of a program has the code of ``entry``."""
    return f"code/{entry}.so"


def _check_spec(spec: TensorSpec) -> None:
    if not isinstance(getattr(torch, spec.held, None), torch.dtype):
        raise ValueError(f"{spec.name} has the dtype {spec.dtype!r}")
    for size in spec.shape:
        if not isinstance(size, str) and not 0 <= size <= _LARGEST:
            raise ValueError(f"{spec.name} has an axis of {size}")


def _read(folder: Path, name: str, most: int) -> bytes | None:
    """The content of a file of at most ``most`` bytes; ``None`` if there is none."""
    if not _is_own_file(folder, name):
        return None
    with (folder / name).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ArtifactError(f"{folder} was changed: {name} is larger than any that TKC writes ({most} bytes)")
    return content


def _digest(content: bytes) -> bytes:
    """What ``manifest.sha256`` holds, which ``sha256sum --check`` reads, too."""
    return f"{hashlib.sha256(content).hexdigest()}  {MANIFEST}\n".encode()


def _without_digest(folder: Path, content: bytes) -> str:
    """What to say of a manifest without its digest: older formats have none."""
    try:
        found = json.loads(content)["format"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"{folder} is no artifact, or was changed: it has no {DIGEST}, and its {MANIFEST} is not valid"
    if found in (FORMAT, PROGRAM_FORMAT):
        return f"{folder} is incomplete: {DIGEST} is missing; copy or compile it again"
    return _other_format(folder, found)


def _other_format(folder: Path, found: Any) -> str:
    return (
        f"{folder} has artifact format {str(found)[:20]!s}, and this TKC reads formats 3 to {PROGRAM_FORMAT}; "
        "use the TKC that made it, or compile again"
    )


def _target(manifest: Manifest, folder: Path) -> Target:
    try:
        return Target.parse(manifest.target)
    except ValueError as error:
        raise ArtifactError(f"{folder} is for a target that does not exist here: {error}") from None


def _parameters(artifact: Artifact, device: str) -> dict[str, torch.Tensor]:
    """The weights on ``device``, each as the manifest has it, and the initial values of the state."""
    manifest, folder = artifact.manifest, artifact.folder
    try:
        stored = safetensors.torch.load_file(folder / _PARAMETERS, device=device)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder} was changed: {_PARAMETERS} cannot be read ({error})") from error
    specs = {spec.name: spec for spec in manifest.parameters}
    if stored.keys() != specs.keys():
        names = ", ".join(sorted(stored.keys() ^ specs.keys()))
        raise ArtifactError(f"{folder} was changed: {_PARAMETERS} has other tensors than {MANIFEST} says ({names})")
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
    for package in _PINNED:
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


def _write(contents: Contents, folder: Path) -> None:
    (folder / _KERNELS).mkdir()
    if contents.is_program:
        (folder / "code").mkdir()
    stored, names = named_weights(contents.entries)
    weights = _unshared(stored)
    kernels: dict[str, KernelEntry] = {}
    entries: dict[str, Entry] = {}
    for name, entry in contents.entries.items():
        code = _code_file(name) if contents.is_program else _CODE
        shutil.copyfile(entry.code, folder / code)
        called = []
        for library in entry.libraries:
            file = f"{_KERNELS}/{library.path.name}"
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
    safetensors.torch.save_file(weights, folder / _PARAMETERS)
    all_entries = list(contents.entries.values())
    files = [*(entry.code for entry in entries.values()), _PARAMETERS, *kernels]
    manifest = Manifest(
        format=PROGRAM_FORMAT if contents.is_program else FORMAT,
        versions={name: importlib.metadata.version(name) for name in ("tkc", *_PINNED, "tilelang")},
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
    (folder / DIGEST).write_bytes(_digest(content))


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


def named_weights(
    entries: Mapping[str, EntryContents],
) -> tuple[dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """The weights by the names that they are stored by, what entries share once; and those names for each entry."""
    stored: dict[str, torch.Tensor] = {}
    found: dict[Hashable, str] = {}
    names: dict[str, tuple[str, ...]] = {}
    for entry, contents in entries.items():
        own: list[str] = []
        for name, weight in contents.parameters.items():
            kept = found.get(identity(weight))
            if kept is None or kept in own:
                # Of several entries, two may have different weights of one name.
                kept = name if name not in stored else f"{entry}.{name}"
                while kept in stored:
                    kept += "_"
                stored[kept] = weight
                found.setdefault(identity(weight), kept)
            own.append(kept)
        names[entry] = tuple(own)
    return stored, names


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
