"""By what databases know a function: itself, but for names and the order of parameters, or its anchor block alone."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.tirx.stmt_functor import post_order_visit
from tvm_ffi import structural_equal, structural_hash


def as_workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """The module by which MetaSchedule knows ``func``: the function alone, its parameters in a normal form."""
    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)


def by_first_use(func: tirx.PrimFunc) -> list[int]:
    """The positions of the parameters of ``func``, in the order in which its body first uses them; unused ones last."""
    used: dict[object, int] = {}

    def visit(node: object) -> None:
        if isinstance(node, tirx.BufferLoad | tirx.BufferStore):
            used.setdefault(node.buffer, len(used))
        elif isinstance(node, tirx.Var):
            used.setdefault(node, len(used))

    post_order_visit(func.body, visit)
    keys = [func.buffer_map.get(param, param) for param in func.params]
    return sorted(range(len(keys)), key=lambda index: used.get(keys[index], len(used)))


def exact_key(workload: tvm.IRModule) -> str:
    """Equal for functions that are the same but for names and the order of parameters. Holds in this version of TVM."""
    return _hexadecimal(structural_hash(workload["main"].body, map_free_vars=True))


def anchor_key(workload: tvm.IRModule) -> str | None:
    """Equal for functions with the same anchor block, which does most of the work; ``None`` where there is none."""
    block = s_tir.analysis.find_anchor_sblock(workload)
    return None if block is None else _hexadecimal(structural_hash(block, map_free_vars=True, skip_tensor_content=True))


def same_function(left: tvm.IRModule, right: tvm.IRModule) -> bool:
    """Whether two workloads are the same but for names and the order of parameters."""
    first, second = left["main"], right["main"]
    # Parameters are free in the body, and correspond where they are used.
    same_body = structural_equal(first.body, second.body, map_free_vars=True)
    return same_body and len(first.params) == len(second.params)


def same_anchor(left: tvm.IRModule, right: tvm.IRModule) -> bool:
    """Whether two workloads have the same anchor block."""
    first, second = (s_tir.analysis.find_anchor_sblock(workload) for workload in (left, right))
    if first is None or second is None:
        return False
    return structural_equal(first, second, map_free_vars=True, skip_tensor_content=True)


def _hexadecimal(number: int) -> str:
    return f"{number & (1 << 64) - 1:016x}"
