"""Configurations that call a library of the vendor's in a kernel's place, and what has to be known of the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Discriminator, Tag


@dataclass(frozen=True)
class Library:
    """A shared library that is not a part of tkc.

    ``sonames`` are those of the versions that can be called, the newest first. ``cure`` says where to get it.
    """

    name: str
    sonames: tuple[str, ...]
    cure: str


LIBRARIES: Mapping[str, Library] = {
    "cublaslt": Library(
        "cuBLASLt",
        ("libcublasLt.so.13", "libcublasLt.so.12"),
        "PyTorch for CUDA brings it (https://pytorch.org/get-started), or pip install nvidia-cublas",
    )
}
"""By what a configuration calls them."""

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS recommends for a product on Hopper, and PyTorch gives it; smaller ones leave out algorithms."""


@dataclass(frozen=True)
class LibraryCall:
    """The configuration of a kernel that is a call of ``library``, which computes the very same."""

    library: Literal["cublaslt"]

    def __str__(self) -> str:
        return LIBRARIES[self.library].name


def _kind(value: object) -> str:
    """Which of both a configuration is, as an object or as JSON."""
    return "library" if isinstance(value, LibraryCall) or (isinstance(value, Mapping) and "library" in value) else "own"


ConfigurationT = TypeVar("ConfigurationT")

OrLibraryCall: TypeAlias = Annotated[
    Annotated[ConfigurationT, Tag("own")] | Annotated[LibraryCall, Tag("library")], Discriminator(_kind)
]
"""A configuration of a kernel of ours or a call of a library, for pydantic to tell apart."""


def without_libraries(configurations: Iterable[Any]) -> tuple[Any, ...]:
    """Those of ``configurations`` that are kernels of ours."""
    return tuple(each for each in configurations if not isinstance(each, LibraryCall))


def called_libraries(configurations: Iterable[Any]) -> tuple[str, ...]:
    """The libraries that ``configurations`` call, once each, in their order."""
    return tuple(dict.fromkeys(each.library for each in configurations if isinstance(each, LibraryCall)))
