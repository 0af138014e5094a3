"""Builds the TensorIR function through which a Relax graph calls one kernel."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from tvm import arith, relax, tirx
from tvm.ir import Range

from tkc.contracts import IS_SCHEDULED, KERNEL, OP_PATTERN, OPAQUE_PATTERN, S_TIR
from tkc.kernels import Choice, KernelDispatch, TensorType
from tkc.passes.graph.bindings import known_dims

_DLTENSOR_ADDRESS = 0  # TVM's TVMStructFieldKind.kDLTensorAddr


class UnfitInput(ValueError):
    """A tensor that does not fit the kernel argument it is meant for; the message is a clause a user can read."""


def kernel_prim_func(dispatch: KernelDispatch) -> tirx.PrimFunc:
    """A private function that hands its tensors to the exported function of a kernel library, chosen by a size.

    It takes the kernel's inputs, its outputs, and the workspaces of its choices. It passes the tensors on as they
    came: tensors made anew from its buffers would be called float32 on targets that cannot compute in bfloat16 or FP8.
    The buffers' declarations still check shapes, dtypes and strides. The function is marked scheduled and opaque: no
    later pass may schedule, fuse or look into it.
    """
    spec, parameters = dispatch.spec, dispatch.parameters
    inputs = spec.inputs(parameters)
    shared = (*inputs, *spec.outputs(parameters))
    types = [*shared, *(t for _, own in _own_workspaces(dispatch) for t in own)]
    sizes = {dim: tirx.Var(dim, "int64") for t in types for dim in t.shape if isinstance(dim, str)}
    buffers = [_strided_buffer(t, sizes) for t in shared]
    buffers += [_strided_buffer(t, own_sizes) for t, own_sizes in _workspace_sizes(dispatch, sizes)]
    handles = [tirx.Var(f"{t.name}_handle", "handle") for t in types]
    arguments = _arguments(handles, len(shared), dispatch)
    calls = [
        tirx.Evaluate(tirx.call_packed(request.symbol, *map(_as_tensor, own)))
        for request, own in zip(dispatch.requests, arguments, strict=True)
    ]
    block = tirx.SBlock(
        iter_vars=[],
        reads=[_whole(buffer) for buffer in buffers[: len(inputs)]],
        writes=[_whole(buffer) for buffer in buffers[len(inputs) :]],
        name_hint="root",
        body=_chosen(dispatch, calls, sizes),
    )
    function = tirx.PrimFunc(
        params=handles,
        body=tirx.SBlockRealize([], True, block),
        buffer_map=dict(zip(handles, buffers, strict=True)),
    )
    return function.with_attrs(
        {
            KERNEL: json.dumps(dispatch.to_json(), sort_keys=True),
            OP_PATTERN: OPAQUE_PATTERN,
            IS_SCHEDULED: True,
            S_TIR: True,
        }
    )


def _workspaces(dispatch: KernelDispatch) -> list[tuple[TensorType, ...]]:
    """The workspaces of each choice."""
    return [dispatch.spec.workspaces(dispatch.parameters, choice.configuration) for choice in dispatch.choices]


def _own_workspaces(dispatch: KernelDispatch) -> Iterator[tuple[Choice[Any], tuple[TensorType, ...]]]:
    """Each choice with its workspaces, but for those that are of constant sizes and an earlier choice's too: a call
    takes one of the choices."""
    seen = set()
    for choice, own in zip(dispatch.choices, _workspaces(dispatch), strict=True):
        if own not in seen:
            yield choice, own
        if _is_constant(own):
            seen.add(own)


def _is_constant(workspaces: Sequence[TensorType]) -> bool:
    return not any(isinstance(dim, str) for tensor in workspaces for dim in tensor.shape)


def _workspace_sizes(
    dispatch: KernelDispatch, sizes: Mapping[str, tirx.PrimExpr]
) -> Iterator[tuple[TensorType, Mapping[str, tirx.PrimExpr]]]:
    """The choices' workspaces with the sizes that they have room for: no larger ones than the choice serves."""
    name = str(dispatch.spec.dispatch_size)
    for choice, own in _own_workspaces(dispatch):
        most = {} if choice.most is None else {name: tirx.min(sizes[name], choice.most)}
        for tensor in own:
            yield tensor, {**sizes, **most}


def _arguments(handles: Sequence[tirx.Var], shared: int, dispatch: KernelDispatch) -> Iterator[list[tirx.Var]]:
    """What each choice's kernel is called with: the first ``shared`` handles, and those of its workspaces."""
    rest = iter(handles[shared:])
    given: dict[tuple[TensorType, ...], list[tirx.Var]] = {}
    for own in _workspaces(dispatch):
        if own not in given or not _is_constant(own):
            given[own] = list(islice(rest, len(own)))
        yield [*handles[:shared], *given[own]]


def _chosen(dispatch: KernelDispatch, calls: Sequence[tirx.Stmt], sizes: Mapping[str, tirx.Var]) -> tirx.Stmt:
    """The call of the first choice that serves the size."""
    *limited, body = calls
    for choice, call in zip(reversed(dispatch.choices[:-1]), reversed(limited), strict=True):
        body = tirx.IfThenElse(sizes[str(dispatch.spec.dispatch_size)] <= choice.most, call, body)
    return body


def kernel_dispatch(function: object) -> KernelDispatch | None:
    """The kernel that a function of a module calls; ``None`` for every other function."""
    if isinstance(function, tirx.PrimFunc) and function.attrs is not None and KERNEL in function.attrs:
        return KernelDispatch.from_json(json.loads(function.attrs[KERNEL]))
    return None


def output_types(dispatch: KernelDispatch, sizes: Mapping[str, tirx.PrimExpr]) -> list[relax.TensorStructInfo]:
    """The types of what a call of the kernel returns: its outputs, then the workspaces of its choices."""
    outputs = [(tensor, sizes) for tensor in dispatch.spec.outputs(dispatch.parameters)]
    return [
        relax.TensorStructInfo([own_sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape], tensor.dtype)
        for tensor, own_sizes in (*outputs, *_workspace_sizes(dispatch, sizes))
    ]


def bound_sizes(
    types: Sequence[TensorType],
    inputs: Sequence[relax.StructInfo],
    given: Mapping[str, tirx.PrimExpr],
    analyzer: arith.Analyzer,
) -> dict[str, tirx.PrimExpr]:
    """The run-time sizes that the types of the ``inputs`` (and ``given``) fix, by name.

    :class:`UnfitInput` where an input is not what ``types`` asks for, or one name would stand for two sizes.
    """
    if len(types) != len(inputs):
        raise UnfitInput(f"the kernel takes {len(types)} inputs, and the call has {len(inputs)}")
    sizes: dict[str, tirx.PrimExpr] = dict(given)
    for wanted, found in zip(types, inputs, strict=True):
        dims = known_dims(found)
        if dims is None or found.dtype != wanted.dtype or len(dims) != len(wanted.shape):
            raise UnfitInput(f"'{wanted.name}' must be {_described(wanted)}, and is {found}")
        for dim, size in zip(wanted.shape, dims, strict=True):
            expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            if not analyzer.can_prove_equal(expected, size):
                raise UnfitInput(
                    f"'{wanted.name}' must be {_described(wanted)} with {dim} = {expected}, and is {found}"
                )
    return sizes


def _strided_buffer(tensor: TensorType, sizes: Mapping[str, tirx.PrimExpr]) -> tirx.Buffer:
    dims = [sizes[dim] if isinstance(dim, str) else tirx.IntImm("int64", dim) for dim in tensor.shape]
    steps = accumulate(reversed(dims[1:]), operator.mul, initial=tirx.IntImm("int64", 1))
    return tirx.decl_buffer(dims, tensor.dtype, tensor.name, strides=list(steps)[::-1])


def _as_tensor(handle: tirx.Var) -> tirx.PrimExpr:
    """A parameter's handle, known for that of a tensor (a bare one would be passed on as a pointer to anything)."""
    return tirx.tvm_struct_get(handle, 0, _DLTENSOR_ADDRESS, "handle")


def _whole(buffer: tirx.Buffer) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [Range(0, extent) for extent in buffer.shape])


def _described(tensor: TensorType) -> str:
    return f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]"
