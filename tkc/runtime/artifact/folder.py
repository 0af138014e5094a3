"""The files of an artifact's folder: how they are named, and how to read one without leaving the folder."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from tkc.errors import ArtifactError

MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
CODE, PARAMETERS, KERNELS = "model.so", "params.safetensors", "kernels"
_FILE = re.compile(rf"{KERNELS}/[A-Za-z0-9_][A-Za-z0-9_.-]*|code/[A-Za-z0-9_]+\.so", re.ASCII)


def may_have(name: str) -> bool:
    """Whether an artifact may have a file ``name``."""
    return name in (MANIFEST, DIGEST, CODE, PARAMETERS) or _FILE.fullmatch(name) is not None


def is_own_file(folder: Path, name: str) -> bool:
    """Whether ``name`` is a file in ``folder``, and neither a link out of it nor a device or a pipe."""
    *parents, _ = Path(name).parts
    try:
        links = any(stat.S_ISLNK((folder / parent).lstat().st_mode) for parent in parents)
        return not links and stat.S_ISREG((folder / name).lstat().st_mode)
    except OSError:
        return False


def code_file(entry: str) -> str:
    """Where the artifact of a program has the code of ``entry``."""
    return f"code/{entry}.so"


def read_small(folder: Path, name: str, most: int) -> bytes | None:
    """The content of a file of at most ``most`` bytes; ``None`` if there is none."""
    if not is_own_file(folder, name):
        return None
    with (folder / name).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ArtifactError(f"{folder} was changed: {name} is larger than any that TKC writes ({most} bytes)")
    return content
