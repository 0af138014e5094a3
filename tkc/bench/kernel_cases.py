"""The kernels that are measured: production shapes, random inputs for them, and PyTorch's best for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tkc.kernels import SPECS, TensorType
from tkc.kernels.attention.latent_spec import LatentParameters
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.gated_matmul.spec import GatedMatmulParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmulParameters
from tkc.kernels.matmul.spec import MatmulParameters
from tkc.kernels.moe_combine.spec import MoeCombineParameters
from tkc.kernels.moe_gate.spec import MoeGateParameters
from tkc.kernels.moe_permute.spec import MoePermuteParameters
from tkc.kernels.normalization.spec import NormalizationParameters
from tkc.kernels.rotary.spec import RotaryParameters
from tkc.kernels.scaled_matmul.spec import ScaledMatmulParameters
from tkc.kernels.swiglu.spec import QUANTIZATION_BLOCK, SwiGLUParameters

Reference = Callable[..., object]

# Of a kernel's inputs: what is this small comes from the kernel before, and lies in the L2 cache in a model, too.
_MOST_COPIES = 16

# The experts of Qwen3-30B-A3B: up and gate, down, and both at once, with rows in order and gathered.
_EXPERTS_PER_TOKEN = 8
_GROUPED = (
    GroupedMatmulParameters(128, 1536, 2048, "bfloat16"),
    GroupedMatmulParameters(128, 2048, 768, "bfloat16"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu"),
    GroupedMatmulParameters(128, 768, 2048, "bfloat16", gated="silu", rows="int64"),
)
_DEEPSEEK_V3 = LatentParameters(
    num_heads=128,
    latent_size=512,
    rope_size=64,
    dtype="bfloat16",
    scale=192**-0.5,  # of a head before its keys are absorbed: 128 + 64
    joined_queries=True,
    joined_cache=True,
)

# Of Llama-3-8B, and of Qwen3-30B-A3B, which normalizes heads.
_QUERIES_AND_KEYS = (
    RotaryParameters(32, 128, "bfloat16", key_heads=8),
    RotaryParameters(32, 128, "bfloat16", key_heads=4, epsilon=1e-6, weight=True),
)
# Qwen3-30B-A3B's, one with twice the experts, and DeepSeek-V3's.
_GATES = (
    MoeGateParameters(128, 8, "softmax", normalize=True),
    MoeGateParameters(256, 8, "softmax", normalize=True),
    MoeGateParameters(
        256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4, normalize=True, epsilon=1e-20, scale=2.5
    ),
)


@dataclass(frozen=True)
class Case:
    """One kernel at one set of run-time sizes, and the fastest thing PyTorch has for it (``None``: nothing alike)."""

    kernel: str
    parameters: Any
    sizes: Mapping[str, int]
    reference: Reference | None = None


def benchmark_cases() -> list[Case]:
    """The table of production shapes that benchmarks report."""
    head = dict(head_size=128, value_head_size=128, dtype="bfloat16", scale=128**-0.5)
    found = [Case("moe.topk_gate", p, {"tokens": t}) for p in _GATES for t in (4096, 65536)]
    found += [Case("moe.permute", MoePermuteParameters(128), {"copies": c}, _sort) for c in (512, 32768)]
    found += [
        Case("swiglu", SwiGLUParameters(c, "bfloat16", packed=True, scale=scale), {"tokens": t})
        for scale in (None, "token", "group")
        for t, c in ((4096, 2048), (16384, 7168))
    ]
    found += [
        Case("normalization", NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t}, _normalized)
        for kind in ("rms", "layer")
        for t, c in ((2048, 4096), (16384, 7168), (131072, 128))
    ]
    found += [
        Case("rotary", RotaryParameters(heads, 128, "bfloat16"), {"batch": 1, "sequence": s})
        for heads, s in ((32, 2048), (8, 2048), (32, 8192))
    ]
    found += [
        Case("rotary", parameters, {"batch": 1, "sequence": s})
        for parameters in _QUERIES_AND_KEYS
        for s in (1, 128, 2048, 8192)
    ]
    found += [
        Case("moe.combine", MoeCombineParameters(c, 8, "bfloat16", "bfloat16"), {"tokens": t, "copies": 8 * t})
        for t, c in ((64, 2048), (4096, 2048), (4096, 7168))
    ]
    found += [
        Case("matmul", MatmulParameters(n, k, "bfloat16"), {"m": m}, _matmul)
        for n, k in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))
        for m in (16, 128, 2048, 8192)
    ]
    found += [
        Case("matmul.scaled", ScaledMatmulParameters(n, k), {"m": m}, _block_scaled_reference())
        for n, k, rows in (
            (4096, 4096, (4096,)),
            (7168, 4096, (8192,)),
            (7168, 2048, (16, 128, 4096)),
            (4096, 7168, (16, 128, 4096)),
            (24576, 1536, (16, 128, 4096)),
        )
        for m in rows
    ]
    found += [
        Case("matmul.gated", GatedMatmulParameters(14336, 4096, "bfloat16"), {"m": m}, _gated)
        for m in (1, 16, 128, 2048, 8192)
    ]
    found += [
        Case("matmul.grouped", parameters, _grouped_sizes(parameters, m), _grouped)
        for parameters in _GROUPED
        for m in (512, 32768)
    ]
    found += [
        Case(
            "attention.prefill",
            AttentionParameters(h, kv, causal=causal, **head),
            {"batch": b, "queries": s, "keys": s},
            _sdpa,
        )
        for causal in (None, "top_left")
        for b, h, kv, s in ((4, 16, 16, 4096), (1, 32, 8, 2048), (1, 32, 32, 8192))
    ]
    found += [
        Case("attention.decode", AttentionParameters(32, 8, **head), {"batch": b, "keys": keys}, _sdpa)
        for b, keys in ((1, 4096), (32, 4096))
    ]
    found += [
        Case("attention.latent_decode", _DEEPSEEK_V3, {"batch": b, "keys": keys}, _latent_sdpa)
        for b in (64, 128)
        for keys in (1024, 4096, 8192)
    ]
    return found


def tuning_cases() -> list[Case]:
    """The shapes at which kernels are tuned that choose their configuration by size: few tokens to many.

    The layers are those of Llama-3-8B, Qwen3-30B-A3B, BERT-large and ViT-L, in FP8 and in latent attention those of
    DeepSeek-V3.
    """
    rows = (1, 16, 64, 128, 256, 512, 1024, 2048, 8192)
    dense = [(4096, 4096), (14336, 4096), (4096, 14336), (2048, 4096), (128, 2048)]
    dense += [(1024, 1024), (4096, 1024), (1024, 4096)]
    merged = [((4096, 1024, 1024), 4096), ((4096, 512, 512), 2048), ((1024, 1024, 1024), 1024)]
    products = [MatmulParameters(n, k, "bfloat16") for n, k in dense]
    products += [MatmulParameters(sum(outputs), k, "bfloat16", outputs=outputs) for outputs, k in merged]
    found = [Case("matmul", parameters, {"m": m}) for parameters in products for m in rows]
    scaled = [(4096, 4096), (7168, 2048), (4096, 7168), (24576, 1536)]
    found += [Case("matmul.scaled", ScaledMatmulParameters(n, k), {"m": m}) for n, k in scaled for m in rows]
    gated = [(14336, 4096, False), (3072, 1024, False)]
    found += [
        Case("matmul.gated", GatedMatmulParameters(n, k, "bfloat16", packed=packed), {"m": m})
        for n, k, packed in gated
        for m in rows
    ]
    found += [
        Case("matmul.grouped", parameters, _grouped_sizes(parameters, m))
        for parameters in _GROUPED
        for m in (8, 128, 512, 2048, 8192, 32768)
    ]
    found += [
        Case("normalization", NormalizationParameters(c, "bfloat16", kind, 1e-6), {"tokens": t})
        for kind in ("rms", "layer")
        for c in (128, 1024, 2048, 4096, 7168)
        for t in (16, 2048, 65536)
    ]
    found += [Case("moe.topk_gate", p, {"tokens": t}) for p in _GATES for t in (1, 128, 4096, 65536)]
    found += [
        Case("rotary", parameters, {"batch": 1, "sequence": s})
        for parameters in _QUERIES_AND_KEYS
        for s in (1, 64, 512, 4096, 8192)
    ]
    found += [
        Case("swiglu", SwiGLUParameters(c, "bfloat16", packed=packed, scale=scale), {"tokens": t})
        for packed, scale in ((False, None), (True, None), (True, "group"))
        for c in (768, 2048, 7168, 14336)
        for t in (16, 4096, 16384)
    ]
    found += [
        Case("attention.latent_decode", _DEEPSEEK_V3, {"batch": b, "keys": 4096}) for b in (1, 4, 16, 32, 64, 128)
    ]
    return found


class Prepared:
    """A case on a device: random inputs, and the outputs that its reference has for them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.spec = SPECS[case.kernel]
        self.sizes = {"token_blocks": -(-case.sizes.get("tokens", 0) // QUANTIZATION_BLOCK), **case.sizes}
        self.inputs = [random_input(case, t, self.sizes, device) for t in self.spec.inputs(case.parameters)]
        self.expected = self.spec.reference(case.parameters, *self.inputs)
        self._copies = [self.inputs, *([t.clone() for t in self.inputs] for _ in range(self._num_copies() - 1))]

    def calls(self, function: Callable[..., object], configuration: Any) -> tuple[list[Callable[[], object]], float]:
        """Calls of a built kernel, each on a copy of the inputs, and how far its outputs deviate from the reference's.

        On a GPU there are so many copies that they do not fit into its L2 cache.
        """
        scratch = [self._empty(t) for t in self.spec.workspaces(self.case.parameters, configuration)]
        outputs = [[self._empty(t) for t in self.spec.outputs(self.case.parameters)] for _ in self._copies]
        calls: list[Callable[[], object]] = [
            partial(function, *inputs, *out, *scratch) for inputs, out in zip(self._copies, outputs, strict=True)
        ]
        calls[0]()
        return calls, max(deviation(out, want) for out, want in zip(outputs[0], self.expected, strict=True))

    def reference_calls(self) -> list[Callable[[], object]]:
        """Calls of what PyTorch has for the case, likewise; none where it has nothing."""
        reference = self.case.reference
        return [partial(reference, self.case.parameters, *inputs) for inputs in self._copies] if reference else []

    def _num_copies(self) -> int:
        if self.device.type != "cuda":
            return 1
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        return min(_MOST_COPIES, 1 + math.ceil(2 * cache / sum(tensor.nbytes for tensor in self.inputs)))

    def _empty(self, tensor: TensorType) -> torch.Tensor:
        """A tensor to write to, filled with NaN where its dtype has one, so that what stays unwritten shows."""
        out = torch.empty(_shape(tensor, self.sizes), device=self.device, dtype=getattr(torch, tensor.dtype))
        return out.fill_(float("nan")) if out.dtype.is_floating_point and out.element_size() > 1 else out


def random_input(case: Case, tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """A random tensor that is valid as this argument.

    Experts and row numbers are in range, scales positive, and offsets go up to the rows.
    """
    shape = _shape(tensor, sizes)
    if tensor.name == "experts":
        return torch.randint(0, case.parameters.num_experts, shape, device=device, dtype=getattr(torch, tensor.dtype))
    if tensor.name == "rows":
        return torch.randint(0, sizes["tokens"], shape, device=device, dtype=getattr(torch, tensor.dtype))
    if tensor.name == "positions":
        rows = torch.randperm(sizes["copies"], device=device)
        return rows.reshape(shape).to(getattr(torch, tensor.dtype))
    if tensor.name == "offsets":
        return _routed(sizes["m"], shape[0], device)
    if tensor.name.endswith("_scale"):
        return torch.rand(shape, device=device) + 0.5
    if tensor.dtype == "bool":
        return torch.rand(shape, device=device) < 0.9
    return torch.randn(shape, device=device).to(getattr(torch, tensor.dtype))


def _routed(rows: int, groups: int, device: torch.device) -> torch.Tensor:
    """Where each group's rows end if tokens choose groups of which some are liked more than others.

    What all tokens like and what each likes count the same. Of 512 rows, some 70 of 128 groups get any then, and one
    up to 60; in a Qwen3-30B-A3B with random weights 25 to 99 did, and one up to 64.
    """
    chosen = min(_EXPERTS_PER_TOKEN, groups)
    liking = torch.randn(groups, device=device) + torch.randn(-(-rows // chosen), groups, device=device)
    experts = liking.topk(chosen).indices.flatten()[:rows]
    return experts.bincount(minlength=groups).cumsum(0).to(torch.int32)


def deviation(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference over the largest magnitude; for integers, the share that differs."""
    if not expected.dtype.is_floating_point:
        return float((result != expected).double().mean())
    difference = (result.double() - expected.double()).abs().max()
    value = float(difference / expected.double().abs().max().clamp_min(1e-30))
    return float("inf") if value != value else value


def _shape(tensor: TensorType, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]


def _sort(parameters: MoePermuteParameters, experts: torch.Tensor) -> object:
    return torch.sort(experts, stable=True)


def _normalized(parameters: NormalizationParameters, x: torch.Tensor, weight: torch.Tensor) -> object:
    if parameters.kind == "rms":
        return torch.nn.functional.rms_norm(x, (parameters.channels,), weight, parameters.epsilon)
    return torch.nn.functional.layer_norm(x, (parameters.channels,), weight, None, parameters.epsilon)


def _matmul(parameters: MatmulParameters, a: torch.Tensor, b: torch.Tensor) -> object:
    return a @ b.T


def _block_scaled_reference() -> Reference | None:
    """PyTorch's product with these scales (``k`` a multiple of 512), which it has for compute capability 9.0 alone."""
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return _block_scaled if on_hopper else None


def _block_scaled(
    parameters: ScaledMatmulParameters,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
) -> object:
    # PyTorch wants the rows' scales column by column. Taking ours for that costs no time, and the result is not read.
    by_column = a_scale.view(a_scale.shape[::-1]).T
    recipes = torch.nn.functional.ScalingType
    return torch.nn.functional.scaled_mm(
        a, b.T, by_column, recipes.BlockWise1x128, b_scale.T, recipes.BlockWise128x128, output_dtype=torch.bfloat16
    )


def _gated(parameters: GatedMatmulParameters, a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> object:
    return torch.nn.functional.silu(a @ gate.T) * (a @ up.T)


def _grouped_sizes(parameters: GroupedMatmulParameters, m: int) -> dict[str, int]:
    """``m`` rows, and of how many tokens, if they are gathered."""
    return {"m": m} if parameters.rows is None else {"m": m, "tokens": m // _EXPERTS_PER_TOKEN}


def _grouped(parameters: GroupedMatmulParameters, a: torch.Tensor, *operands: torch.Tensor) -> object:
    *rows, b, offsets = operands
    for numbers in rows:
        a = a[numbers]
    products = torch._grouped_mm(a, b.transpose(1, 2), offs=offsets)
    if parameters.gated is None:
        return products
    gate, up = products.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _sdpa(parameters: AttentionParameters, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    causal = parameters.causal is not None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=parameters.scale, enable_gqa=True
    )


def _latent_sdpa(parameters: LatentParameters, q: torch.Tensor, cache: torch.Tensor) -> object:
    """With the heads as the queries of one head, so that nothing is repeated."""
    latents = cache[..., : parameters.latent_size]
    q, k, v = (tensor[:, None] for tensor in (q, cache, latents))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=parameters.scale)
