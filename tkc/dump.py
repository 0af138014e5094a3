"""What each pass of a stage did, as JSON beside the dumped modules: a reader can watch one rewrite."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm.ir import BaseFunc, IRModule
from tvm_ffi import structural_equal

from tkc.kernels.spec import as_json

if TYPE_CHECKING:
    from tkc.compilation import Compilation

Functions = Mapping[str, BaseFunc]
"""A module's functions by name."""


def functions_of(module: IRModule) -> Functions:
    """The functions of ``module`` as they are now: a pass may change a module in place, but no function."""
    return {name.name_hint: function for name, function in module.functions_items()}


@dataclass(frozen=True)
class PassChange:
    """What one pass did: the functions that it added, removed and changed, and what it found.

    ``found`` has the findings by kind, where there are any: ``substituted`` (rule, kernel, the function, and the
    variables that the calls compute), ``refused`` (rule, variable, reason), ``packed_weights``, ``scheduled`` (function
    and what scheduled it) and ``unordered``.
    """

    name: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    found: Mapping[str, list[dict[str, Any]]]

    @classmethod
    def between(cls, name: str, functions: Functions, before: Compilation, after: Compilation) -> PassChange:
        """What the pass ``name`` made of ``before``, which had these ``functions``."""
        now = functions_of(after.module)
        return cls(
            name,
            tuple(sorted(now.keys() - functions.keys())),
            tuple(sorted(functions.keys() - now.keys())),
            tuple(sorted(each for each in now.keys() & functions.keys() if not _are_equal(now[each], functions[each]))),
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


def _are_equal(now: BaseFunc, before: BaseFunc) -> bool:
    return now.same_as(before) or structural_equal(now, before)


def changes_text(stage: str, changes: Iterable[PassChange]) -> str:
    """The file that stands beside the module as ``stage`` left it."""
    return json.dumps({"stage": stage, "passes": [change.to_json() for change in changes]}, indent=1) + "\n"


def _found(before: Compilation, after: Compilation) -> dict[str, list[dict[str, Any]]]:
    """What ``after`` knows and ``before`` did not.

    Not by ``asdict``, which copies strings that are TVM's: two objects then free the same memory.
    """
    substitutions = after.substitutions.substitutions[len(before.substitutions.substitutions) :]
    found: dict[str, list[dict[str, Any]]] = {
        "substituted": [
            {
                "rule": row.rule,
                "kernel": row.kernel,
                "function": row.function,
                "variables": list(row.variables),
                "parameters": as_json(row.parameters),
            }
            for row in substitutions
        ],
        "refused": [
            {"rule": row.rule, "function": row.function, "variable": row.variable, "reason": row.reason}
            for row in after.substitutions.refusals[len(before.substitutions.refusals) :]
        ],
        "packed_weights": [
            {"sources": list(weights.sources), "axis": weights.axis}
            for weights in after.packed_weights[len(before.packed_weights) :]
        ],
        "scheduled": [
            {"function": row.function, "scheduled_by": row.scheduled_by, "reason": row.reason}
            for row in after.scheduled[len(before.scheduled) :]
        ],
        "unordered": [
            {"function": row.function, "variables": list(row.variables), "reason": row.reason}
            for row in after.unordered[len(before.unordered) :]
        ],
    }
    return {kind: rows for kind, rows in found.items() if rows}
