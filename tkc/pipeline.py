"""The whole compiler in one screen: the stages a model goes through, in order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax import transform

from tkc.activations import activation_plan
from tkc.compilation import Compilation
from tkc.kernels import Target
from tkc.passes.canonical.canonicalize import Canonicalize
from tkc.passes.canonical.concatenations import Concatenations
from tkc.passes.canonical.contractions import Contractions
from tkc.passes.canonical.convolution_products import ConvolutionProducts
from tkc.passes.canonical.experts.sparse_experts import SparseExperts
from tkc.passes.canonical.forward_substitutions import ForwardSubstitutions
from tkc.passes.canonical.grouped_attention import GroupedAttention
from tkc.passes.canonical.library_attention import LibraryAttention
from tkc.passes.canonical.library_bfloat16_products import LibraryBfloat16Products
from tkc.passes.canonical.library_convolutions import LibraryConvolutions
from tkc.passes.canonical.library_integer_products import LibraryIntegerProducts
from tkc.passes.canonical.library_sorts import LibrarySorts
from tkc.passes.canonical.linear_products import LinearProducts
from tkc.passes.canonical.nonzero import Nonzero
from tkc.passes.canonical.pack_weights import pack_weights
from tkc.passes.canonical.patch_products import PatchProducts
from tkc.passes.canonical.product_epilogues import ProductEpilogues
from tkc.passes.canonical.softmaxes import Softmaxes
from tkc.passes.canonical.weight_products import WeightProducts
from tkc.passes.lowering.captured_sizes import CapturedSizes
from tkc.passes.lowering.casts_in_branches import CastsInBranches
from tkc.passes.lowering.common_subexpressions import EliminateCommonSubexpressions
from tkc.passes.lowering.define_sizes_first import DefineSizesFirst
from tkc.passes.lowering.device_memory import DeviceMemory
from tkc.passes.lowering.distinct_constants import DistinctConstants
from tkc.passes.lowering.empty_tensors import AllocateEmptyConstants, FoldEmptyTensors
from tkc.passes.lowering.expand_functions import ExpandFunctions
from tkc.passes.lowering.fuse_operators import FuseOperators
from tkc.passes.lowering.grouped_concatenations import GroupedConcatenations
from tkc.passes.lowering.host_reads import HostReads
from tkc.passes.lowering.indexed_elements import IndexedElements
from tkc.passes.lowering.integer_power import IntegerPower
from tkc.passes.lowering.kept_checks import KeepChecks
from tkc.passes.lowering.long_concatenations import LongConcatenations
from tkc.passes.lowering.lower_attention import LowerAttention
from tkc.passes.lowering.lower_float8_casts import LowerFloat8Casts
from tkc.passes.lowering.machine_calls import MachineCalls
from tkc.passes.lowering.nan_legalization import LEGALIZATIONS
from tkc.passes.lowering.own_results import OwnResults
from tkc.passes.lowering.plan_memory import PlanMemory
from tkc.passes.lowering.planned_views import PlannedViews
from tkc.passes.lowering.read_regions import ReadRegions
from tkc.passes.lowering.reshape_views import ReshapeViews, legalize_reshape
from tkc.passes.lowering.retain_memory import RetainMemory
from tkc.passes.lowering.scans import Scans
from tkc.passes.lowering.scatters import Scatters
from tkc.passes.lowering.short_scans import ShortScans
from tkc.passes.lowering.simple_functions import with_simple_functions
from tkc.passes.lowering.simple_sizes import SimpleSizes
from tkc.passes.lowering.single_steps import SingleSteps
from tkc.passes.lowering.sort_keys import SortKeys
from tkc.passes.lowering.transposed_products import TransposedProducts
from tkc.passes.lowering.unequal_extents import MarkUnequalExtents
from tkc.passes.lowering.unread_blocks import RemoveUnreadBlocks
from tkc.passes.lowering.update_in_place import UpdateInPlace
from tkc.passes.lowering.wide_literals import with_wide_literals
from tkc.passes.lowering.widen_products import WidenProducts
from tkc.passes.lowering.widened_softmax import WidenedSoftmax
from tkc.passes.lowering.write_rows import WriteRows
from tkc.passes.rules.table import PRODUCT_RULES, RULES
from tkc.passes.substitute_kernels import (
    Choice,
    Configure,
    SubstituteKernels,
    called_kernels,
    default_configuration,
)
from tkc.schedules.schedule_module import ScheduleModule
from tkc.schedules.target import multiplies_bfloat16, tvm_target
from tkc.schedules.unordered import unordered_functions
from tkc.stages import PassStage, Step
from tkc.verify import (
    ATTENTION_SPELLED_OUT,
    ENTRIES_EXPORTED,
    FUNCTIONS_ONLY,
    INPUTS_COUNTED,
    KERNELS_MARKED,
    KERNELS_REQUESTED,
    MACHINE_OPERATORS,
    OPAQUE_UNFUSED,
    RESULTS_KEPT,
    SCHEDULED,
    UPDATED_IN_PLACE,
    UPDATES_RETURNED,
    WELL_FORMED,
)

if TYPE_CHECKING:
    from tkc.schedules.database import Lookup


_GRAPH = (WELL_FORMED, INPUTS_COUNTED, RESULTS_KEPT, UPDATES_RETURNED)
_KERNEL_GRAPH = (*_GRAPH, KERNELS_MARKED)


def substitution_stages(
    target: Target, kernels: Choice, configure: Configure = default_configuration, *, batch_invariant: bool = False
) -> list[PassStage]:
    """From the imported model to one in which the rules' subgraphs are kernel calls.

    ``batch_invariant`` leaves out libraries, which may add up in another order for another batch.
    """
    convolutions: tuple[tvm.transform.Pass, ...] = ()
    linear: tuple[tvm.transform.Pass, ...] = ()
    if target.is_cuda:  # tensor cores multiply, and nothing else convolves on them
        convolutions = (
            Canonicalize(),
            ConvolutionProducts(target=None if kernels == "none" else target),
        )
    elif kernels == "auto":
        convolutions = (Canonicalize(), LibraryIntegerProducts())  # whose sums are exact in any order
        if not batch_invariant:
            convolutions = (*convolutions, LibraryConvolutions())
            narrow = (LibraryBfloat16Products(), LibraryAttention()) if multiplies_bfloat16(tvm_target(target)) else ()
            linear = (LinearProducts(), *narrow, Canonicalize(), ProductEpilogues())
    experts = () if kernels == "none" else (SparseExperts(target), Canonicalize())
    return [
        # Forms that mean the same become one form, so that few patterns find many graphs.
        PassStage(
            "canonicalize",
            (
                Nonzero(),
                FoldEmptyTensors(),
                KeepChecks(),
                ForwardSubstitutions(target),
                Concatenations(),
                Contractions(),
                Canonicalize(),
                Softmaxes(),
                GroupedAttention(),
                WeightProducts(),
                *convolutions,
                PatchProducts(),
                Canonicalize(),
                *experts,
            ),
            holds=_GRAPH,
        ),
        # Each rule's subgraph becomes a call_tir to a function that calls a kernel library. Between two kernels there
        # is often a reshape to the model's shape and back, which goes. Weights that a rule puts side by side are packed
        # once, here.
        # Attention that no kernel takes is spelled out in products, which one does.
        PassStage(
            "substitute kernels",
            (
                _substitute(SubstituteKernels(target, kernels, RULES, configure)),
                LowerAttention(),
                _substitute(SubstituteKernels(target, kernels, PRODUCT_RULES, configure)),
                Step("PackWeights", partial(_pack_weights, permutes=target.is_cuda)),
                Canonicalize(),
                *linear,
                Step("ListKernels", _list_kernels),
            ),
            holds=(*_KERNEL_GRAPH, ATTENTION_SPELLED_OUT),
        ),
    ]


def _substitute(kernels: SubstituteKernels) -> Step:
    def run(state: Compilation) -> Compilation:
        module, report = kernels(state.module)
        return replace(state, module=module, substitutions=state.substitutions + report)

    return Step("SubstituteKernels", run)


def _pack_weights(state: Compilation, *, permutes: bool) -> Compilation:
    # The weights that a CPU shares with the model go on following it.
    module, packed = pack_weights(state.module, permutes=permutes)
    return replace(state, module=module, packed_weights=state.packed_weights + packed)


def _list_kernels(state: Compilation) -> Compilation:
    return replace(state, kernels=tuple(kernel for _, kernel, _ in called_kernels(state.module)))


def fusion_stages(*, libraries: bool = False) -> list[PassStage]:
    """From what substitution left to TensorIR functions, each of which still needs a schedule.

    With ``libraries``, PyTorch's sorts, and on GPUs puts what is scattered in order.
    """
    return [
        # What layers compute alike (positions, masks) is computed once. Where a call updates rows of a tensor, these
        # alone are written, by opaque functions: no consumer takes the write into itself.
        PassStage(
            "write rows",
            (EliminateCommonSubexpressions(), WriteRows()),
            holds=_KERNEL_GRAPH,
        ),
        # What TVM would compute in too low a precision, or wrongly, is spelled out.
        PassStage(
            "lower operators",
            (WidenProducts(), WidenedSoftmax(), LowerFloat8Casts(), ExpandFunctions()),
            holds=_KERNEL_GRAPH,
        ),
        # Operators become TensorIR functions, neighbours one function each.
        PassStage(
            "fuse",
            (
                # Before functions are made, which keep the sizes that they are made with, and once all are.
                SimpleSizes(),
                IntegerPower(),
                ShortScans(),
                Scans(),
                IndexedElements(),
                Scatters(in_order=libraries),
                *([LibrarySorts()] if libraries else []),
                SortKeys(),
                IndexedElements(),  # which sorts have added
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                PlannedViews(),
                TransposedProducts(),
                SimpleSizes(),
                GroupedConcatenations(),
                transform.LegalizeOps(
                    with_wide_literals(with_simple_functions({**LEGALIZATIONS, "relax.reshape": legalize_reshape}))
                ),
                CapturedSizes(),
                transform.AnnotateTIROpPattern(),
                MarkUnequalExtents(),
                transform.DeadCodeElimination(),
                CastsInBranches(),
                LongConcatenations(),
                FuseOperators(),
                transform.FuseTIR(),
                SingleSteps(),
                RemoveUnreadBlocks(),
                ReadRegions(),
                DefineSizesFirst(),
                # Before anything is scheduled, because it recognises reshapes by their loops: they become views.
                ReshapeViews(),
                OwnResults(),
                transform.DeadCodeElimination(),
                DistinctConstants(),
            ),
            holds=(*_KERNEL_GRAPH, KERNELS_REQUESTED, FUNCTIONS_ONLY),
            throughout=(OPAQUE_UNFUSED,),
        ),
        # From here on the bindings keep their order, by which it is decided what can be overwritten.
        PassStage(
            "update in place",
            (UpdateInPlace(),),
            holds=(WELL_FORMED, INPUTS_COUNTED, UPDATED_IN_PLACE, KERNELS_MARKED, FUNCTIONS_ONLY),
        ),
    ]


def lowering_stage(target: Target, *planned: Step) -> PassStage:
    """From a graph of scheduled functions to a program for Relax's virtual machine, with its memory planned.

    ``planned`` look at the program where every allocation is one of storage, freed after its last use.
    """
    return PassStage(
        "lower",
        (
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            AllocateEmptyConstants(),
            transform.CallTIRRewrite(),
            PlanMemory(),
            transform.LowerAllocTensor(),
            *([RetainMemory(), HostReads()] if target.is_cuda else []),
            transform.KillAfterLastUse(),
            *planned,
            transform.LowerRuntimeBuiltin(),
            *([DeviceMemory()] if target.is_cuda else []),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
            MachineCalls(),
        ),
        holds=(WELL_FORMED, ENTRIES_EXPORTED, MACHINE_OPERATORS),
    )


def generation_stages(
    target: Target,
    machine: tvm.target.Target,
    database: Lookup | None,
    *,
    batch_invariant: bool = False,
    libraries: bool = False,
) -> list[PassStage]:
    """From what substitution left to a program of scheduled functions; the last stage lowers the graph."""
    schedule = ScheduleModule(target, machine, database, row_invariant=batch_invariant)
    return [
        *fusion_stages(libraries=libraries),
        # Every function gets a schedule: the database's, a rule's, or the fallback's. Which functions do not repeat
        # their bits is asked before lowering, which leaves no variables by which to name the model's nodes.
        PassStage(
            "schedule",
            (_schedule(schedule), Step("UnorderedFunctions", _find_unordered)),
            holds=(WELL_FORMED, SCHEDULED, KERNELS_MARKED, KERNELS_REQUESTED),
        ),
        lowering_stage(target, Step("PlanActivations", _plan_activations)),
    ]


def _schedule(schedule: ScheduleModule) -> Step:
    def run(state: Compilation) -> Compilation:
        module, scheduled = schedule(state.module)
        return replace(state, module=module, unscheduled=state.module, scheduled=state.scheduled + scheduled)

    return Step("ScheduleModule", run)


def _plan_activations(state: Compilation) -> Compilation:
    return replace(state, activations=activation_plan(state.module))


def _find_unordered(state: Compilation) -> Compilation:
    return replace(state, unordered=unordered_functions(state.module))
