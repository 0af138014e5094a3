"""``manifest.json`` as it is read: within bounds, with its digest, in any format that is read."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tkc.errors import ArtifactError
from tkc.runtime.artifact.consistency import checked_manifest
from tkc.runtime.artifact.folder import DIGEST, MANIFEST, read_small
from tkc.runtime.artifact.manifest import FORMAT, PROGRAM_FORMAT, Manifest

MOST_MANIFEST = 64 << 20
"""Bytes of the largest manifest that is read; that of a model with thousands of functions has some millions."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``, whose parts fit each other. :class:`ArtifactError` says what does not."""
    content = read_small(folder, MANIFEST, MOST_MANIFEST)
    if content is None:
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}")
    digest = read_small(folder, DIGEST, 1024)
    if digest is None:
        raise ArtifactError(_without_digest(folder, content))
    if digest != digest_of(content):
        raise ArtifactError(f"{folder} was changed: {MANIFEST} is not what was saved; copy or compile it again")
    try:
        loaded = json.loads(content, object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite)
        if _converted_from_format_3(loaded):
            content = json.dumps(loaded).encode()
        return checked_manifest(Manifest.model_validate_json(content, strict=True))
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


def digest_of(content: bytes) -> bytes:
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
