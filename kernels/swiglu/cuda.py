"""SwiGLU for CUDA: 16-byte loads, values kept in registers between finding their scale and dividing by it."""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm.tirx import Buffer, PrimExpr, PrimFunc

from tkc.kernels.fp8 import QUANTIZATION_BLOCK
from tkc.kernels.nan_max import NAN_MAX, nan_max
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.quantization import scale_of, swiglu_types, tile_shape
from tkc.kernels.swiglu.spec import SwiGLUConfiguration, vector_width
from tkc.kernels.target import WARP

# With results below 2**-126 as zero, exp2 is one instruction of the GPU. Divisions stay exact.
FLUSH_TO_ZERO = "-ftz=true"


@dataclass(frozen=True)
class _Inputs:
    """Gate and up projection ``[tokens, channels]``, or both side by side in one tensor; the others are ``None``."""

    gate: Buffer | None
    up: Buffer | None
    gate_up: Buffer | None


@dataclass(frozen=True)
class _Vectors:
    """A thread's vectors of gate and up projection, in registers."""

    gates: Buffer
    ups: Buffer


def groups(p: SwiGLUParameters, c: SwiGLUConfiguration) -> PrimFunc:
    """A scale per group, or none at all: some lanes of a warp to each token's group of 128 channels."""
    types = swiglu_types(p)
    width = vector_width(p)
    lanes = min(WARP, QUANTIZATION_BLOCK // width)
    per_lane = QUANTIZATION_BLOCK // (lanes * width)
    per_token = -(-p.channels // QUANTIZATION_BLOCK)
    # A block takes so many groups of so many tokens at once, such that no thread is left over.
    columns = math.gcd(c.threads // lanes, per_token)
    rows = c.threads // lanes // columns
    blocks_per_row = per_token // columns

    @T.prim_func
    def swiglu(
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        out: types.out,
        scales: types.scales,
    ) -> None:
        if p.dtype != "float32":
            T.annotate_compile_flags(FLUSH_TO_ZERO)
        tokens = out.shape[0]
        with T.Kernel(
            T.max(T.ceildiv(tokens, rows * c.vectors), 1) * blocks_per_row, threads=c.threads, prelude=NAN_MAX
        ) as block:
            lane = T.get_thread_binding() % lanes
            row = T.get_thread_binding() // lanes // columns
            group = block % blocks_per_row * columns + T.get_thread_binding() // lanes % columns
            first_token = block // blocks_per_row * (rows * c.vectors) + row
            first_channel = group * QUANTIZATION_BLOCK + lane * width
            gates = T.alloc_local((c.vectors * per_lane * width,), p.dtype)
            ups = T.alloc_local((c.vectors * per_lane * width,), p.dtype)
            values = T.alloc_local((per_lane * width,), "float32")
            amax = T.alloc_local((1,), "float32")
            # All loads come first, so that they are in flight together.
            for v in T.unroll(c.vectors):
                for i in T.unroll(per_lane):
                    token = first_token + v * rows
                    channel = first_channel + i * lanes * width
                    if token < tokens and channel < p.channels:
                        _load(
                            p,
                            _Inputs(gate, up, gate_up),
                            token,
                            channel,
                            _Vectors(gates, ups),
                            (v * per_lane + i) * width,
                        )
            for v in T.unroll(c.vectors):
                token = first_token + v * rows
                amax[0] = 0.0
                for i in T.unroll(per_lane):
                    channel = first_channel + i * lanes * width
                    if token < tokens and channel < p.channels:
                        _multiply(p, _Vectors(gates, ups), (v * per_lane + i) * width, values, i * width, amax)
                if p.scale == "group":
                    for step in T.unroll(lanes.bit_length() - 1):
                        amax[0] = nan_max(amax[0], T.shfl_xor(amax[0], 1 << step))
                    amax[0] = scale_of(p, amax[0], nan_max)
                    if token < tokens and lane == 0:
                        scales[token, group] = amax[0]
                inverse = 1.0 / amax[0] if p.scale == "group" else T.float32(1.0)
                for i in T.unroll(per_lane):
                    channel = first_channel + i * lanes * width
                    if token < tokens and channel < p.channels:
                        _store(p, values, i * width, inverse, out, token, channel)

    return swiglu


def tiles(p: SwiGLUParameters, c: SwiGLUConfiguration) -> PrimFunc:
    """A scale per token or block: a thread block to each scale, with the values in its registers."""
    types = swiglu_types(p)
    width = vector_width(p)
    rows, columns = tile_shape(p)
    vectors_per_row = -(-columns // width)
    per_thread = -(-rows * vectors_per_row // c.threads)
    tiles_per_row = -(-p.channels // columns)

    @T.prim_func
    def swiglu(
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        out: types.out,
        scales: types.scales,
    ) -> None:
        tokens = out.shape[0]
        if p.dtype != "float32":
            T.annotate_compile_flags(FLUSH_TO_ZERO)
        with T.Kernel(T.max(T.ceildiv(tokens, rows), 1) * tiles_per_row, threads=c.threads, prelude=NAN_MAX) as tile:
            thread = T.get_thread_binding()
            first_token = tile // tiles_per_row * rows
            first_channel = tile % tiles_per_row * columns
            gates = T.alloc_local((per_thread * width,), p.dtype)
            ups = T.alloc_local((per_thread * width,), p.dtype)
            values = T.alloc_local((per_thread * width,), "float32")
            amax = T.alloc_local((1,), "float32")
            warp_amax = T.alloc_shared((c.threads // WARP,), "float32")
            for i in T.unroll(per_thread):
                row = (i * c.threads + thread) // vectors_per_row
                token = first_token + row
                channel = first_channel + (i * c.threads + thread) % vectors_per_row * width
                if row < rows and token < tokens and channel < p.channels:
                    _load(p, _Inputs(gate, up, gate_up), token, channel, _Vectors(gates, ups), i * width)
            amax[0] = 0.0
            for i in T.unroll(per_thread):
                row = (i * c.threads + thread) // vectors_per_row
                token = first_token + row
                channel = first_channel + (i * c.threads + thread) % vectors_per_row * width
                if row < rows and token < tokens and channel < p.channels:
                    _multiply(p, _Vectors(gates, ups), i * width, values, i * width, amax)
            for step in T.unroll(WARP.bit_length() - 1):
                amax[0] = nan_max(amax[0], T.shfl_xor(amax[0], 1 << step))
            if thread % WARP == 0:
                warp_amax[thread // WARP] = amax[0]
            T.sync_threads()
            for w in T.unroll(c.threads // WARP):
                amax[0] = nan_max(amax[0], warp_amax[w])
            scale = scale_of(p, amax[0], nan_max)
            inverse = 1.0 / scale
            if thread == 0 and first_token < tokens:
                if p.scale == "token":
                    scales[first_token] = scale
                else:
                    scales[tile // tiles_per_row, tile % tiles_per_row] = scale
            for i in T.unroll(per_thread):
                row = (i * c.threads + thread) // vectors_per_row
                token = first_token + row
                channel = first_channel + (i * c.threads + thread) % vectors_per_row * width
                if row < rows and token < tokens and channel < p.channels:
                    _store(p, values, i * width, inverse, out, token, channel)

    return swiglu


def channels(p: SwiGLUParameters, c: SwiGLUConfiguration) -> PrimFunc:
    """A scale per channel: largest magnitudes of shares of the tokens, then of all, then the quantization."""
    types = swiglu_types(p)
    width = vector_width(p)
    channels_per_block = c.threads * width

    @T.prim_func
    def swiglu(
        gate: types.gate,
        up: types.up,
        gate_up: types.gate_up,
        out: types.out,
        scales: types.scales,
        partial_amax: T.Tensor((c.partials, p.channels), "float32"),
    ) -> None:
        tokens = out.shape[0]
        if p.dtype != "float32":
            T.annotate_compile_flags(FLUSH_TO_ZERO)
        with T.Kernel(T.ceildiv(p.channels, channels_per_block), c.partials, threads=c.threads, prelude=NAN_MAX) as (
            column,
            part,
        ):
            channel = column * channels_per_block + T.get_thread_binding() * width
            gates = T.alloc_local((width,), p.dtype)
            ups = T.alloc_local((width,), p.dtype)
            amax = T.alloc_local((width,), "float32")
            if channel < p.channels:
                for e in T.unroll(width):
                    amax[e] = 0.0
                for i in T.serial(T.ceildiv(tokens - part, c.partials)):
                    _load(p, _Inputs(gate, up, gate_up), i * c.partials + part, channel, _Vectors(gates, ups), 0)
                    for e in T.unroll(width):
                        amax[e] = nan_max(amax[e], T.abs(_silu_product(p, gates[e], ups[e])))
                for e in T.vectorized(width):
                    partial_amax[part, channel + e] = amax[e]

        with T.Kernel(T.ceildiv(p.channels, c.threads), threads=c.threads, prelude=NAN_MAX) as column:
            channel = column * c.threads + T.get_thread_binding()
            largest = T.alloc_local((1,), "float32")
            if channel < p.channels:
                largest[0] = 0.0
                for share in T.serial(c.partials):
                    largest[0] = nan_max(largest[0], partial_amax[share, channel])
                scales[channel] = scale_of(p, largest[0], nan_max)

        with T.Kernel(T.ceildiv(p.channels, channels_per_block), c.partials, threads=c.threads) as (column, part):
            channel = column * channels_per_block + T.get_thread_binding() * width
            gates = T.alloc_local((width,), p.dtype)
            ups = T.alloc_local((width,), p.dtype)
            values = T.alloc_local((width,), "float32")
            inverses = T.alloc_local((width,), "float32")
            if channel < p.channels:
                for e in T.unroll(width):
                    inverses[e] = 1.0 / scales[channel + e]
                for i in T.serial(T.ceildiv(tokens - part, c.partials)):
                    _load(p, _Inputs(gate, up, gate_up), i * c.partials + part, channel, _Vectors(gates, ups), 0)
                    for e in T.unroll(width):
                        values[e] = _silu_product(p, gates[e], ups[e]) * inverses[e]
                    _store(p, values, 0, T.float32(1.0), out, i * c.partials + part, channel)

    return swiglu


def _exponential(p: SwiGLUParameters, x: PrimExpr) -> PrimExpr:
    """``exp(x)``, of a 16-bit ``x`` with a relative error of up to ``6e-8 * abs(x) + 3e-7``.

    That is what rounding the exponent of two and the instruction add. The rounding of ``x`` to 16 bits itself changed
    the result by ``5e-4 * abs(x)`` or more.
    """
    return T.exp(x) if p.dtype == "float32" else T.exp2(x * math.log2(math.e))


def _silu_product(p: SwiGLUParameters, gate: PrimExpr, up: PrimExpr) -> PrimExpr:
    g = T.cast(gate, "float32")
    # Instructions would set the time, not memory, with an exact division, which is 20 of them; this one is two, and
    # wrong in the last bit or two of float32.
    return g * T.fast_rcp(1.0 + _exponential(p, -g)) * T.cast(up, "float32")


@T.macro
def _load(p: SwiGLUParameters, x: _Inputs, token: PrimExpr, channel: PrimExpr, v: _Vectors, at: PrimExpr) -> None:
    """One vector of gate and one of up, to ``gates[at:]`` and ``ups[at:]``."""
    for e in T.vectorized(vector_width(p)):
        v.gates[at + e] = x.gate_up[token, channel + e] if p.packed else x.gate[token, channel + e]
    for e in T.vectorized(vector_width(p)):
        v.ups[at + e] = x.gate_up[token, p.channels + channel + e] if p.packed else x.up[token, channel + e]


@T.macro
def _multiply(p: SwiGLUParameters, v: _Vectors, at: PrimExpr, values: Buffer, value_at: PrimExpr, amax: Buffer) -> None:
    """The SwiGLU of one vector, to ``values[value_at:]``, with ``amax[0]`` raised to its largest magnitude."""
    for e in T.unroll(vector_width(p)):
        values[value_at + e] = _silu_product(p, v.gates[at + e], v.ups[at + e])
        amax[0] = nan_max(amax[0], T.abs(values[value_at + e]))


@T.macro
def _store(
    p: SwiGLUParameters,
    values: Buffer,
    at: PrimExpr,
    factor: PrimExpr,
    out: Buffer,
    token: PrimExpr,
    channel: PrimExpr,
) -> None:
    """One vector from ``values[at:]``, times ``factor``, in the output's dtype (FP8 saturates)."""
    for e in T.vectorized(vector_width(p)):
        out[token, channel + e] = T.cast(values[at + e] * factor, out.dtype)
