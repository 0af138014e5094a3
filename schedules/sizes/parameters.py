"""The computation of one function under the parameters of another that computes the same."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import renew_defs

from tkc.schedules.buffers import over_buffers
from tkc.schedules.database.workloads import by_first_use
from tkc.schedules.sizes.symbolic import bind_sizes, parameter_buffers, size_variables


def with_parameters_of(func: tirx.PrimFunc, variant: tirx.PrimFunc) -> tirx.PrimFunc:
    """``variant`` over the sizes and buffers of ``func``, which its own correspond to in order.

    What it defines itself is new, so that no two variants of one function define the same.
    """
    variant = renew_defs(variant)
    own, wanted = size_variables(variant).values(), size_variables(func).values()
    bound = bind_sizes(variant, dict(zip(own, wanted, strict=True)))
    buffers = dict(zip(parameter_buffers(bound), parameter_buffers(func), strict=True))
    return func.with_body(over_buffers(bound.body, buffers))


def in_order_of(func: tirx.PrimFunc, workload: tirx.PrimFunc, scheduled: tirx.PrimFunc) -> tirx.PrimFunc:
    """``scheduled``, whose parameters are those of ``workload``, with its parameters in the order of ``func``.

    ``func`` and ``workload`` are the same but for names and the order of parameters: what corresponds is used first at
    the same place of the body.
    """
    position = dict(zip(by_first_use(func), by_first_use(workload), strict=True))
    params = [scheduled.params[position[index]] for index in range(len(func.params))]
    return tirx.PrimFunc(params, scheduled.body, scheduled.ret_type, scheduled.buffer_map, scheduled.attrs)
