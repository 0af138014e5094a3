"""Rotary position embedding in TileLang: a thread turns two vectors of a head, the one with the other or in itself."""

from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.devices import HIGHEST_GRID
from tkc.kernels.narrow_floats import from_float32, storage_dtype, to_float32
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.rotary.spec import VECTOR_BYTES, Rotary, RotaryConfiguration, lanes_per_head, vector_width
from tkc.kernels.target import Target
from tkc.kernels.tensor_types import tensor_types

_OPTIONAL = ("weight", "keys", "key_weight", "key_out")


def define(parameters: RotaryParameters, configuration: RotaryConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``x``, ``cos``, ``sin``, what there is of weights and keys, ``out``, and ``key_out`` of keys."""
    return _cuda(parameters, configuration) if target.is_cuda else _cpu(parameters)


def _cuda(p: RotaryParameters, c: RotaryConfiguration) -> PrimFunc:
    types = tensor_types(Rotary(), p, _OPTIONAL)
    lanes, width, heads = lanes_per_head(p), vector_width(p), p.heads + p.key_heads
    angle_dtype, weight_dtype = p.angle_dtype or p.dtype, p.weight_dtype or p.dtype

    @T.prim_func
    def rotary(
        x: types.x,
        cos: types.cos,
        sin: types.sin,
        weight: types.weight,
        keys: types.keys,
        key_weight: types.key_weight,
        out: types.out,
        key_out: types.key_out,
    ) -> None:
        batch, sequence = x.shape[0], x.shape[1 if p.layout == "bshd" else 2]
        threads = sequence * heads * lanes
        # A sequence's own blocks, so that no place in memory is divided by the length of the sequences.
        grid = (T.ceildiv(threads, c.threads), T.min(batch, HIGHEST_GRID), T.ceildiv(batch, HIGHEST_GRID))
        with T.Kernel(*(T.max(extent, 1) for extent in grid), threads=c.threads) as (block, b_low, b_high):
            b = b_high * HIGHEST_GRID + b_low
            thread = block * c.threads + T.get_thread_binding()
            lane = thread % lanes
            # Variables, because places in memory are 64-bit numbers, and dividing these costs more.
            position = T.alloc_var("int32")
            head = T.alloc_var("int32")
            position, head = _place(p, thread // lanes, sequence)
            loaded = T.alloc_local((2 * width,), p.dtype)
            cosines = T.alloc_local((2 * width,), angle_dtype)
            sines = T.alloc_local((2 * width,), angle_dtype)
            weights = T.alloc_local((2 * width,), weight_dtype)
            values = T.alloc_local((2 * width,), "float32")
            factor = T.alloc_local((1,), "float32")
            T.annotate_min_blocks_per_sm(c.resident)
            factor[0] = 0.0
            if thread < threads and b < batch and lane * width < p.channels // 2:
                T.assume(_in_range(position, sequence))
                T.assume(_in_range(head, heads))
                if head < p.heads:
                    _load(p, x, _row(p, b, position, head), lane, loaded)
                    if p.weight:
                        _load(p, weight, (), lane, weights)
                elif p.key_heads:
                    _load(p, keys, _row(p, b, position, head - p.heads), lane, loaded)
                    if p.weight:
                        _load(p, key_weight, (), lane, weights)
                _load(p, cos, _angle_row(p, b, position), lane, cosines)
                _load(p, sin, _angle_row(p, b, position), lane, sines)
                for i in T.unroll(2 * width):
                    values[i] = T.cast(loaded[i], "float32")
                    factor[0] += values[i] * values[i]
            if p.epsilon is not None:
                for step in T.unroll(lanes.bit_length() - 1):
                    factor[0] += T.shfl_xor(factor[0], 1 << step)
                factor[0] = T.rsqrt(factor[0] / p.size + T.float32(p.epsilon))
                for i in T.unroll(2 * width):
                    values[i] *= factor[0]
                    if p.weight:
                        values[i] *= T.cast(weights[i], "float32")
            if thread < threads and b < batch and lane * width < p.channels // 2:
                T.assume(_in_range(position, sequence))
                T.assume(_in_range(head, heads))
                for i in T.unroll(width):
                    first, second = (i, width + i) if p.pairs == "halves" else (2 * i, 2 * i + 1)
                    loaded[first] = T.cast(
                        values[first] * T.cast(cosines[first], "float32")
                        - values[second] * T.cast(sines[first], "float32"),
                        p.dtype,
                    )
                    loaded[second] = T.cast(
                        values[second] * T.cast(cosines[second], "float32")
                        + values[first] * T.cast(sines[second], "float32"),
                        p.dtype,
                    )
                if head < p.heads:
                    _store(p, loaded, out, _row(p, b, position, head), lane)
                    _copy_rest(p, x, out, _row(p, b, position, head), lane)
                elif p.key_heads:
                    _store(p, loaded, key_out, _row(p, b, position, head - p.heads), lane)
                    _copy_rest(p, keys, key_out, _row(p, b, position, head - p.heads), lane)

    return rotary


@T.macro
def _load(p: RotaryParameters, source: Buffer, row: tuple[PrimExpr, ...], lane: PrimExpr, loaded: Buffer) -> None:
    """A vector of each half of a row, or two vectors side by side."""
    width = vector_width(p)
    at_once = min(width, VECTOR_BYTES * 8 // source.dtype.bits)
    for half in T.unroll(2):
        for i in T.unroll(width // at_once):
            for e in T.vectorized(at_once):
                channel = _channel(p, lane, half) + i * at_once + e
                loaded[half * width + i * at_once + e] = source[(*row, channel)]


@T.macro
def _store(p: RotaryParameters, turned: Buffer, out: Buffer, row: tuple[PrimExpr, ...], lane: PrimExpr) -> None:
    """Puts such vectors back."""
    width = vector_width(p)
    for half in T.unroll(2):
        for e in T.vectorized(width):
            out[(*row, _channel(p, lane, half) + e)] = turned[half * width + e]


def _channel(p: RotaryParameters, lane: PrimExpr, vector: PrimExpr) -> PrimExpr:
    """Where the first or second of a lane's two vectors begins."""
    width = vector_width(p)
    if p.pairs == "neighbours":
        return lane * (2 * width) + vector * width
    return vector * (p.channels // 2) + lane * width


@T.macro
def _copy_rest(p: RotaryParameters, source: Buffer, out: Buffer, row: tuple[PrimExpr, ...], lane: PrimExpr) -> None:
    """Copies the channels that do not turn; the lanes take turns at vectors of them."""
    width, lanes = vector_width(p), lanes_per_head(p)
    vectors = (p.size - p.channels) // width
    for turn in T.unroll(-(-vectors // lanes)):
        if turn * lanes + lane < vectors:
            for e in T.vectorized(width):
                channel = p.channels + (turn * lanes + lane) * width + e
                out[(*row, channel)] = source[(*row, channel)]


def _cpu(p: RotaryParameters) -> PrimFunc:
    types = tensor_types(Rotary(), p, _OPTIONAL, storage_dtype)

    @T.prim_func
    def rotary(
        x: types.x,
        cos: types.cos,
        sin: types.sin,
        weight: types.weight,
        keys: types.keys,
        key_weight: types.key_weight,
        out: types.out,
        key_out: types.key_out,
    ) -> None:
        batch, sequence = x.shape[0], x.shape[1 if p.layout == "bshd" else 2]
        with T.Kernel(sequence, batch) as (position, b):
            for head in T.serial(p.heads):
                _turn_head(p, _Heads(x, weight, out), _Angles(cos, sin), b, position, head)
            if p.key_heads:
                for head in T.serial(p.key_heads):
                    _turn_head(p, _Heads(keys, key_weight, key_out), _Angles(cos, sin), b, position, head)

    return rotary


@dataclass(frozen=True)
class _Heads:
    """Queries or keys, the weight of their normalization if there is one, and where they go."""

    x: Buffer
    weight: Buffer | None
    out: Buffer


@dataclass(frozen=True)
class _Angles:
    """Cosines and sines of each position's angles."""

    cos: Buffer
    sin: Buffer


@T.macro
def _turn_head(
    p: RotaryParameters, heads: _Heads, turned: _Angles, b: PrimExpr, position: PrimExpr, head: PrimExpr
) -> None:
    row, angles, pairs = _row(p, b, position, head), _angle_row(p, b, position), p.channels // 2
    angle_dtype = p.angle_dtype or p.dtype
    values = T.alloc_local((p.size,), "float32")
    factor = T.alloc_local((1,), "float32")
    for j in T.serial(p.size):
        values[j] = to_float32(heads.x[(*row, j)], p.dtype)
    if p.epsilon is not None:
        factor[0] = 0.0
        for j in T.serial(p.size):
            factor[0] += values[j] * values[j]
        factor[0] = 1.0 / T.sqrt(factor[0] / p.size + T.float32(p.epsilon))
        for j in T.serial(p.size):
            values[j] *= factor[0]
            if p.weight:
                values[j] *= to_float32(heads.weight[j], p.weight_dtype or p.dtype)
    for j in T.serial(pairs):
        first, second = (j, pairs + j) if p.pairs == "halves" else (2 * j, 2 * j + 1)
        cos_1, cos_2 = (to_float32(turned.cos[(*angles, k)], angle_dtype) for k in (first, second))
        sin_1, sin_2 = (to_float32(turned.sin[(*angles, k)], angle_dtype) for k in (first, second))
        heads.out[(*row, first)] = from_float32(values[first] * cos_1 - values[second] * sin_1, p.dtype)
        heads.out[(*row, second)] = from_float32(values[second] * cos_2 + values[first] * sin_2, p.dtype)
    for j in T.serial(p.size - p.channels):
        heads.out[(*row, p.channels + j)] = heads.x[(*row, p.channels + j)]


def _place(p: RotaryParameters, number: PrimExpr, sequence: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """The position and the head, queries' before keys', that is this ``number`` of a sequence.

    Only ``sequence`` is unknown when the kernel is built; dividing by it takes a good part of the kernel's time (the
    more so if numbers may be negative, which these are not).
    """
    if p.layout == "bshd":
        return number // (p.heads + p.key_heads), number % (p.heads + p.key_heads)
    return T.truncmod(number, sequence), T.truncdiv(number, sequence)


def _in_range(index: PrimExpr, extent: PrimExpr | int) -> PrimExpr:
    return T.And(index >= 0, index < extent)


def _row(p: RotaryParameters, b: PrimExpr, position: PrimExpr, head: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """The indices of a head on the first three axes."""
    return (b, position, head) if p.layout == "bshd" else (b, head, position)


def _angle_row(p: RotaryParameters, b: PrimExpr, position: PrimExpr) -> tuple[PrimExpr, ...]:
    """The indices of a position's angles on all axes but the last."""
    return (position,) if p.shared_angles else (b, position)
