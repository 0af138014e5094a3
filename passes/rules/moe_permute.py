"""Sorting token copies by their expert, with all that is derived from the order, to the ``moe.permute`` kernel.

``order = experts.argsort()``, and of these, those that there are: ``experts[order]``, ``order.argsort()`` or the
same by a scatter, ``order // top_k``, and ``experts.histc(num_experts).cumsum(0)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax

from tkc.contracts import HISTOGRAM_MAXIMUM, HISTOGRAM_MINIMUM, HISTOGRAM_OPERATOR, OPERATOR
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.passes.graph.bindings import Graph, dtype, has_known_shape, shape, static
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.index_bounds import index_bound
from tkc.passes.graph.kernel_floats import is_index_dtype
from tkc.passes.graph.layout import kernel_call
from tkc.passes.recognizers.permutations import inverts
from tkc.passes.rules.rule import Rule, Site, operators

_SORTED, _ORDER, _INVERSE, _OFFSETS, _TOKENS = range(5)  # the kernel's outputs


def _recognize(site: Site) -> Found | Refusal | None:
    graph, order, sort = site.graph, site.var, site.root
    experts = sort.args[0]
    if not has_known_shape(experts) or len(shape(experts)) != 1:
        return None
    num_experts = index_bound(graph, experts)
    if num_experts is None:
        return None
    if sort.attrs.descending:
        return Refusal("it sorts experts in descending order")
    name = dtype(experts)
    if not is_index_dtype(name):
        return Refusal(f"experts are given as {name}, and the kernel takes int32 and int64")
    ascending = [var for var in graph.users(order) if _picks(graph, var, experts, order)]
    replaced = {order: _ORDER, **dict.fromkeys(ascending, _SORTED)}
    replaced |= {var: _INVERSE for var in graph.users(order) if inverts(graph, var, order)}
    quotients = {var: divisor for var in graph.users(order) if (divisor := _divisor(graph, var, order)) is not None}
    top_k = next(iter(quotients.values()), None)
    replaced |= {var: _TOKENS for var, divisor in quotients.items() if divisor == top_k}
    for source in (experts, *ascending):
        replaced |= {var: _OFFSETS for var in _running_counts(graph, source, num_experts)}
    return Found(MoePermuteParameters(num_experts, name, top_k), {"experts": experts}, replaced)


def _picks(graph: Graph, var: relax.Var, data: relax.Expr, order: relax.Expr) -> bool:
    """Whether ``var`` is ``data[order]``."""
    call = graph.call(var, "relax.gather_elements", "relax.take")
    return call is not None and all(map(graph.same, call.args, (data, order)))


def _divisor(graph: Graph, var: relax.Var, order: relax.Expr) -> int | None:
    """The constant that ``order`` is divided by to make ``var``: how many copies each token has."""
    call = graph.call(var, "relax.floor_divide")
    if call is None or not graph.same(call.args[0], order):
        return None
    divisor = graph.constant(call.args[1])
    return divisor if isinstance(divisor, int) and divisor >= 1 else None


def _running_counts(graph: Graph, experts: relax.Expr, num_experts: int) -> Iterator[relax.Var]:
    """The variables that hold how many of ``experts`` are at most 0, 1, 2 and so on."""
    for values in _with_casts(graph, experts):
        for histogram in graph.users(values):
            if not _counts_each(graph, histogram, num_experts):
                continue
            for counts in _with_casts(graph, histogram):
                for var in graph.users(counts):
                    cumsum = graph.call(var, "relax.cumsum")
                    if cumsum is not None and not cumsum.attrs.exclusive:
                        yield var


def _with_casts(graph: Graph, expr: relax.Expr) -> Iterator[relax.Expr]:
    """``expr``, and the variables that hold it in another dtype."""
    yield expr
    for user in graph.users(expr):
        if graph.call(user, "relax.astype") is not None:
            yield from _with_casts(graph, user)


def _counts_each(graph: Graph, var: relax.Var, num_experts: int) -> bool:
    """Whether ``var`` is a frontend's ``histc`` with one bin for each expert."""
    call = graph.call(var, "relax.call_tir")
    if call is None:
        return False
    attrs = graph.module[call.args[0]].attrs
    if attrs is None or attrs.get(OPERATOR) != HISTOGRAM_OPERATOR or static(shape(var)[0]) != num_experts:
        return False
    # The last bin includes its upper bound, so that both bounds give every whole number a bin of its own.
    return attrs[HISTOGRAM_MINIMUM] == 0 and attrs[HISTOGRAM_MAXIMUM] in (num_experts - 1, num_experts)


MOE_PERMUTE = Rule(
    name="moe_permute",
    kernel="moe.permute",
    roots=operators("argsort"),
    recognize=_recognize,
    call=kernel_call,
    before=("moe_gate",),
)
