"""Manifests of saved artifacts, changed by a test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_manifest(artifact: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply ``change`` to the manifest on disk, and make its digest anew."""
    manifest = json.loads((artifact / "manifest.json").read_text())
    change(manifest)
    write_manifest(artifact, json.dumps(manifest).encode())


def write_manifest(artifact: Path, content: bytes) -> None:
    """Put ``content`` in the manifest's place, with its digest."""
    (artifact / "manifest.json").write_bytes(content)
    (artifact / "manifest.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  manifest.json\n")
