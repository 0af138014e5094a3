"""Where tuning databases are: the user's own, the shipped one, and a target's records in either."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from tkc.kernels.target import Target


def user_database() -> Path:
    """The user's own database: ``$TKC_DATABASE_DIR``, else in the user's data folder. It need not exist."""
    return Path(os.environ.get("TKC_DATABASE_DIR") or Path(platformdirs.user_data_dir("tkc")) / "tuning_db")


def shipped_database() -> Path:
    """The database that is installed with this version."""
    import tkc.tuning_db

    (folder,) = map(Path, tkc.tuning_db.__path__)
    return folder


def target_folder(root: Path | str, target: Target) -> Path:
    """Where in the database folder ``root`` the records of ``target`` stand."""
    return Path(root) / str(target).replace(":", "-")


def target_of(folder: Path) -> Target | None:
    """The target whose records stand in ``folder`` of a database; ``None`` if its name is no target's."""
    try:
        return Target.parse(folder.name.replace("-", ":", 1))
    except ValueError:
        return None
