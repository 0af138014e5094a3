"""How a model goes through stages: what a stage is, the value that it turns into the next, and what runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tvm
from tvm import IRModule

import tkc.tvm_errors
import tkc.tvm_strings  # noqa: F401
from tkc.compilation import Compilation
from tkc.dump import PassChange, changes_text, functions_of
from tkc.failures import explained
from tkc.runtime.report_rows import Stage

if TYPE_CHECKING:
    from tkc.diagnosis.search import Search
    from tkc.frontend.model import ImportedModel
    from tkc.verify import Condition

# Operators of one function: of some 200, each reading the one before, code generation overflows the stack. TVM has 256.
_MOST_FUSED = 100
VERIFY = "TKC_VERIFY"
"""The environment variable that has every compilation verify its stages: ``1`` or ``0``."""

_Result = TypeVar("_Result")

Observer = Callable[[str], None]
"""Is told the name of each stage as it begins."""


@dataclass(frozen=True)
class Step:
    """A part of a stage that finds something besides the module it makes."""

    name: str
    run: Callable[[Compilation], Compilation]

    @classmethod
    def of(cls, only: tvm.transform.Pass) -> Step:
        """A pass of TVM's, which changes the module alone."""
        return cls(str(only.info.name), lambda state: replace(state, module=only(state.module)))


@dataclass(frozen=True)
class PassStage:
    """Passes that belong together, under the name that reports, progress and dumps use.

    ``holds`` states what is true of every module behind the stage, ``throughout`` what is true behind each of its
    passes too; a verifying :class:`StageRunner` checks both, any other those that are always checked.
    """

    name: str
    passes: tuple[tvm.transform.Pass | Step, ...]
    holds: tuple[Condition, ...] = ()
    throughout: tuple[Condition, ...] = ()


class StageRunner:
    """Runs stages, times them, tells an observer, dumps the module between them and verifies them, if asked to.

    ``circumstances`` are what a failure is explained with. ``verify=None`` asks the environment (:data:`VERIFY`).
    """

    def __init__(
        self,
        observer: Observer | None = None,
        dump: str | Path | None = None,
        circumstances: Search | None = None,
        verify: bool | None = None,
    ) -> None:
        self.stages: list[Stage] = []
        self.circumstances = circumstances
        self._observer = observer
        self._verify = os.environ.get(VERIFY, "0") not in ("", "0") if verify is None else verify
        self._dump = None if dump is None else Path(dump)
        if self._dump is not None:
            with explained("dump"):
                self._dump.mkdir(parents=True, exist_ok=True)

    def explain_with(self, imported: ImportedModel) -> None:
        """Explain the failures of later stages by the nodes of the model that ``imported`` is."""
        if self.circumstances is not None:
            self.circumstances.imported = imported

    def run(self, name: str, work: Callable[[], _Result], module: IRModule | None = None) -> _Result:
        """Do ``work`` as the stage ``name``; its result.

        ``module`` is what ``work`` begins with. Raises :class:`tkc.Error` for whatever ``work`` raises.
        """
        if self._observer is not None:
            self._observer(name)
        start = time.perf_counter()
        with explained(name, self.circumstances, module):
            result = work()
        self.stages.append(Stage(name, time.perf_counter() - start))
        return result

    def run_stages(self, compilation: Compilation, stages: Iterable[PassStage]) -> Compilation:
        """``compilation`` after every stage, in order."""
        from tkc.verify import returned

        if compilation.returned is None:
            compilation = replace(compilation, returned=returned(compilation.module))
        with tvm.transform.PassContext(config={"relax.FuseOps.max_depth": _MOST_FUSED}):
            after: Compilation = reduce(self._after_stage, stages, compilation)
            return after

    def dump(self, module: IRModule, changes: Iterable[PassChange] | None = None) -> None:
        """Write ``module``, as the stage that ran last left it, into the dump's folder, if there is one.

        Beside it goes what each pass of the stage did.
        """
        if self._dump is None:
            return
        name = self.stages[-1].name
        path = self._dump / f"{len(self.stages):02d}_{name.replace(' ', '_')}.py"
        with explained("dump"):
            path.write_text(module.script(show_meta=False))
            if changes is not None:
                path.with_suffix(".json").write_text(changes_text(name, changes))

    def _after_stage(self, before: Compilation, stage: PassStage) -> Compilation:
        after, changes = self.run(stage.name, lambda: self._through(before, stage), before.module)
        self.dump(after.module, changes)
        return after

    def _through(self, before: Compilation, stage: PassStage) -> tuple[Compilation, tuple[PassChange, ...]]:
        """``before`` after the stage, and, where it is to be dumped, what each pass did."""
        state = before
        changes: tuple[PassChange, ...] = ()
        for each in stage.passes:
            step = each if isinstance(each, Step) else Step.of(each)
            functions = None if self._dump is None else functions_of(state.module)
            after = step.run(state)
            if functions is not None:
                changes = (*changes, PassChange.between(step.name, functions, state, after))
            self._check(stage, after, stage.throughout, step.name)
            state = after
        self._check(stage, state, stage.holds)
        return state, changes

    def _check(self, stage: PassStage, state: Compilation, conditions: Iterable[Condition], step: str = "") -> None:
        from tkc.verify import verify

        verify(stage.name, state, [each for each in conditions if self._verify or each.always], step)
