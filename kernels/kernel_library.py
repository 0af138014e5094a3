"""A kernel that was built, as a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class KernelLibrary:
    """One built kernel: a shared library that exports one function, and the key of what it was made from.

    ``request`` is what was asked for, as :meth:`tkc.kernels.KernelRequest.to_json` writes it, so that who runs a kernel
    needs no spec of it.
    """

    request: Mapping[str, Any]
    path: Path
    key: str
    sha256: str

    @property
    def kernel(self) -> str:
        """The name of its family."""
        return str(self.request["kernel"])


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
