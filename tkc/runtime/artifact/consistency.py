"""Whether each part of a manifest fits the others."""

from __future__ import annotations

import re

import torch

from tkc.runtime.artifact.contents import MAIN
from tkc.runtime.artifact.folder import code_file
from tkc.runtime.artifact.manifest import PROGRAM_FORMAT, Manifest
from tkc.runtime.signature import TensorSpec
from tkc.runtime.sizes import Formula

ENTRY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""The names that entries of a program may have; ``main`` is that of what has no entries."""

_LARGEST = 2**63 - 1


def checked_manifest(manifest: Manifest) -> Manifest:
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
        if entry.code != code_file(name):
            raise ValueError(f"entry {name} has its code in {entry.code[:100]!r}")
    states: dict[str, TensorSpec] = {}
    for name, entry in manifest.entries.items():
        for spec in entry.signature.state:
            if states.setdefault(spec.name, spec) != spec:
                raise ValueError(f"entry {name} has another state {spec.name} than the entries before it")


def _check_spec(spec: TensorSpec) -> None:
    if not isinstance(getattr(torch, spec.held, None), torch.dtype):
        raise ValueError(f"{spec.name} has the dtype {spec.dtype!r}")
    for size in spec.shape:
        if not isinstance(size, str) and not 0 <= size <= _LARGEST:
            raise ValueError(f"{spec.name} has an axis of {size}")
