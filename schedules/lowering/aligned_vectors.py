"""Vectors of memory whose place CUDA code generation can see to be aligned, after sizes were computed on the host.

TVM loads a vector as one if its analyzer proves the place to be a multiple of the lanes, and else gathers its elements,
for which it has no type beyond four 64-bit indices. Common subexpressions of sizes (``n * 128``) are computed by the
host, and handed to the kernel as numbers of which nothing is known. :class:`AlignVectors` looks up what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import tvm
from tvm import arith, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.stmt_functor import ir_transform, substitute

from tkc.schedules.blocks import nodes
from tkc.schedules.target import is_gpu_code

_LAUNCH = Op.get("tirx.tvm_call_packed")
_MOST_GATHERED = 4
_WIDEST = 16

Factors = dict[tirx.Var, int]
"""What each variable is a multiple of, a power of two."""


@tvm.transform.module_pass(opt_level=0, name="AlignVectors")
class AlignVectors:
    """Writes aligned places of vectors so that they show it, and copies others element by element.

    It follows the division into host and device code, and leaves CPU functions alone.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the loads and stores of every kernel so written."""
        kernels = {v.name_hint: (v, func) for v, func in module.functions_items() if is_gpu_code(func)}
        if not kernels:
            return module
        result = IRModule(module.functions, attrs=module.attrs)
        for _, host in module.functions_items():
            for name, factors in [] if is_gpu_code(host) else _launches(host):
                if name in kernels:  # each is launched in one place
                    variable, func = kernels[name]
                    known = dict(zip(func.params, factors, strict=False))  # the launch's own sizes follow
                    result[variable] = func.with_body(_aligned(func.body, known))
        return result


def _launches(func: object) -> Iterator[tuple[str, list[int]]]:
    """The functions that host code calls by name, and what each argument is a multiple of."""
    if not isinstance(func, tirx.PrimFunc):
        return
    factors: Factors = {}
    _define(func.body, factors)
    for node in nodes(func.body):
        if isinstance(node, tirx.Call) and node.op.same_as(_LAUNCH) and isinstance(node.args[0], tirx.StringImm):
            yield node.args[0].value, [_factor(argument, factors) for argument in node.args[1:]]


def _define(body: tirx.Stmt, factors: Factors) -> None:
    """Add what ``body`` binds to ``factors``."""
    for node in nodes(body):
        if isinstance(node, tirx.Bind) and "int" in str(node.value.dtype):
            factors[node.var] = _factor(node.value, factors)


def _factor(expr: tirx.PrimExpr, factors: Factors) -> int:
    if "int" not in str(expr.dtype):
        return 1
    scaled = substitute(expr, {var: var * tirx.const(factors[var], var.dtype) for var in _known(expr, factors)})
    found = arith.Analyzer().modular_set(scaled)
    return gcd(gcd(found.coeff, found.base), _WIDEST)


def _known(expr: tirx.PrimExpr, factors: Factors) -> list[tirx.Var]:
    return [var for var in undefined_vars(expr) if factors.get(var, 1) > 1]


def _aligned(body: tirx.Stmt, arguments: Factors) -> tirx.Stmt:
    factors = dict(arguments)
    _define(body, factors)

    def shown(access: tirx.BufferLoad | tirx.BufferStore) -> list[tirx.PrimExpr] | None:
        """The indices of an access that is aligned but does not show it."""
        (index,) = access.indices
        lanes = int(index.lanes)
        if _factor(index.base, {}) % lanes == 0 or _factor(index.base, factors) % lanes:
            return None
        whole = {var: var // tirx.const(factors[var], var.dtype) * factors[var] for var in _known(index.base, factors)}
        return [tirx.Ramp(substitute(index.base, whole), index.stride, lanes)]

    def load(node: tirx.BufferLoad) -> tirx.BufferLoad | None:
        indices = shown(node) if _is_vector(node) else None
        return None if indices is None else tirx.BufferLoad(node.buffer, indices, node.predicate)

    def rewrite(node: object) -> object | None:
        if isinstance(node, tirx.BufferLoad):
            return load(node)
        if isinstance(node, tirx.BufferStore) and _is_vector(node):
            indices = shown(node)
            store = tirx.BufferStore(node.buffer, node.value, indices or node.indices, node.predicate)
            return _element_by_element(store) if _is_misplaced(store) else None if indices is None else store
        return None

    return ir_transform(body, None, rewrite, ["tirx.BufferLoad", "tirx.BufferStore"])


def _is_vector(access: tirx.BufferLoad | tirx.BufferStore) -> bool:
    """Whether elements of numbers that lie one behind the other are moved."""
    index = access.indices[0] if len(access.indices) == 1 else None
    return isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and index.stride.value == 1


def _is_misplaced(store: tirx.BufferStore) -> bool:
    """Whether a copy reads, or writes, whole vectors at places that may lie within them."""
    source = store.value
    if not isinstance(source, tirx.BufferLoad) or not _is_vector(source) or source.predicate or store.predicate:
        return False
    lanes = int(source.indices[0].lanes)
    reads, writes = (_factor(access.indices[0].base, {}) % lanes == 0 for access in (source, store))
    return not writes or (not reads and lanes > _MOST_GATHERED)


def _element_by_element(store: tirx.BufferStore) -> tirx.Stmt:
    source, target = store.value.indices[0], store.indices[0]

    def element(lane: int) -> tirx.BufferStore:
        value = tirx.BufferLoad(store.value.buffer, [source.base + tirx.const(lane, source.base.dtype)])
        return tirx.BufferStore(store.buffer, value, [target.base + tirx.const(lane, target.base.dtype)])

    return tirx.SeqStmt([element(lane) for lane in range(int(source.lanes))])
