"""What each pass of a stage did, as JSON beside the dumped modules: a reader can watch one rewrite."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tvm import IRModule
from tvm_ffi import structural_hash

if TYPE_CHECKING:
    from tkc.stages import Compilation

Hashes = Mapping[str, int]
"""A module's functions by name, each as the hash of its structure."""


def function_hashes(module: IRModule) -> Hashes:
    """The functions of ``module`` as they are now: a pass may change a module in place."""
    return {name.name_hint: structural_hash(function) for name, function in module.functions_items()}


@dataclass(frozen=True)
class PassChange:
    """What one pass did: the functions that it added, removed and changed, and what it found.

    ``found`` has the findings by kind, where there are any: ``substituted`` (rule, kernel, the function, and the
    variables that the calls compute), ``refused`` (rule, variable, reason), ``joined_weights``, ``scheduled`` (function
    and what scheduled it) and ``unordered``.
    """

    name: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    found: Mapping[str, list[dict[str, Any]]]

    @classmethod
    def between(cls, name: str, hashes: Hashes, before: Compilation, after: Compilation) -> PassChange:
        """What the pass ``name`` made of ``before``, whose functions had ``hashes``."""
        now = function_hashes(after.module)
        return cls(
            name,
            tuple(sorted(now.keys() - hashes.keys())),
            tuple(sorted(hashes.keys() - now.keys())),
            tuple(sorted(function for function in now.keys() & hashes.keys() if now[function] != hashes[function])),
            _found(before, after),
        )

    def to_json(self) -> dict[str, Any]:
        """The change as JSON values."""
        changed = bool(self.added or self.removed or self.changed)
        functions = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return {
            "pass": self.name,
            "changed_module": changed,
            **{f"functions_{kind}": list(names) for kind, names in functions.items() if names},
            **self.found,
        }


def changes_text(stage: str, changes: Iterable[PassChange]) -> str:
    """The file that stands beside the module as ``stage`` left it."""
    return (
        json.dumps({"stage": stage, "passes": [change.to_json() for change in changes]}, indent=1, default=str) + "\n"
    )


def _found(before: Compilation, after: Compilation) -> dict[str, list[dict[str, Any]]]:
    """What ``after`` knows and ``before`` did not."""
    substitutions = after.substitutions.substitutions[len(before.substitutions.substitutions) :]
    found: dict[str, list[dict[str, Any]]] = {
        "substituted": [
            {
                "rule": row.rule,
                "kernel": row.kernel,
                "function": row.function,
                "variables": list(row.variables),
                "parameters": asdict(row.parameters),
            }
            for row in substitutions
        ],
        "refused": [asdict(row) for row in after.substitutions.refusals[len(before.substitutions.refusals) :]],
        "joined_weights": [asdict(weights) for weights in after.joined[len(before.joined) :]],
        "scheduled": [
            {"function": row.function, "scheduled_by": row.scheduled_by, "reason": row.reason}
            for row in after.scheduled[len(before.scheduled) :]
        ],
        "unordered": [asdict(function) for function in after.unordered[len(before.unordered) :]],
    }
    return {kind: rows for kind, rows in found.items() if rows}
