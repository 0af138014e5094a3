"""The nodes of a model in short, for tables and ranges: where in the model, and which operators."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATH = re.compile(r"module '([^']*)'")
_ONNX = re.compile(r"""ONNX node (?P<quote>['"])(?P<name>.*)(?P=quote) \((?P<operator>[^()]*)\)""")
_MOST = 4
_MOVES = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "expand_as", "slice", "select"),
        *("contiguous", "clone", "flatten", "unflatten", "to", "_to_copy", "detach", "alias", "lift_fresh_copy", "t"),
        *("cast", "identity", "constant", "shape"),
    }
)
"""Operators of PyTorch and ONNX that move elements and compute nothing, in small letters."""


def module_path(node: str) -> str:
    """The path of the module that ``node`` is in, or the name of an ONNX node; empty where it is not known."""
    if onnx := _ONNX.match(node):
        return onnx["name"]
    found = _PATH.search(node)
    return found[1] if found else ""


def operator(node: str) -> str:
    """The operator of ``node``, without namespace and overload."""
    if onnx := _ONNX.match(node):
        return onnx["operator"]
    name = node.partition(" (")[0]
    parts = re.split(r"::|\.", name)
    return parts[1] if len(parts) > 1 else name


def named_nodes(nodes: Sequence[str], most: int = _MOST) -> str:
    """``layers.0.up (linear), layers.0 (gelu)``, at most so many places.

    Operators that only move elements are told where there are no others.
    """
    operators: dict[str, list[str]] = {}
    for node in [node for node in nodes if operator(node).lower() not in _MOVES] or nodes:
        operators.setdefault(module_path(node), []).append(operator(node))
    parts = []
    for path, names in operators.items():
        shown = ", ".join(dict.fromkeys(names))
        parts.append(f"{path} ({shown})" if path else shown)
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f", … {more} more" if more > 0 else "")


def common_path(nodes: Sequence[str]) -> str:
    """The path of the innermost module that all of ``nodes`` are in; empty for the model itself."""
    paths = [re.split(r"[./]", module_path(node).strip("/")) for node in nodes]
    if not paths:
        return ""
    common = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)
