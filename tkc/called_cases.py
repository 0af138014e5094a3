"""Which kernels a model calls, at which sizes, and how long that takes at a device's nominal rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import arith, relax, tirx
from tvm.ir import GlobalVar, IRModule

from tkc.kernels import KernelDispatch, TensorType
from tkc.kernels.all_cases import cases_of
from tkc.kernels.cases import Case
from tkc.kernels.target import Target
from tkc.passes.graph.bindings import known_dims
from tkc.passes.graph.kernel_call import kernel_dispatch
from tkc.schedules.estimate import machine_rates
from tkc.schedules.sizes import representative_points
from tkc.schedules.sizes.representative import Range
from tkc.schedules.target import tvm_target

# How many times as many operations as on float32 tensor cores do on narrower operands: 16 on an A100, 15 on an H100.
_TENSOR_CORES = {16: 16.0, 8: 32.0}


@dataclass(frozen=True)
class CalledCase:
    """A kernel at sizes that the model calls it with: ``weight`` times in one call of the model, on average over the
    sizes that are looked at. ``seconds`` is the estimate for one, ``configuration`` what serves it.
    """

    case: Case
    weight: float
    seconds: float
    configuration: Any

    @property
    def total(self) -> float:
        """What a call of the model spends in it."""
        return self.weight * self.seconds


@dataclass(frozen=True)
class _Site:
    """Calls of one kernel whose sizes are the same formulas of the model's."""

    kernel: KernelDispatch
    sizes: Mapping[str, tirx.PrimExpr]


def called_cases(
    module: IRModule,
    target: Target,
    ranges: Mapping[str, Range] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> list[CalledCase]:
    """The kernels that ``module``, after substitution, calls, at the sizes in ``shapes``, or at some spread over their
    ``ranges``; sizes that only data tells are spread likewise. What takes longest comes first.

    Raises :class:`ValueError` for a size outside its range.
    """
    found: dict[tuple[object, ...], CalledCase] = {}
    for site, calls in _sites(module):
        names = _names(site)
        points = representative_points(names, ranges or {}, shapes)
        for point in points:
            sizes = {name: _value(size, point) for name, size in site.sizes.items()}
            if any(size < 1 for size in sizes.values()):
                continue  # nothing is computed there
            case = Case(site.kernel.kernel, site.kernel.parameters, _given(site.kernel, sizes))
            key = (case.kernel, case.parameters, *sorted(case.sizes.items()))
            known = found.get(key)
            weight = calls / len(points) + (known.weight if known else 0.0)
            configuration = site.kernel.configuration(case.sizes)
            found[key] = CalledCase(case, weight, estimated_seconds(case, target), configuration)
    return sorted(found.values(), key=lambda called: -called.total)


def estimated_seconds(case: Case, target: Target) -> float:
    """The larger of the kernel's operations and its bytes, each at the nominal rate of ``target``."""
    from tkc.kernels.all_cases import all_sizes
    from tkc.kernels.registry import SPECS

    spec = SPECS[case.kernel]
    work = spec.work(case.parameters, all_sizes(case))
    rates = machine_rates(tvm_target(target))
    bits = min((_bits(tensor) for tensor in spec.inputs(case.parameters)), default=32)
    faster = _TENSOR_CORES.get(bits, 1.0) if target.is_cuda else 1.0
    return max(work.flops / (rates.flops * faster), work.bytes / rates.bytes)


def _bits(tensor: TensorType) -> int:
    """The width of a tensor's floats; 32 of others."""
    if not tensor.dtype.startswith(("float", "bfloat")):
        return 32
    return TensorType("one", (8,), tensor.dtype).num_bytes({})


def _sites(module: IRModule) -> Iterator[tuple[_Site, int]]:
    """Calls of kernels, equal ones once with how many they are."""
    dispatches = {name: kernel for name, function in module.functions_items() if (kernel := kernel_dispatch(function))}
    found: dict[tuple[object, ...], tuple[_Site, int]] = {}

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call) or not expr.args or not isinstance(expr.args[0], GlobalVar):
            return
        kernel = dispatches.get(expr.args[0])
        if kernel is None:
            return
        site = _Site(kernel, _sizes(kernel, expr))
        key = (kernel.kernel, kernel.parameters, *((name, str(size)) for name, size in sorted(site.sizes.items())))
        found[key] = (site, found[key][1] + 1 if key in found else 1)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    yield from found.values()


def _sizes(kernel: KernelDispatch, call: relax.Call) -> dict[str, tirx.PrimExpr]:
    """The kernel's run-time sizes as formulas of the model's, read off the tensors of a call."""
    spec, parameters = kernel.spec, kernel.parameters
    outputs = spec.outputs(parameters)
    made = call.struct_info
    infos = list(made.fields) if isinstance(made, relax.TupleStructInfo) else [made]
    tensors = [
        *zip(spec.inputs(parameters), (each.struct_info for each in call.args[1].fields), strict=False),
        *zip(outputs, infos, strict=False),  # workspaces follow
    ]
    sizes: dict[str, tirx.PrimExpr] = {}
    for tensor, info in tensors:
        for dim, size in zip(tensor.shape, known_dims(info) or (), strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def _names(site: _Site) -> tuple[str, ...]:
    """The model's sizes that the call's are made of."""
    names: dict[str, None] = {}

    def visit(node: object) -> None:
        if isinstance(node, tirx.Var):
            names[node.name] = None

    for size in site.sizes.values():
        if isinstance(size, tirx.PrimExpr):
            tirx.stmt_functor.post_order_visit(size, visit)
    return tuple(names)


def _value(size: tirx.PrimExpr | int, point: Mapping[str, int]) -> int:
    """``size`` where the model's sizes are those of ``point``."""
    if isinstance(size, int):
        return size
    values: dict[tirx.Var, tirx.PrimExpr] = {}

    def visit(node: object) -> None:
        if isinstance(node, tirx.Var):
            values[node] = tirx.IntImm(node.dtype, point[node.name])

    tirx.stmt_functor.post_order_visit(size, visit)
    known = arith.Analyzer().simplify(tirx.stmt_functor.substitute(size, values))
    return int(known)


def _given(kernel: KernelDispatch, sizes: Mapping[str, int]) -> dict[str, int]:
    """``sizes`` without those that follow from others."""
    derived = cases_of(kernel.kernel).derived_sizes(sizes)
    return {name: size for name, size in sizes.items() if name not in derived}
