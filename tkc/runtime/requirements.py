"""What must be there where an executable runs: PyTorch's operators that it calls in place, and their libraries."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from tkc.runtime import fourier  # noqa: F401, which registers operators of tkc's own

_OPERATOR = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@dataclass(frozen=True)
class Requirements:
    """``operators`` by their names with or without overload (``torchvision::nms``); ``libraries`` are the packages that
    register them, with the versions that the model was compiled with. Raises :class:`ValueError` for what is no name.
    """

    operators: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern, names in ((_OPERATOR, self.operators), (_PACKAGE, self.libraries)):
            for name in names:
                if not pattern.fullmatch(name):
                    raise ValueError(f"{name!r} is no name of an operator or a package")

    def missing(self) -> str | None:
        """What is not here, by name, and the cure; ``None`` if everything is. Imports nothing."""
        absent = [name for name in self.libraries if not _installed(name)]
        if absent:
            wanted = " ".join(f"{name}=={self.libraries[name]}" for name in absent)
            return f"it needs {', '.join(absent)}, which is not installed; pip install {wanted}"
        unknown = [name for name in self.operators if not _registered(name)]
        if unknown:
            cure = f"import {', '.join(self.libraries)}" if self.libraries else "import what registers it"
            return f"it calls {', '.join(unknown)}, which PyTorch does not know here; {cure} first"
        return None


def all_requirements(each: Iterable[Requirements]) -> Requirements:
    """What is needed by any of several."""
    parts = list(each)
    operators = dict.fromkeys(operator for part in parts for operator in part.operators)
    return Requirements(tuple(operators), {name: version for part in parts for name, version in part.libraries.items()})


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _registered(operator: str) -> bool:
    name, _, overload = operator.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(name)
    return any(not overload or schema.overload_name == overload for schema in schemas)
