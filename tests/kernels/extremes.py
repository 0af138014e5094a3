"""Cases of every kernel family, and what calls their kernels with any sizes and compares with the references."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tests.kernels.built_kernel import POISON, BuiltKernel
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels import cases as measured
from tkc.kernels.all_cases import cases_of, checked_cases, input_of
from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.convolution.cases import convolution_case
from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters
from tkc.kernels.moe_combine.parameters import MoeCombineParameters
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_permute.parameters import MoePermuteParameters
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.quantized_rms_norm.parameters import QuantizedRMSNormParameters
from tkc.kernels.rotary.parameters import RotaryParameters
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.spec import TensorType
from tkc.kernels.swiglu.parameters import SwiGLUParameters

_GUARD_BYTES = 4096  # before and after each tensor; a multiple of every alignment
_TOLERANCE = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}

# One below, at, and one above the sides of tiles.
_ROWS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257)
_LENGTHS = (0, 1, 2, 63, 64, 65, 127, 128, 129, 300)
_BATCHES = (0, 1, 3)


@dataclass(frozen=True)
class Case:
    """A kernel by its parameters, the ``usual`` run-time sizes, and for some of these the ``others`` to be tried.

    Of sizes that follow from each other, ``together`` has all that are tried.
    """

    kernel: str
    parameters: Any
    usual: Mapping[str, int]
    others: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    together: tuple[Mapping[str, int], ...] = ()

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The usual sizes, those with one of them changed, and none of anything."""
        if self.together:
            return [dict(sizes) for sizes in (self.usual, *self.together)]
        changed = [{**self.usual, name: size} for name, tried in self.others.items() for size in tried]
        return [dict(self.usual), *changed, dict.fromkeys(self.usual, 0)]


def _convolution(p: ConvolutionParameters, *images: tuple[int, int, int]) -> Case:
    """Of so many images of so many lines, of pixels or elements."""
    usual, *others = (convolution_case(p, *image).sizes for image in images)
    return Case("convolution", p, usual, together=tuple(others))


def _attention(**options: Any) -> AttentionParameters:
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "value_head_size": 64}
    return AttentionParameters(**{**heads, "dtype": "bfloat16", "scale": 0.125, **options})


_M = {"m": _ROWS}
_TOKENS = {"tokens": _ROWS}
_PREFILL = ({"batch": 2, "queries": 150, "keys": 200}, {"batch": _BATCHES, "queries": _LENGTHS, "keys": _LENGTHS})
_SCALES: tuple[tuple[Literal["token", "group", "block", "channel"], bool], ...] = (
    ("token", True),
    ("group", False),
    ("block", True),
    ("channel", False),
)
_DECODE = ({"batch": 2, "keys": 200}, {"batch": _BATCHES, "keys": _LENGTHS})
_BATCHED = ({"batch": 2, "m": 130}, {"batch": _BATCHES, "m": _ROWS})
_COMBINED = MoeCombineParameters(256, 2, "bfloat16", "float32", weight_order="tokens")

_CHOSEN = {
    "matmul": Case(
        "matmul", MatmulParameters(136, 72, "bfloat16", bias=True, activation="gelu", residual=True), {"m": 40}, _M
    ),
    "matmul, three outputs": Case(
        "matmul", MatmulParameters(160, 64, "float16", "kn", activation="relu", outputs=(96, 32, 32)), {"m": 40}, _M
    ),
    "matmul, float32": Case("matmul", MatmulParameters(64, 64, "float32", activation="silu"), {"m": 40}, _M),
    "matmul, float32, three outputs": Case(
        "matmul",
        MatmulParameters(160, 100, "float32", "kn", bias=True, outputs=(96, 32, 32)),
        {"m": 140},
        _M,
    ),
    "batched": Case("matmul.batched", BatchedMatmulParameters(136, 64, "bfloat16"), *_BATCHED),
    "batched, float32": Case("matmul.batched", BatchedMatmulParameters(136, 72, "float32", "kn"), *_BATCHED),
    "batched, sizes of calls": Case(
        "matmul.batched",
        BatchedMatmulParameters(None, None, "bfloat16", "kn"),
        {"batch": 2, "m": 20, "n": 24, "k": 40},
        {"batch": _BATCHES, "m": (0, 1, 17), "n": (0, 1, 65, 129), "k": (0, 1, 31, 32, 129)},
    ),
    "gated": Case("matmul.gated", GatedMatmulParameters(136, 64, "bfloat16", bias=True), {"m": 40}, _M),
    "grouped": Case("matmul.grouped", GroupedMatmulParameters(5, 136, 64, "bfloat16"), {"m": 70}, _M),
    "grouped, gated, gathered": Case(
        "matmul.grouped",
        GroupedMatmulParameters(5, 64, 128, "bfloat16", gated="silu", rows="int64"),
        {"m": 70, "tokens": 40},
        {"m": _ROWS, "tokens": (0, 1, 3)},
    ),
    "scaled": Case("matmul.scaled", ScaledMatmulParameters(136, 144), {"m": 40}, _M),
    "prefill, bottom right": Case("attention.prefill", _attention(causal="bottom_right"), *_PREFILL),
    "prefill, no mask": Case("attention.prefill", _attention(head_size=80, value_head_size=48), *_PREFILL),
    "prefill, window, cap, sinks": Case(
        "attention.prefill",
        _attention(window=70, softcap=2.0, sinks=True, mask="additive", mask_per_batch=True, q_layout="bhsd"),
        *_PREFILL,
    ),
    "decode": Case("attention.decode", _attention(), *_DECODE),
    "decode, cap, sinks": Case(
        "attention.decode", _attention(softcap=2.0, sinks=True, mask="bool", mask_per_batch=True), *_DECODE
    ),
    "latent": Case("attention.latent_decode", LatentParameters(5, 128, 64, "bfloat16", 0.1), *_DECODE),
    "latent, mask": Case(
        "attention.latent_decode",
        LatentParameters(5, 128, 64, "bfloat16", 0.1, mask="additive", mask_per_batch=True, joined_cache=True),
        *_DECODE,
    ),
    "convolution": _convolution(
        ConvolutionParameters(
            24, 40, (3, 2), "bfloat16", (2, 1), (1, 2), (1, 0), (2, 1), bias=True, activation="silu", residual=True
        ),
        *((2, 5, 6), (0, 5, 6), (1, 1, 2), (1, 1, 129), (3, 65, 2), (5, 17, 31)),
    ),
    "convolution, pixels": _convolution(
        ConvolutionParameters(16, 32, (1, 1), "float16", (3, 2)), (2, 7, 8), (0, 1, 1), (1, 1, 1), (1, 128, 257)
    ),
    "convolution, normalized": _convolution(
        ConvolutionParameters(
            *(24, 32, (3, 3), "bfloat16"),
            before=(1, 1),
            after=(1, 1),
            bias=True,
            batch_norm=BatchNorm("bfloat16", 1e-5),
            activation="relu",
            activation_is_last=True,
            residual=True,
        ),
        *((2, 5, 6), (0, 5, 6), (1, 1, 1), (1, 1, 129), (3, 65, 2)),
    ),
    "convolution, normalized pixels": _convolution(
        ConvolutionParameters(
            264, 40, (1, 1), "float16", batch_norm=BatchNorm("float32", 1e-3), activation="silu", residual=True
        ),
        *((1, 1, 40), (1, 1, 0), (1, 1, 1), (1, 1, 257), (2, 5, 31)),
    ),
    "convolution, lines": _convolution(
        ConvolutionParameters(16, 12, (3, 1), "float16", (2, 1), before=(1, 0), after=(0, 0), lines=(8, 5)),
        *((2, 6, 48), (0, 6, 48), (1, 2, 48), (3, 33, 56)),
    ),
    "swiglu": Case("swiglu", SwiGLUParameters(136, "bfloat16"), {"tokens": 40}, _TOKENS),
    **{
        f"swiglu, a scale per {scale}": Case(
            "swiglu",
            SwiGLUParameters(264, "bfloat16", packed=scale == "token", scale=scale, power_of_two_scales=rounded),
            {"tokens": 40},
            _TOKENS,
        )
        for scale, rounded in _SCALES
    },
    "gate": Case("moe.topk_gate", MoeGateParameters(60, 4, "softmax", normalize=True), {"tokens": 40}, _TOKENS),
    "gate, bias, groups": Case(
        "moe.topk_gate",
        MoeGateParameters(
            64, 6, "sigmoid", "bfloat16", bias=True, num_groups=8, top_groups=3, normalize=True, epsilon=1e-20
        ),
        {"tokens": 40},
        _TOKENS,
    ),
    "gate, softmax before the bias": Case(
        "moe.topk_gate", MoeGateParameters(40, 3, "softmax", bias=True), {"tokens": 40}, _TOKENS
    ),
    "permute": Case("moe.permute", MoePermuteParameters(9, top_k=2), {"copies": 80}, {"copies": (0, 1, 2, 255, 257)}),
    "combine": Case(
        "moe.combine",
        MoeCombineParameters(264, 3, "bfloat16", "float32"),
        {"copies": 120, "tokens": 40},
        {"copies": (0, 1), "tokens": (0, 1, 129)},
    ),
    "rms": Case(
        "normalization",
        NormalizationParameters(264, "bfloat16", "rms", 1e-6, residual=True, keeps_sum=True),
        {"tokens": 40},
        _TOKENS,
    ),
    "layer": Case(
        "normalization", NormalizationParameters(72, "float32", "layer", 1e-5, bias=True), {"tokens": 40}, _TOKENS
    ),
    "rms of combined": Case(
        "normalization",
        NormalizationParameters(256, "bfloat16", "rms", 1e-6, combined=_COMBINED),
        {"copies": 80, "tokens": 40},
        {"copies": (0, 1), "tokens": (0, 1, 129)},
    ),
    "quantized rms, a scale per token": Case(
        "quantized_rms_norm",
        QuantizedRMSNormParameters(
            1032, "bfloat16", 1e-6, "token", "bfloat16", residual=True, keeps_sum=True, minimum_amax=0.0
        ),
        {"tokens": 40},
        _TOKENS,
    ),
    "quantized rms, a scale per group": Case(
        "quantized_rms_norm",
        QuantizedRMSNormParameters(384, "bfloat16", 1e-6, "group", "float32", weight_offset=True),
        {"tokens": 40},
        _TOKENS,
    ),
    "quantized rms, a static scale": Case(
        "quantized_rms_norm", QuantizedRMSNormParameters(72, "float32", 1e-6, "tensor"), {"tokens": 40}, _TOKENS
    ),
    "rotary": Case(
        "rotary",
        RotaryParameters(4, 64, "bfloat16", key_heads=2, epsilon=1e-6, weight=True),
        {"batch": 2, "sequence": 40},
        {"batch": _BATCHES, "sequence": _LENGTHS},
    ),
}


def of_checked(kernels: Collection[str]) -> dict[str, Case]:
    """The small cases of ``kernels``, and at none and one of each size.

    Where a family makes its inputs itself, its sizes belong together, and are not changed one by one.
    """
    found = {}
    for number, case in enumerate(case for case in checked_cases() if case.kernel in kernels):
        apart = cases_of(case.kernel).make_input is None
        others = {name: (0, 1, size + 1) for name, size in case.sizes.items()} if apart else {}
        found[f"{case.kernel} {number}"] = Case(case.kernel, case.parameters, case.sizes, others)
    return found


CASES = _CHOSEN | of_checked(set(SPECS) - {case.kernel for case in _CHOSEN.values()})


def requests(case: Case, target: Target) -> list[KernelRequest]:
    """On a GPU, the first configuration of each kind that makes a kernel of its own; else the first."""
    spec, p = KernelRequest(case.kernel, case.parameters, None, target).spec, case.parameters
    if spec.unsupported(p, target) is not None:
        return []
    found: dict[Any, Any] = {}
    for configuration in spec.configurations(p, target):
        found.setdefault(_kind(configuration) if target.is_cuda else None, configuration)
    return [KernelRequest(case.kernel, p, configuration, target) for configuration in found.values()]


def _kind(configuration: Any) -> tuple[Any, ...]:
    """Persistent or not, split or not, by ``wgmma`` or ``mma``, what attention calls its forms; and libraries."""
    by_name = {name: getattr(configuration, name, None) for name in ("blocks", "splits", "block_m")}
    return (
        bool(by_name["blocks"]),
        (by_name["splits"] or 1) > 1,
        (by_name["block_m"] or 64) < 64,
        *(getattr(configuration, name, None) for name in ("overlaps", "alternating", "library")),
    )


# Sizes that no tile and no vector divides, for the families whose own tests have none such on the CPU.
ODD_CASES = {
    "gated, odd": Case("matmul.gated", GatedMatmulParameters(37, 29, "bfloat16"), {"m": 5}),
    "batched, odd": Case("matmul.batched", BatchedMatmulParameters(37, 29, "float16"), {"batch": 3, "m": 5}),
    "grouped, odd": Case("matmul.grouped", GroupedMatmulParameters(3, 37, 29, "bfloat16"), {"m": 11}),
    "prefill, odd": Case(
        "attention.prefill",
        _attention(num_heads=3, num_kv_heads=1, head_size=33, value_head_size=17, causal="bottom_right"),
        {"batch": 1, "queries": 7, "keys": 13},
    ),
    "latent, odd": Case(
        "attention.latent_decode", LatentParameters(3, 37, 5, "float16", 0.1), {"batch": 1, "keys": 13}
    ),
    "quantized rms, odd": Case(
        "quantized_rms_norm", QuantizedRMSNormParameters(131, "float16", 1e-6, "token", "float32"), {"tokens": 7}
    ),
    "swiglu, odd": Case(
        "swiglu", SwiGLUParameters(131, "bfloat16", scale="group", power_of_two_scales=True), {"tokens": 7}
    ),
    "rotary, odd": Case("rotary", RotaryParameters(3, 6, "float16", key_heads=1), {"batch": 1, "sequence": 7}),
}


def inputs_of(case: Case, sizes: Mapping[str, int], device: str, shift: int = 0) -> list[torch.Tensor]:
    """Random inputs for these sizes, each with NaN before and after it; indices are in range.

    Each begins ``shift`` elements after an aligned address.
    """
    generator = torch.Generator().manual_seed(sum(sizes.values()))
    spec = KernelRequest(case.kernel, case.parameters, None, Target("cpu")).spec
    tensors = []
    for declared in spec.inputs(case.parameters):
        values = _values(declared, case, sizes, generator)
        dtype = getattr(torch, declared.dtype)
        whole = torch.full(
            (values.numel() * dtype.itemsize + 2 * _GUARD_BYTES,), 0xFF, dtype=torch.uint8, device=device
        )
        begin = _GUARD_BYTES + shift * dtype.itemsize
        tensor = whole[begin : len(whole) + begin - 2 * _GUARD_BYTES].view(dtype).view(values.shape)
        tensors.append(tensor.copy_(values.to(dtype)))
    return tensors


def _values(declared: TensorType, case: Case, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    shape, p = shape_of(declared, sizes), case.parameters
    if declared.dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.7
    if declared.name == "offsets":
        ends = torch.randint(0, sizes["m"] + 1, shape, generator=generator).sort().values
        return ends.clamp(max=ends[-1] - ends[-1] // 8)
    if re.match("u?int", declared.dtype):
        beyond = {
            "experts": getattr(p, "num_experts", 1),
            "positions": sizes.get("copies"),
            "rows": sizes.get("tokens"),
        }
        if declared.name not in beyond:
            return input_of(measured.Case(case.kernel, p, sizes), declared, sizes, torch.device("cpu"))
        return torch.randint(0, max(beyond[declared.name] or 0, 1), shape, generator=generator)
    scale = p.k**-0.5 if declared.name in ("b", "gate", "up") and getattr(p, "k", None) else 1.0
    values = torch.randn(shape, generator=generator) * scale
    return values.abs() if declared.name.endswith("_scale") or declared.name == "variance" else values


def shape_of(declared: TensorType, sizes: Mapping[str, int]) -> list[int]:
    """The shape of a tensor at these sizes."""
    return [sizes[dim] if isinstance(dim, str) else dim for dim in declared.shape]


def call(
    kernel: BuiltKernel, inputs: list[torch.Tensor], sizes: Mapping[str, int], shift: int = 0
) -> list[torch.Tensor]:
    """The outputs, which begin ``shift`` elements after an aligned address.

    Fails if anything is written before or after them or workspaces.
    """
    request, spec = kernel.request, kernel.request.spec
    known = {**cases_of(request.kernel).derived_sizes(sizes), **sizes}
    written = (*spec.outputs(request.parameters), *spec.workspaces(request.parameters, request.configuration))
    wholes, tensors = [], []
    for declared in written:
        dtype, shape = getattr(torch, declared.dtype), shape_of(declared, known)
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        whole = torch.full((num_bytes + 2 * _GUARD_BYTES,), POISON, dtype=torch.uint8, device=inputs[0].device)
        begin = _GUARD_BYTES + shift * dtype.itemsize
        wholes.append((whole[:begin], whole[begin + num_bytes :]))
        tensors.append(whole[begin : begin + num_bytes].view(dtype).view(shape))
    kernel.function(*inputs, *tensors)
    for declared, guards in zip(written, wholes, strict=True):
        beyond = torch.cat(guards)
        assert (beyond == POISON).all(), f"{request}: something is written beyond {declared.name} at {dict(sizes)}"
    return tensors[: len(spec.outputs(request.parameters))]


def assert_same(actual: list[torch.Tensor], expected: tuple[torch.Tensor, ...], about: object) -> None:
    """Equal to rounding; NaN and infinities where they are expected, and nowhere else. Of FP8 codes some may be next to
    each other."""
    for nth, (out, want) in enumerate(zip(actual, expected, strict=True)):
        message = f"output {nth} of {about}"
        if out.element_size() == 1:
            codes, wanted = (tensor.float() for tensor in (out, want))
            torch.testing.assert_close(codes, wanted, rtol=0.26, atol=0.01, equal_nan=True, msg=_named(message))
            assert (codes.nan_to_num() != wanted.nan_to_num()).sum() <= codes.numel() // 100 + 1, message
        elif out.is_floating_point():
            finite = want.float()[want.isfinite()]
            tolerance = _TOLERANCE[str(out.dtype).removeprefix("torch.")]
            atol = tolerance * (1 + (finite.abs().max().item() if finite.numel() else 0))
            torch.testing.assert_close(out, want, rtol=tolerance, atol=atol, equal_nan=True, msg=_named(message))
        else:
            assert torch.equal(out, want), message


def _named(message: str) -> Any:
    return lambda details: f"{message}: {details}"
