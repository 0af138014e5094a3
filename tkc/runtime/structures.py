"""Structures of inputs and outputs as text, read without importing or calling anything that the text names."""

from __future__ import annotations

import json
import sys
from enum import Enum
from typing import Any

from torch.utils import _pytree as pytree

MOST_TEXT = 1 << 20
"""Characters of the longest structure that is read."""

_FACTORIES = {"list", "dict", "int", "float", "str", "set", "tuple", "bool"}


class UnknownClassError(ValueError):
    """A structure of a class that is not registered here: its package is not imported."""


def read_structure(text: str) -> pytree.TreeSpec:
    """The pytree spec that ``torch.utils._pytree.treespec_dumps`` wrote as ``text``.

    PyTorch would import what the text names as an enumeration or a default factory. Here these must be loaded
    already, and be what they should be. Raises :class:`UnknownClassError` for a class that is not registered,
    :class:`ValueError` for anything else that is no structure.
    """
    check_structure(text)
    try:
        return pytree.treespec_loads(text)
    except (UnknownClassError, NotImplementedError) as error:
        raise UnknownClassError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise ValueError(f"no structure of inputs or outputs: {error}") from None


def check_structure(text: str) -> None:
    """See to it that PyTorch imports and calls nothing when it reads ``text``; errors are those of
    :func:`read_structure`.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"a structure of {len(text)} characters")
    try:
        protocol, root = json.loads(text)
        if protocol != 1:
            raise ValueError(f"protocol {protocol!r}")
        _check(root)
    except UnknownClassError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no structure of inputs or outputs: {error}") from None


def _check(node: Any) -> None:
    kind, context = node["type"], node["context"]
    if kind == "collections.defaultdict":
        # PyTorch hands its context over as it is, and calls what it names for each missing key.
        module, name = context["default_factory_module"], context["default_factory_name"]
        if module != "builtins" or name not in _FACTORIES:
            raise ValueError(f"a defaultdict of {module}.{name}")
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            context = None  # a name, which is looked up among registered classes
    _check_context(context)
    for child in node["children_spec"]:
        _check(child)


def _check_context(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _check_context(item)
    elif isinstance(value, dict):
        if "__enum__" in value:
            _check_enumeration(str(value["fqn"]))
        for item in value.values():
            _check_context(item)


def _check_enumeration(name: str) -> None:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # Not by getattr, which may run a package's own code.
        found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
    if not (isinstance(found, type) and issubclass(found, Enum)):
        raise UnknownClassError(f"{name} is no enumeration of a module that is imported here")
