"""Replaces the subgraphs that the rules recognise by calls of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule

from tkc.kernels import SPECS, KernelDispatch, KernelSpec, Target
from tkc.kernels import Choice as KernelChoice
from tkc.kernels.estimates import ALL_SIZES, Between
from tkc.passes.graph.bindings import Graph
from tkc.passes.graph.block_rewrite import BlockReads, BlockRewrite, Replacement
from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.kernel_call import UnfitInput, bound_sizes, kernel_dispatch, kernel_prim_func, output_types
from tkc.passes.graph.readers import needed_elsewhere
from tkc.passes.rules.rule import Rule, Site, kind_of
from tkc.passes.rules.table import RULES

Choice = Literal["auto", "all", "none"]
Configure = Callable[[KernelSpec[Any, Any], Any, Target, Between], tuple[KernelChoice[Any], ...]]
"""Says in which configurations a kernel is called for sizes between two; none: it is not to be called."""


@dataclass(frozen=True)
class Substitution:
    """Equal kernel calls that one rule put into one function; ``variables`` name in the graph what they compute.

    ``replaced`` has for each of them all the variables whose values the call computes, itself among them.
    """

    rule: str
    kernel: str
    function: str
    parameters: Any
    variables: tuple[str, ...]
    replaced: tuple[tuple[str, ...], ...] = ()

    @property
    def count(self) -> int:
        """How many calls these are."""
        return len(self.variables)


@dataclass(frozen=True)
class RefusedMatch:
    """A subgraph that keeps its ordinary operators although it is nearly what a rule looks for, and why."""

    rule: str
    function: str
    variable: str
    reason: str


@dataclass(frozen=True)
class SubstitutionReport:
    """What :class:`SubstituteKernels` did and declined to do, in the order of the rules. Two add up to one."""

    substitutions: tuple[Substitution, ...] = ()
    refusals: tuple[RefusedMatch, ...] = ()

    def __add__(self, later: SubstitutionReport) -> SubstitutionReport:
        return SubstitutionReport(self.substitutions + later.substitutions, self.refusals + later.refusals)


def default_configuration(
    spec: KernelSpec[Any, Any], parameters: Any, target: Target, between: Between
) -> tuple[KernelChoice[Any], ...]:
    """The first of the configurations that ``spec`` offers, for every size."""
    return (KernelChoice(spec.configurations(parameters, target)[0]),)


def called_kernels(module: IRModule) -> list[tuple[GlobalVar, KernelDispatch, int]]:
    """Every kernel that ``module`` calls: the function that does, its configurations, and from how many places."""
    calls: Counter[GlobalVar] = Counter()

    def count(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            calls.update(arg for arg in expr.args[:1] if isinstance(arg, GlobalVar))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    dispatches = ((name, kernel_dispatch(function)) for name, function in module.functions_items())
    return [(name, dispatch, calls[name]) for name, dispatch in dispatches if dispatch is not None]


@dataclass(frozen=True)
class SubstituteKernels:
    """Applies ``rules``, in their order, to every dataflow block of a module, then drops what nothing reads any more.

    ``kernels``: ``"auto"`` substitutes where a kernel exists and its spec expects it to pay, ``"all"`` wherever one
    exists, ``"none"`` nowhere. ``configure`` chooses a kernel's configurations.
    """

    target: Target
    kernels: Choice
    rules: Sequence[Rule[Any]] = RULES
    configure: Configure = default_configuration

    def __call__(self, module: IRModule) -> tuple[IRModule, SubstitutionReport]:
        """``module`` with kernel calls, and what was substituted and refused."""
        report = SubstitutionReport()
        if self.kernels == "none":
            return module, report
        looked_at: dict[GlobalVar, _LookedAt] = {}
        for rule in self.rules:
            for name, function in module.functions_items():
                if isinstance(function, relax.Function):
                    if name not in looked_at or looked_at[name].graph.module is not module:
                        looked_at[name] = _LookedAt(Graph(module, module[name]))
                    if looked_at[name].has_roots(rule):
                        module, found = self._apply(rule, module, name, looked_at[name])
                        report += found
        module = relax.transform.CanonicalizeBindings()(module)
        return relax.transform.DeadCodeElimination()(module), report

    def _apply(
        self, rule: Rule[Any], module: IRModule, name: GlobalVar, looked_at: _LookedAt
    ) -> tuple[IRModule, SubstitutionReport]:
        function, builder = looked_at.graph.function, relax.BlockBuilder(module)
        writer = _Writer(rule, looked_at, builder, self)
        blocks = [writer.rewritten(block) for block in function.body.blocks]
        refusals = tuple(
            RefusedMatch(rule.name, name.name_hint, var.name_hint, reason) for var, reason in writer.refusals.items()
        )
        if not writer.written:
            return module, SubstitutionReport((), refusals)
        body = relax.SeqExpr(blocks, function.body.body)
        builder.update_func(
            name, relax.Function(function.params, body, function.ret_struct_info, function.is_pure, function.attrs)
        )
        module = relax.transform.Normalize()(builder.get())
        module.update_func(name, relax.analysis.remove_all_unused(module[name]))
        live = relax.analysis.get_var2val(module[name])
        substitutions = _summary(rule, name, [call for call in writer.written if call.is_read(live)])
        return module, SubstitutionReport(substitutions, refusals)


class _LookedAt:
    """What rules look at in one function, found once for all that follow each other without a substitution."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kinds = {var: kind_of(graph.value(var)) for var in graph.var2val}
        self._kinds = frozenset(self.kinds.values())
        self._reads: dict[relax.DataflowBlock, BlockReads] = {}

    def has_roots(self, rule: Rule[Any]) -> bool:
        """Whether there is anything at which ``rule`` looks."""
        return not self._kinds.isdisjoint(rule.roots)

    def reads(self, block: relax.DataflowBlock) -> BlockReads:
        """What the bindings of ``block`` read of each other."""
        if block not in self._reads:
            self._reads[block] = BlockReads(block, self.graph.function.params)
        return self._reads[block]


@dataclass(frozen=True)
class _WrittenCall:
    """A call, named for the variable at the root of its match."""

    root: relax.Var
    parameters: Any
    replaced: tuple[relax.Var, ...]

    def is_read(self, live: Container[relax.Var]) -> bool:
        """Whether anything of what it computes is in use."""
        return any(var in live for var in self.replaced)


def _summary(rule: Rule[Any], function: GlobalVar, calls: Iterable[_WrittenCall]) -> tuple[Substitution, ...]:
    """``calls`` with equal ones taken together, in the function's order."""
    equal: dict[Any, list[_WrittenCall]] = {}
    for call in calls:
        equal.setdefault(call.parameters, []).insert(0, call)
    return tuple(
        Substitution(
            *(rule.name, rule.kernel, function.name_hint, parameters),
            variables=tuple(str(call.root.name_hint) for call in found),
            replaced=tuple(tuple(str(var.name_hint) for var in call.replaced) for call in found),
        )
        for parameters, found in equal.items()
    )


class _Writer:
    """Writes one rule's kernel calls into the blocks of one function."""

    def __init__(
        self, rule: Rule[Any], looked_at: _LookedAt, builder: relax.BlockBuilder, settings: SubstituteKernels
    ) -> None:
        self.rule = rule
        self.looked_at = looked_at
        self.graph = looked_at.graph
        self.builder = builder
        self.settings = settings
        self.written: list[_WrittenCall] = []
        self.refusals: dict[relax.Var, str] = {}

    def rewritten(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """``block`` with the rule's calls, found from its end, so that a larger match wins over one inside it."""
        if not isinstance(block, relax.DataflowBlock):
            return block
        rewrite = BlockRewrite(self.looked_at.reads(block))
        written = len(self.written)
        for var in rewrite.unsettled():
            if self.looked_at.kinds[var] not in self.rule.roots:
                continue
            found = self._found(Site(var, self.graph, self.settings.target))
            outcome = self._replacement(var, self.rule.call(found), rewrite) if isinstance(found, Found) else found
            if isinstance(outcome, Refusal):
                self.refusals[var] = outcome.reason
            elif outcome is not None:
                rewrite.add(outcome)
        return rewrite.block() if len(self.written) > written else block

    def _found(self, site: Site) -> Found | Refusal | None:
        """What the rule recognizes at ``site``, a root; refused if anything else reads what it consumes."""
        found = self.rule.recognize(site)
        if not isinstance(found, Found):
            return found
        reason = needed_elsewhere(self.graph, found.consumed, found.replaces)
        if reason is None:
            reads = (var for tensor in found.inputs.values() for var in relax.analysis.free_vars(tensor))
            if (read := next((var for var in reads if var in found.consumed), None)) is not None:
                reason = f"{read.name_hint}, which it computes on the way, is also one of its inputs"
        return found if reason is None else Refusal(reason)

    def _dispatch(
        self, call: KernelCall, inputs: Sequence[relax.StructInfo]
    ) -> tuple[KernelDispatch, dict[str, tirx.PrimExpr]] | Refusal:
        """The kernel of ``call`` for the sizes that calls may have, and these sizes."""
        spec, target, parameters = SPECS[self.rule.kernel], self.settings.target, call.parameters
        reason = spec.unsupported(parameters, target)
        if reason is None and self.settings.kernels == "auto":
            reason = spec.beneficial(parameters, target)
        if reason is not None:
            return Refusal(reason)
        try:
            sizes = bound_sizes(spec.inputs(parameters), inputs, call.sizes, self.graph.analyzer)
        except UnfitInput as error:
            return Refusal(str(error))
        between = None
        if (size := sizes.get(str(spec.dispatch_size))) is not None:
            bound = self.graph.analyzer.const_int_bound(size)
            between = int(bound.min_value), int(bound.max_value)
            least = spec.least_beneficial_size(parameters, target)
            if self.settings.kernels == "auto" and between[1] < least:
                return Refusal(f"its {spec.dispatch_size} is {between[1]}, and the kernel pays from {least} on")
        choices = self.settings.configure(spec, parameters, target, between or ALL_SIZES)
        if not choices:
            return Refusal("in every configuration, the order in which it reduces a row depends on the batch")
        dispatch = KernelDispatch(spec.name, parameters, choices, target)
        return (dispatch if between is None else dispatch.serving(*between)), sizes

    def _replacement(self, root: relax.Var, call: KernelCall, rewrite: BlockRewrite) -> Replacement | Refusal:
        inputs = _types(call.inputs)
        found = self._dispatch(call, inputs)
        if isinstance(found, Refusal):
            return found
        dispatch, sizes = found
        bindings = self._bindings(root, call, dispatch, output_types(dispatch, sizes))
        made = {binding.var for binding in bindings}
        reads = [var for binding in bindings for var in relax.analysis.free_vars(binding.value) if var not in made]
        replacement = Replacement(tuple(call.replaces), bindings, reads, _sizes((*inputs, bindings[0].var.struct_info)))
        if not rewrite.admits(replacement):
            return Refusal("its results are needed to compute its inputs, or do not stand in the same dataflow block")
        self.written.append(_WrittenCall(root, call.parameters, tuple(call.replaces)))
        return replacement

    def _bindings(
        self, root: relax.Var, call: KernelCall, dispatch: KernelDispatch, types: list[relax.TensorStructInfo]
    ) -> list[relax.Binding]:
        name = dispatch.kernel.replace(".", "_")
        kernel = self.builder.add_func(kernel_prim_func(dispatch), name)
        # By these names, reports and profiles tell which of the model's nodes the kernel computes.
        one = relax.TupleStructInfo(types) if len(types) > 1 else types[0]
        result = relax.DataflowVar(root.name_hint, one)
        called = relax.call_tir(kernel, relax.Tuple(call.inputs), types)
        bindings: list[relax.Binding] = [relax.VarBinding(result, called)]
        outputs: list[relax.Expr] = [result]
        if len(types) > 1:
            outputs = [relax.DataflowVar(f"{name}_{index}", info) for index, info in enumerate(types)]
            as_they_are = {restore(outputs): var.name_hint for var, restore in call.replaces.items()}
            outputs = [relax.DataflowVar(as_they_are.get(out, out.name_hint), out.struct_info) for out in outputs]
            bindings += [relax.VarBinding(out, relax.TupleGetItem(result, i)) for i, out in enumerate(outputs)]
        bindings += [relax.VarBinding(var, restore(outputs)) for var, restore in call.replaces.items()]
        return bindings


def _types(values: Sequence[relax.Expr]) -> list[relax.StructInfo]:
    """The types of expressions, which may not have been deduced yet."""
    builder = relax.BlockBuilder()
    read = (var.struct_info for value in values for var in relax.analysis.free_vars(value))
    with builder.testing_scope(_sizes(read)):
        return [builder.normalize(value).struct_info for value in values]


def _sizes(infos: Iterable[relax.StructInfo]) -> list[tirx.Var]:
    """The symbolic sizes in types, once each."""
    return list(dict.fromkeys(size for info in infos for size in relax.analysis.tir_vars_in_struct_info(info)))
