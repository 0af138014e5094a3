"""Scaled dot-product attention: many queries (prefill), or one query against a long cache (decode)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tkc.kernels.attention.parameters import AttentionParameters, Layout
from tkc.kernels.devices import MULTIPROCESSORS
from tkc.kernels.spec import KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch


_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4}

DECODE_RESIDENT = 4
"""Thread blocks of decode attention that a multiprocessor runs at once, unless :func:`resident_blocks` says one."""

# Positions are int32, and so are sums of one with a window.
_WIDEST_WINDOW = 2**30

# Elements of a tile's output that leave each of so many blocks registers enough.
_MOST_SUMS = 16 * 128

# Rows of a tile in shared memory, after which the order of its columns repeats.
_SWIZZLED_ROWS = 8

# Shared memory that a kernel takes besides its tiles: pipeline barriers, reductions across warps, alignment.
_BARRIERS = 2048


@dataclass(frozen=True)
class PrefillConfiguration:
    """A thread block's tile of the scores, the depth of the key/value pipeline, and the threads at work on it.

    ``overlaps``: the tensor cores work on the next tile of scores during the softmax of one (Hopper). With ``blocks``,
    so many blocks work on all tiles of queries by turns.
    """

    block_queries: int = 128
    block_keys: int = 128
    stages: int = 2
    threads: int = 256
    overlaps: bool = False
    blocks: int = 0


@dataclass(frozen=True)
class DecodeConfiguration:
    """Keys in a tile, how many thread blocks share one sequence's keys at the most, and threads in a block.

    How many share them is a matter of how many sequences and heads there are besides; with ``split_keys`` (whole
    tiles), of their number alone: each block has so many, and more only where ``splits`` would not do.
    """

    block_keys: int = 64
    splits: int = 16
    threads: int = 128
    split_keys: int = 0


ConfigurationT = TypeVar("ConfigurationT")


class _Attention(KernelSpec[AttentionParameters, ConfigurationT], Generic[ConfigurationT]):
    """What prefill and decode share; they differ in the number of queries and in how the work is cut."""

    parameters_type = AttentionParameters
    _queries: ClassVar[int | str]

    def unsupported(self, parameters: AttentionParameters, target: Target) -> str | None:
        p = parameters
        if reason := without_elements(
            num_heads=p.num_heads,
            num_kv_heads=p.num_kv_heads,
            head_size=p.head_size,
            value_head_size=p.value_head_size,
        ):
            return reason
        if p.num_heads % p.num_kv_heads:
            return f"{p.num_heads} query heads cannot share {p.num_kv_heads} key/value heads evenly"
        if not p.scale > 0:
            return f"the scale must be positive, found {p.scale}"
        if p.softcap is not None and not p.softcap > 0:
            return f"the bound of capped scores must be positive, found {p.softcap}"
        if p.window is not None and not 0 <= p.window <= _WIDEST_WINDOW:
            return f"the window must be from 0 to {_WIDEST_WINDOW} keys, found {p.window}"
        if not target.is_cuda:
            return None
        if p.dtype == "float32":
            return "float32 attention has no CUDA kernel; the tensor cores take float16 and bfloat16"
        for name, size in (("head size", p.head_size), ("head size of the values", p.value_head_size)):
            if size % 16 or not 16 <= size <= 256:
                return f"the {name} must be a multiple of 16 from 16 to 256 on CUDA, found {size}"
        return None

    def inputs(self, parameters: AttentionParameters) -> tuple[TensorType, ...]:
        p = parameters
        tensors: tuple[TensorType, ...] = (
            TensorType("q", _shape(p.q_layout, self._queries, p.num_heads, p.head_size), p.dtype),
            TensorType("k", _shape(p.k_layout, "keys", p.num_kv_heads, p.head_size), p.dtype),
            TensorType("v", _shape(p.v_layout, "keys", p.num_kv_heads, p.value_head_size), p.dtype),
        )
        if p.mask is not None:
            broadcast = ("batch" if p.mask_per_batch else 1, p.num_heads if p.mask_per_head else 1)
            shape = (*broadcast, self._queries if p.mask_per_query else 1, "keys")
            tensors = (*tensors, TensorType("mask", shape, "bool" if p.mask == "bool" else p.dtype))
        return (*tensors, TensorType("sinks", (p.num_heads,), p.dtype)) if p.sinks else tensors

    def outputs(self, parameters: AttentionParameters) -> tuple[TensorType, ...]:
        p = parameters
        return (TensorType("out", _shape(p.out_layout, self._queries, p.num_heads, p.value_head_size), p.dtype),)

    def work(self, parameters: AttentionParameters, sizes: Mapping[str, int]) -> Work:
        p = parameters
        queries = sizes["queries"] if isinstance(self._queries, str) else self._queries
        pairs = _visible_pairs(p, queries, sizes["keys"]) * sizes["batch"] * p.num_heads
        tensors = (*self.inputs(p), *self.outputs(p))
        return Work(
            flops=2 * pairs * (p.head_size + p.value_head_size),
            bytes=sum(_num_bytes(tensor, sizes) for tensor in tensors),
        )

    def reference(self, parameters: AttentionParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.attention.reference import attention

        return (attention(parameters, *inputs),)


class AttentionPrefill(_Attention[PrefillConfiguration]):
    """``q [batch, queries, num_heads, head_size]``, ``k`` and ``v`` with ``keys`` and ``num_kv_heads``
    to ``out [batch, queries, num_heads, value_head_size]``, each in its layout."""

    name = "attention.prefill"
    configuration_type = PrefillConfiguration
    minor_parameters = frozenset({"mask_per_query", "window", "softcap", "sinks"})
    _queries = "queries"

    @property
    def definition_module(self) -> str:
        """The module beside this one that holds prefill alone."""
        return "tkc.kernels.attention.prefill"

    def configurations(self, parameters: AttentionParameters, target: Target) -> tuple[PrefillConfiguration, ...]:
        """The tilings whose tiles fit into the target's shared memory, and whose scores and output into registers."""
        if not target.is_cuda:
            return (PrefillConfiguration(block_queries=32, block_keys=64, stages=1, threads=1),)
        candidates, registers = (_HOPPER_PREFILL, 224) if target.device.wgmma else (_OTHER_PREFILL, 200)
        return tuple(
            c
            for c in candidates
            if _prefill_shared_memory(parameters, c) <= target.shared_memory
            and _prefill_registers(parameters, c) <= registers
        )

    def reduction_order(
        self, parameters: AttentionParameters, configuration: PrefillConfiguration, target: Target
    ) -> Hashable:
        """Tiles of keys one after the other, from the first that a tile of queries sees: each has its own order."""
        return configuration


class AttentionDecode(_Attention[DecodeConfiguration]):
    """As :class:`AttentionPrefill` with one query; the keys are split over thread blocks, whose partial
    results (float32, in workspaces) a second step combines."""

    name = "attention.decode"
    configuration_type = DecodeConfiguration
    dispatch_size = "batch"
    settles_order = "smallest"  # few sequences in few splits leave most multiprocessors idle
    minor_parameters = frozenset(
        {
            *("causal", "mask", "mask_per_batch", "mask_per_head", "q_layout", "k_layout", "v_layout", "out_layout"),
            *("mask_per_query", "softcap", "sinks"),
        }
    )
    _queries = 1

    def unsupported(self, parameters: AttentionParameters, target: Target) -> str | None:
        if parameters.window is not None:
            return "a window of keys for one query is a mask to its kernel"
        return super().unsupported(parameters, target)

    @property
    def definition_module(self) -> str:
        """The module beside this one that holds decoding alone."""
        return "tkc.kernels.attention.decode"

    def workspaces(self, parameters: AttentionParameters, configuration: DecodeConfiguration) -> tuple[TensorType, ...]:
        """What each split leaves to combine: its weighted sum of values, its largest score, and its sum of weights."""
        return partial_results(parameters.num_heads, parameters.value_head_size, configuration.splits)

    def configurations(self, parameters: AttentionParameters, target: Target) -> tuple[DecodeConfiguration, ...]:
        """The tilings whose tiles fit into the target's shared memory."""
        if not target.is_cuda:
            return (DecodeConfiguration(block_keys=64, splits=1, threads=1),)
        # Each warp takes an equal part of the value columns, in units of 8.
        threads = 128 if parameters.value_head_size % 32 == 0 else 64
        return tuple(
            replace(c, threads=threads)
            for c in _DECODE
            if _decode_tiles(parameters, c) + _BARRIERS <= target.shared_memory
        )

    def reduction_order(
        self, parameters: AttentionParameters, configuration: DecodeConfiguration, target: Target
    ) -> Hashable | None:
        """Tiles of keys one after the other in each split, then the splits: by the configuration, unless it leaves open
        how many share a sequence's keys."""
        c = configuration
        return c if c.splits == 1 or c.split_keys else None


_HOPPER_PREFILL = (
    PrefillConfiguration(128, 128, 2, 256, overlaps=True, blocks=MULTIPROCESSORS),
    PrefillConfiguration(128, 128, 2, 256, overlaps=True),
    PrefillConfiguration(128, 128, 2, 256),
    PrefillConfiguration(128, 128, 1, 256),
    PrefillConfiguration(128, 64, 2, 256),
    PrefillConfiguration(64, 64, 2, 128),
    PrefillConfiguration(64, 64, 1, 128),
)
_DECODE = (
    DecodeConfiguration(64, 16, 128),
    DecodeConfiguration(128, 16, 128),
    DecodeConfiguration(64, 4, 128),
    DecodeConfiguration(128, 4, 128),
    DecodeConfiguration(32, 16, 128),
    DecodeConfiguration(64, 16, 128, split_keys=256),
    DecodeConfiguration(64, 16, 128, split_keys=128),
    DecodeConfiguration(64, 16, 128, split_keys=512),
)
# TileLang 0.1.15 pipelines a loop of unknown length over more than one stage by bulk copies alone.
_OTHER_PREFILL = (
    PrefillConfiguration(128, 64, 1, 128),
    PrefillConfiguration(128, 64, 1, 256),
    PrefillConfiguration(64, 64, 1, 128),
    PrefillConfiguration(64, 32, 1, 128),
)


def partial_results(num_heads: int, value_head_size: int, splits: int) -> tuple[TensorType, ...]:
    """What is left to combine where ``splits`` thread blocks share the keys of a sequence; nothing for one."""
    if splits == 1:
        return ()
    per_split = ("batch", num_heads, splits)
    return (
        TensorType("partial_out", (*per_split, value_head_size), "float32"),
        TensorType("partial_max", per_split, "float32"),
        TensorType("partial_sum", per_split, "float32"),
    )


def _shape(layout: Layout, sequence: int | str, heads: int, size: int) -> tuple[int | str, ...]:
    return ("batch", sequence, heads, size) if layout == "bshd" else ("batch", heads, sequence, size)


def _num_bytes(tensor: TensorType, sizes: Mapping[str, int]) -> int:
    count = 1
    for dim in tensor.shape:
        count *= sizes[dim] if isinstance(dim, str) else dim
    return count * _BYTES[tensor.dtype]


def _visible_pairs(p: AttentionParameters, queries: int, keys: int) -> int:
    """How many of the ``queries * keys`` scores the causal mask and the window leave."""
    own_key = keys - queries if p.causal == "bottom_right" else 0
    last_key = own_key + keys_ahead(p) if p.causal is not None or p.window is not None else keys
    too_early = 0 if p.window is None else _pairs_up_to(own_key - p.window - 1, queries, keys)
    return _pairs_up_to(last_key, queries, keys) - too_early


def _pairs_up_to(last_key: int, queries: int, keys: int) -> int:
    """How many scores are of keys up to ``last_key`` for the first query, and of one more for each of the others."""
    # Query i sees i + last_key + 1 keys, no fewer than none and no more than all.
    first = max(0, -last_key)
    growing = max(0, min(queries, keys - last_key) - first)
    sum_growing = growing * (first + last_key + 1) + growing * (growing - 1) // 2
    return sum_growing + max(0, queries - first - growing) * keys


def keys_ahead(parameters: AttentionParameters) -> int:
    """How many keys after its own a query sees, where a causal mask or a window bounds them."""
    return 0 if parameters.causal is not None or parameters.window is None else parameters.window


def _prefill_shared_memory(parameters: AttentionParameters, configuration: PrefillConfiguration) -> int:
    """Bytes of the query tile and of the key and value tiles in flight. The output takes their place at the end, or,
    where warps of their own load, that of the queries if it is as large and no others follow."""
    p, c = parameters, configuration
    inputs = c.block_queries * p.head_size + c.stages * c.block_keys * (p.head_size + p.value_head_size)
    output = c.block_queries * p.value_head_size
    beside = c.overlaps and (c.blocks > 0 or p.head_size != p.value_head_size)
    return (inputs + output if beside else max(inputs, output)) * _BYTES[p.dtype] + _BARRIERS


def _prefill_registers(parameters: AttentionParameters, configuration: PrefillConfiguration) -> int:
    """Registers of a thread for its part of the scores, of the weights (half as wide), and of the output."""
    c = configuration
    return c.block_queries * (c.block_keys * 3 // 2 + parameters.value_head_size) // c.threads


def _decode_tiles(parameters: AttentionParameters, configuration: DecodeConfiguration) -> int:
    """Bytes of the queries, of a key and a value tile, and of the weights."""
    p, c = parameters, configuration
    tile = block_heads(p) * (p.head_size + c.block_keys) + c.block_keys * (p.head_size + p.value_head_size)
    return tile * _BYTES[p.dtype]


def resident_blocks(parameters: AttentionParameters) -> int:
    """Thread blocks of decode attention that a multiprocessor runs at once: one if their sums take many registers."""
    return DECODE_RESIDENT if block_heads(parameters) * parameters.value_head_size <= _MOST_SUMS else 1


def decode_key_rows(parameters: AttentionParameters, configuration: DecodeConfiguration, target: Target) -> int:
    """Rows that the tile of keys is given in shared memory, lest more than :data:`DECODE_RESIDENT` blocks fit in there.

    Five, for which there are registers, were 2 to 15 % slower where keys are many (H200).
    """
    p, c = parameters, configuration
    if resident_blocks(p) == 1:
        return c.block_keys
    missing = target.shared_memory // (DECODE_RESIDENT + 1) - _decode_tiles(p, c)
    return c.block_keys + max(0, -(-missing // (_BYTES[p.dtype] * p.head_size * _SWIZZLED_ROWS))) * _SWIZZLED_ROWS


def block_heads(parameters: AttentionParameters) -> int:
    """Query heads in a decoding tile: one key/value head's, rounded up to the 16 rows of a matrix instruction."""
    group = parameters.num_heads // parameters.num_kv_heads
    return min(64, -(-group // 16) * 16)
