"""Attention of one query over a cache of latents: multi-head latent attention (MLA) in its absorbed form."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tkc.kernels.attention.parameters import LatentParameters
from tkc.kernels.attention.spec import AttentionDecode, partial_results
from tkc.kernels.spec import KernelSpec, TensorType, Work, without_elements
from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

# Shared memory beside the tiles: barriers, statistics that warps exchange, and the alignment of each buffer.
_MARGIN = 2048

_ITEM_BYTES = 2  # CUDA kernels take 16-bit numbers alone


@dataclass(frozen=True)
class LatentConfiguration:
    """Heads and keys in a tile, thread blocks that share one sequence's keys, and how a block's warps divide the work.

    ``alternating``: two warpgroups take turns, each making the weights of every other tile while the other one
    multiplies, and a third loads; else all warps work on one tile, of which ``stages`` are in flight.
    """

    block_heads: int = 64
    block_keys: int = 64
    splits: int = 1
    stages: int = 2
    threads: int = 256
    alternating: bool = False


class LatentDecode(KernelSpec[LatentParameters, LatentConfiguration]):
    """``q [batch, num_heads, latent_size + rope_size]`` and ``cache [batch, keys, latent_size + rope_size]``, either of
    them as one tensor or as two, to ``out [batch, num_heads, latent_size]``; keys are split as in decoding."""

    name = "attention.latent_decode"
    parameters_type = LatentParameters
    configuration_type = LatentConfiguration
    dispatch_size = "batch"
    settles_order = "smallest"  # few sequences without splits leave most multiprocessors idle
    minor_parameters = frozenset({"mask", "mask_per_batch", "mask_per_head", "joined_queries", "joined_cache"})

    @property
    def definition_module(self) -> str:
        """The module beside this one that holds this kernel alone."""
        return "tkc.kernels.attention.latent"

    def unsupported(self, parameters: LatentParameters, target: Target) -> str | None:
        p = parameters
        if reason := without_elements(num_heads=p.num_heads, latent_size=p.latent_size, rope_size=p.rope_size):
            return reason
        if not p.scale > 0:
            return f"the scale must be positive, found {p.scale}"
        if not target.is_cuda:
            return None
        if p.dtype == "float32":
            return "float32 attention has no CUDA kernel; the tensor cores take float16 and bfloat16"
        if p.latent_size % 64 or not 64 <= p.latent_size <= 512:
            return f"the latents' size must be a multiple of 64 from 64 to 512 on CUDA, found {p.latent_size}"
        if p.rope_size % 16 or not 16 <= p.rope_size <= 128:
            return f"the rotary part's size must be a multiple of 16 from 16 to 128 on CUDA, found {p.rope_size}"
        return None

    def inputs(self, parameters: LatentParameters) -> tuple[TensorType, ...]:
        p = parameters
        queries = _parts(p, "q", p.num_heads, p.joined_queries)
        cache = _parts(p, "cache", "keys", p.joined_cache)
        return (*queries, *cache, *(t for t in AttentionDecode().inputs(p.attention) if t.name == "mask"))

    def outputs(self, parameters: LatentParameters) -> tuple[TensorType, ...]:
        p = parameters
        return (TensorType("out", ("batch", p.num_heads, p.latent_size), p.dtype),)

    def workspaces(self, parameters: LatentParameters, configuration: LatentConfiguration) -> tuple[TensorType, ...]:
        """What each split leaves to combine: its weighted sum of latents, its largest score, and its sum of weights."""
        return partial_results(parameters.num_heads, parameters.latent_size, configuration.splits)

    def configurations(self, parameters: LatentParameters, target: Target) -> tuple[LatentConfiguration, ...]:
        """The tilings that fit into the target's shared memory and have heads in a quarter of their rows or more."""
        p = parameters
        if not target.is_cuda:
            return (LatentConfiguration(block_heads=p.num_heads, stages=1, threads=1),)
        candidates = _HOPPER if target.device.wgmma else _OTHER
        usable = [c for c in candidates if _fits(p, c) and _shared_memory(p, c) <= target.shared_memory]
        narrowest = min(c.block_heads for c in usable)
        return tuple(c for c in usable if c.block_heads < max(4 * p.num_heads, narrowest + 1))

    def reduction_order(
        self, parameters: LatentParameters, configuration: LatentConfiguration, target: Target
    ) -> Hashable:
        """Tiles of keys one after the other, in as many shares as the configuration says: each has its own order."""
        return configuration

    def work(self, parameters: LatentParameters, sizes: Mapping[str, int]) -> Work:
        p = parameters
        tensors = (*self.inputs(p), *self.outputs(p))
        return Work(
            flops=AttentionDecode().work(p.attention, sizes).flops,
            bytes=sum(tensor.num_bytes(sizes) for tensor in tensors),
        )

    def reference(self, parameters: LatentParameters, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from tkc.kernels.attention.reference import latent_attention

        return (latent_attention(parameters, *inputs),)


def _parts(p: LatentParameters, name: str, rows: int | str, joined: bool) -> tuple[TensorType, ...]:
    """One tensor with the latent and the rotary part side by side, or one for each."""
    if joined:
        return (TensorType(name, ("batch", rows, p.latent_size + p.rope_size), p.dtype),)
    return (
        TensorType(name, ("batch", rows, p.latent_size), p.dtype),
        TensorType(f"{name}_rope", ("batch", rows, p.rope_size), p.dtype),
    )


def _alternating(splits: int) -> LatentConfiguration:
    return LatentConfiguration(splits=splits, threads=384, alternating=True)


_HOPPER = (
    *map(_alternating, (1, 2, 4, 8, 16)),
    LatentConfiguration(64, 64, 1, stages=2),
    LatentConfiguration(64, 64, 4, stages=2),
    LatentConfiguration(64, 64, 16, stages=2),
    LatentConfiguration(16, 64, 4, stages=2, threads=128),
    LatentConfiguration(16, 64, 16, stages=2, threads=128),
)
_OTHER = (
    LatentConfiguration(64, 64, 4, stages=1),
    LatentConfiguration(64, 64, 16, stages=1),
    LatentConfiguration(32, 32, 4, stages=1, threads=128),
    LatentConfiguration(32, 32, 16, stages=1, threads=128),
    LatentConfiguration(16, 32, 4, stages=1, threads=128),
    LatentConfiguration(16, 32, 16, stages=1, threads=128),
)


def _fits(p: LatentParameters, c: LatentConfiguration) -> bool:
    """Whether the warps can share the columns: alternating warpgroups take half of whole bulk copies each."""
    return not c.alternating or (p.latent_size % 128 == 0 and p.rope_size == c.block_keys)


def _shared_memory(p: LatentParameters, c: LatentConfiguration) -> int:
    """Bytes of the queries, of the keys in flight, and of the weights (which alternating warpgroups put over keys)."""
    rows = c.block_heads + c.stages * c.block_keys
    weights = 0 if c.alternating else c.block_heads * c.block_keys
    return _ITEM_BYTES * (rows * (p.latent_size + p.rope_size) + weights) + _MARGIN
