"""The whole compiler in one screen: the stages a model goes through, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import IRModule, relax
from tvm.relax import transform

from tkc.failures import explained
from tkc.kernels import Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.concatenations import Concatenations
from tkc.passes.canonical.contractions import Contractions
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.canonical.join_weights import JoinedWeights, JoinWeights
from tkc.passes.canonical.patch_products import PatchProducts
from tkc.passes.graph.branches import PlanMemory
from tkc.passes.lowering.define_sizes_first import DefineSizesFirst
from tkc.passes.lowering.device_memory import DeviceMemory
from tkc.passes.lowering.empty_tensors import AllocateEmptyConstants, FoldEmptyTensors
from tkc.passes.lowering.expand_functions import ExpandFunctions
from tkc.passes.lowering.indexed_elements import IndexedElements
from tkc.passes.lowering.integer_power import IntegerPower
from tkc.passes.lowering.lower_attention import LowerAttention
from tkc.passes.lowering.lower_float8_casts import LowerFloat8Casts
from tkc.passes.lowering.nan_legalization import LEGALIZATIONS
from tkc.passes.lowering.planned_views import PlannedViews
from tkc.passes.lowering.reshape_views import ReshapeViews
from tkc.passes.lowering.retain_memory import RetainMemory
from tkc.passes.lowering.scans import Scans
from tkc.passes.lowering.short_scans import ShortScans
from tkc.passes.lowering.simple_sizes import SimpleSizes
from tkc.passes.lowering.sort_keys import SortKeys
from tkc.passes.lowering.transposed_products import TransposedProducts
from tkc.passes.lowering.update_in_place import UpdateInPlace
from tkc.passes.lowering.widen_products import WidenProducts
from tkc.passes.lowering.write_rows import WriteRows
from tkc.passes.rules.table import PRODUCT_RULES, RULES
from tkc.passes.substitute_kernels import (
    Choice,
    Configure,
    SubstituteKernels,
    SubstitutionReport,
    default_configuration,
)
from tkc.runtime.report import Stage
from tkc.schedules.schedule_module import ScheduledFunction, ScheduleModule

if TYPE_CHECKING:
    from tkc.diagnosis.search import Compilation
    from tkc.frontend.model import ImportedModel
    from tkc.schedules.database import Lookup

# Operators of one function: of some 200, each reading the one before, code generation overflows the stack. TVM has 256.
_MOST_FUSED = 100

Observer = Callable[[str], None]
"""Is told the name of each stage as it begins."""


@dataclass(frozen=True)
class PassStage:
    """Passes that belong together, under the name that reports, progress and dumps use."""

    name: str
    passes: tuple[tvm.transform.Pass, ...]


def substitution_stages(
    target: Target,
    kernels: Choice,
    report: SubstitutionReport,
    configure: Configure = default_configuration,
    joined: list[JoinedWeights] | None = None,
) -> list[PassStage]:
    """From the imported model to one in which the rules' subgraphs are kernel calls.

    ``joined`` is filled with the weights that must be joined for it.
    """
    # Tensor cores multiply, and nothing else convolves on them.
    convolutions = (Canonicalize(), ConvolutionProducts()) if target.is_cuda else ()
    return [
        # Forms that mean the same become one form, so that few patterns find many graphs.
        PassStage(
            "canonicalize",
            (FoldEmptyTensors(), Concatenations(), Contractions(), *convolutions, PatchProducts(), Canonicalize()),
        ),
        # Each rule's subgraph becomes a call_tir to a function that calls a kernel library. Between two kernels there
        # is often a reshape to the model's shape and back, which goes. Weights that a rule joins are joined once, here.
        # Attention that no kernel takes is spelled out in products, which one does.
        PassStage(
            "substitute kernels",
            (
                SubstituteKernels(target, kernels, report, RULES, configure),
                LowerAttention(),
                SubstituteKernels(target, kernels, report, PRODUCT_RULES, configure),
                JoinWeights([] if joined is None else joined),
                Canonicalize(),
            ),
        ),
    ]


def fusion_stages() -> list[PassStage]:
    """From what substitution left to TensorIR functions, each of which still needs a schedule."""
    return [
        # What layers compute alike (positions, masks) is computed once. Where a call updates rows of a tensor, these
        # alone are written, by opaque functions: no consumer takes the write into itself.
        PassStage("write rows", (transform.EliminateCommonSubexpr(), WriteRows())),
        # What TVM would compute in too low a precision, or wrongly, is spelled out.
        PassStage("lower operators", (WidenProducts(), LowerFloat8Casts(), ExpandFunctions())),
        # Operators become TensorIR functions, neighbours one function each.
        PassStage(
            "fuse",
            (
                IntegerPower(),
                ShortScans(),
                Scans(),
                SortKeys(),
                IndexedElements(),
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                PlannedViews(),
                TransposedProducts(),
                SimpleSizes(),
                transform.LegalizeOps(LEGALIZATIONS),
                transform.AnnotateTIROpPattern(),
                transform.DeadCodeElimination(),
                transform.FuseOps(),
                transform.FuseTIR(),
                DefineSizesFirst(),
                # Before anything is scheduled, because it recognises reshapes by their loops: they become views.
                ReshapeViews(),
                transform.DeadCodeElimination(),
            ),
        ),
        # From here on the bindings keep their order, by which it is decided what can be overwritten.
        PassStage("update in place", (UpdateInPlace(),)),
    ]


def lowering_stage(target: Target) -> PassStage:
    """From a graph of scheduled functions to a program for Relax's virtual machine, with its memory planned."""
    return PassStage(
        "lower",
        (
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            AllocateEmptyConstants(),
            transform.CallTIRRewrite(),
            PlanMemory(),
            transform.LowerAllocTensor(),
            *([RetainMemory()] if target.is_cuda else []),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            *([DeviceMemory()] if target.is_cuda else []),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ),
    )


def generation_stages(
    target: Target, tvm_target: tvm.target.Target, database: Lookup | None, scheduled: list[ScheduledFunction]
) -> list[PassStage]:
    """From what substitution left to a program of scheduled functions; the last stage lowers the graph."""
    return [
        *fusion_stages(),
        # Every function gets a schedule: the database's, a rule's, or the fallback's.
        PassStage("schedule", (ScheduleModule(target, tvm_target, database, scheduled),)),
        lowering_stage(target),
    ]


class StageRunner:
    """Runs stages, times them, tells an observer, and dumps the module between them if asked to.

    ``circumstances`` are what a failure is explained with.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        dump: str | Path | None = None,
        circumstances: Compilation | None = None,
    ) -> None:
        self.stages: list[Stage] = []
        self.circumstances = circumstances
        self._observer = observer
        self._dump = None if dump is None else Path(dump)
        if self._dump is not None:
            with explained("dump"):
                self._dump.mkdir(parents=True, exist_ok=True)

    def explain_with(self, imported: ImportedModel) -> None:
        """Explain the failures of later stages by the nodes of the model that ``imported`` is."""
        if self.circumstances is not None:
            self.circumstances.imported = imported

    def run(self, name: str, work: Callable[[], Any], module: IRModule | None = None) -> Any:
        """Do ``work`` as the stage ``name``; its result, which is dumped if it is a module.

        ``module`` is what ``work`` begins with. Raises :class:`tkc.Error` for whatever ``work`` raises.
        """
        if self._observer is not None:
            self._observer(name)
        start = time.perf_counter()
        with explained(name, self.circumstances, module):
            result = work()
        self.stages.append(Stage(name, time.perf_counter() - start))
        if self._dump is not None and isinstance(result, IRModule):
            path = self._dump / f"{len(self.stages):02d}_{name.replace(' ', '_')}.py"
            with explained("dump"):
                path.write_text(result.script(show_meta=False))
        return result

    def run_passes(self, module: IRModule, stages: list[PassStage]) -> IRModule:
        """``module`` after every stage, in order."""
        with tvm.transform.PassContext(config={"relax.FuseOps.max_depth": _MOST_FUSED}):
            for stage in stages:
                module = self.run(stage.name, partial(tvm.transform.Sequential(stage.passes), module), module)
        return module
