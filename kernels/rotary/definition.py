"""Rotary position embedding in TileLang: a thread turns a vector of one half of a head and its partner in the other."""

from typing import Any

import tilelang.language as T
from tvm.tirx import PrimExpr, PrimFunc

from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.rotary.spec import Rotary, RotaryConfiguration, RotaryParameters, vector_width
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types


def define(parameters: RotaryParameters, configuration: RotaryConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``x``, ``cos``, ``sin`` and ``out``."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _cuda(p: RotaryParameters, c: RotaryConfiguration) -> PrimFunc:
    types = tensor_types(Rotary(), p)
    width, half = vector_width(p), p.size // 2
    per_head = half // width
    angle_dtype = p.angle_dtype or p.dtype

    @T.prim_func
    def rotary(x: types.x, cos: types.cos, sin: types.sin, out: types.out):
        batch, sequence = out.shape[0], out.shape[1 if p.layout == "bshd" else 2]
        vectors = batch * sequence * p.heads * per_head
        with T.Kernel(T.max(T.ceildiv(vectors, c.threads), 1), threads=c.threads) as block:
            vector = block * c.threads + T.get_thread_binding()
            first = T.alloc_local((width,), p.dtype)
            second = T.alloc_local((width,), p.dtype)
            cosines = T.alloc_local((2 * width,), angle_dtype)
            sines = T.alloc_local((2 * width,), angle_dtype)
            if vector < vectors:
                channel = vector % per_head * width
                b, position, head = _place(p, vector // per_head, sequence)
                row = _row(p, b, position, head)
                for e in T.vectorized(width):
                    first[e] = x[(*row, channel + e)]
                for e in T.vectorized(width):
                    second[e] = x[(*row, half + channel + e)]
                for part in T.unroll(2):
                    for e in T.vectorized(width):
                        cosines[part * width + e] = _angle(p, cos, b, position, part * half + channel + e)
                    for e in T.vectorized(width):
                        sines[part * width + e] = _angle(p, sin, b, position, part * half + channel + e)
                for e in T.vectorized(width):
                    out[(*row, channel + e)] = T.cast(
                        T.cast(first[e], "float32") * T.cast(cosines[e], "float32")
                        - T.cast(second[e], "float32") * T.cast(sines[e], "float32"),
                        p.dtype,
                    )
                for e in T.vectorized(width):
                    out[(*row, half + channel + e)] = T.cast(
                        T.cast(second[e], "float32") * T.cast(cosines[width + e], "float32")
                        + T.cast(first[e], "float32") * T.cast(sines[width + e], "float32"),
                        p.dtype,
                    )

    return rotary


def _cpu(p: RotaryParameters) -> PrimFunc:
    types = tensor_types(Rotary(), p, storage=storage_dtype)
    half = p.size // 2
    angle_dtype = p.angle_dtype or p.dtype

    @T.prim_func
    def rotary(x: types.x, cos: types.cos, sin: types.sin, out: types.out):
        batch, sequence = out.shape[0], out.shape[1 if p.layout == "bshd" else 2]
        with T.Kernel(batch * sequence * p.heads) as vector:
            b, position, head = _place(p, vector, sequence)
            row = _row(p, b, position, head)
            for j in T.serial(half):
                first = to_float32(x[(*row, j)], p.dtype)
                second = to_float32(x[(*row, half + j)], p.dtype)
                cos_1 = to_float32(_angle(p, cos, b, position, j), angle_dtype)
                sin_1 = to_float32(_angle(p, sin, b, position, j), angle_dtype)
                cos_2 = to_float32(_angle(p, cos, b, position, half + j), angle_dtype)
                sin_2 = to_float32(_angle(p, sin, b, position, half + j), angle_dtype)
                out[(*row, j)] = from_float32(first * cos_1 - second * sin_1, p.dtype)
                out[(*row, half + j)] = from_float32(second * cos_2 + first * sin_2, p.dtype)

    return rotary


def _place(p: RotaryParameters, number: PrimExpr, sequence: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """The sequence of the batch, the position in it, and the head that is this ``number`` in memory.

    Only ``sequence`` is unknown when the kernel is built; dividing by it takes a good part of the kernel's time.
    """
    if p.layout == "bshd":
        token = number // p.heads
        return token // sequence, token % sequence, number % p.heads
    return number // sequence // p.heads, number % sequence, number // sequence % p.heads


def _row(p: RotaryParameters, b: PrimExpr, position: PrimExpr, head: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """The indices of a head on the first three axes."""
    return (b, position, head) if p.layout == "bshd" else (b, head, position)


def _angle(p: RotaryParameters, table: Any, b: PrimExpr, position: PrimExpr, channel: PrimExpr) -> PrimExpr:
    return table[position, channel] if p.shared_angles else table[b, position, channel]
