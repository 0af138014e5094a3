"""What must be there where an executable runs: PyTorch's operators that it calls in place, their packages, and shared
libraries that kernels call."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from tkc.kernels.library_calls import LIBRARIES, Library
from tkc.runtime import fourier, random_order, unique  # noqa: F401, which register operators of tkc's own

_OPERATOR = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@dataclass(frozen=True)
class Requirements:
    """``operators`` by their names with or without overload (``torchvision::nms``); ``libraries`` are the packages that
    register them, with the versions that the model was compiled with. ``shared_libraries`` are those that kernels call,
    as :data:`tkc.kernels.library_calls.LIBRARIES` names them. Raises :class:`ValueError` for what is no name.
    """

    operators: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)
    shared_libraries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern, names in ((_OPERATOR, self.operators), (_PACKAGE, self.libraries)):
            for name in names:
                if not pattern.fullmatch(name):
                    raise ValueError(f"{name!r} is no name of an operator or a package")
        for name in self.shared_libraries:
            if name not in LIBRARIES:
                raise ValueError(f"{name!r} is no library that kernels call; there are {', '.join(LIBRARIES)}")

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
        for library in (LIBRARIES[name] for name in self.shared_libraries):
            if not _loadable(library):
                names = " or ".join(library.sonames)
                return f"its kernels call {library.name} ({names}), which cannot be loaded here; {library.cure}"
        return None


def all_requirements(each: Iterable[Requirements]) -> Requirements:
    """What is needed by any of several."""
    parts = list(each)
    operators = dict.fromkeys(operator for part in parts for operator in part.operators)
    return Requirements(
        tuple(operators),
        {name: version for part in parts for name, version in part.libraries.items()},
        tuple(dict.fromkeys(library for part in parts for library in part.shared_libraries)),
    )


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


def _loadable(library: Library) -> bool:
    """Whether one of its versions is in the process, as with PyTorch for CUDA, or can be loaded."""
    for mode in (os.RTLD_NOW | os.RTLD_NOLOAD, os.RTLD_NOW):
        for name in library.sonames:
            try:
                ctypes.CDLL(name, mode)
            except OSError:
                continue
            return True
    return False
