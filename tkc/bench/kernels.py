"""Each kernel family over production shapes: checked against its reference, timed beside PyTorch's best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import tvm_ffi

from tkc.bench.record import Row
from tkc.bench.timing import median_milliseconds
from tkc.builder import KernelBuilder
from tkc.errors import UsageError
from tkc.kernels import SPECS, KernelRequest, Target, TensorType
from tkc.kernels.attention.spec import AttentionParameters
from tkc.kernels.grouped_matmul.spec import GroupedMatmulParameters
from tkc.kernels.matmul.spec import MatmulParameters
from tkc.kernels.moe_gate.spec import MoeGateParameters
from tkc.kernels.moe_permute.spec import MoePermuteParameters
from tkc.kernels.normalization.spec import NormalizationParameters
from tkc.kernels.swiglu.spec import SwiGLUParameters

Reference = Callable[..., object]


@dataclass(frozen=True)
class Case:
    """One kernel at one set of run-time sizes, and the fastest thing PyTorch has for it (``None``: nothing alike)."""

    kernel: str
    parameters: Any
    sizes: Mapping[str, int]
    reference: Reference | None = None


def cases() -> list[Case]:
    """The table of production shapes."""
    gate = MoeGateParameters(num_experts=256, top_k=8, scoring="softmax", normalize=True)
    grouped_gate = MoeGateParameters(
        256, 8, "sigmoid", bias=True, num_groups=8, top_groups=4, normalize=True, epsilon=1e-20, scale=2.5
    )
    head = dict(head_size=128, value_head_size=128, dtype="bfloat16", scale=128**-0.5)
    found = [Case("moe.topk_gate", p, {"tokens": t}) for p in (gate, grouped_gate) for t in (4096, 65536)]
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
        Case("matmul", MatmulParameters(n, k, "bfloat16"), {"m": m}, _matmul)
        for n, k in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))
        for m in (16, 128, 2048, 8192)
    ]
    found += [
        Case("matmul.grouped", GroupedMatmulParameters(128, n, k, "bfloat16"), {"m": m}, _grouped)
        for n, k in ((1536, 2048), (2048, 768))
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
    return found


def bench_kernels(names: Sequence[str], target: Target, every_configuration: bool) -> list[Row]:
    """Rows for the kernels called ``names`` (all if empty), with the default configuration or with every one."""
    if unknown := sorted(set(names) - set(SPECS)):
        raise UsageError(f"there is no kernel {', '.join(unknown)}; choose from {', '.join(SPECS)}")
    chosen = [case for case in cases() if not names or case.kernel in names]
    requests: dict[KernelRequest, None] = {}
    for case in chosen:
        for request in _requests(case, target, every_configuration):
            requests.setdefault(request)
    with KernelBuilder() as builder:
        libraries = builder.build(requests)
    functions = {r: tvm_ffi.load_module(str(library.path))[r.symbol] for r, library in libraries.items()}
    return [row for case in chosen for row in _rows(case, functions, target, every_configuration)]


def _requests(case: Case, target: Target, every: bool) -> list[KernelRequest]:
    configurations = SPECS[case.kernel].configurations(case.parameters, target)
    return [
        KernelRequest(case.kernel, case.parameters, c, target)
        for c in (configurations if every else configurations[:1])
    ]


def _rows(case: Case, functions: Mapping[KernelRequest, Any], target: Target, every: bool) -> Iterator[Row]:
    spec, device = SPECS[case.kernel], torch.device("cuda" if target.is_cuda else "cpu")
    sizes = {"token_blocks": -(-case.sizes.get("tokens", 0) // 128), **case.sizes}
    inputs = [random_input(case, t, sizes, device) for t in spec.inputs(case.parameters)]
    expected = spec.reference(case.parameters, *inputs)
    reference = partial(case.reference, case.parameters, *inputs) if case.reference else None
    reference_ms = median_milliseconds(reference, device) if reference else None
    work = spec.work(case.parameters, case.sizes)
    for request in _requests(case, target, every):
        outputs = [_empty(t, sizes, device) for t in spec.outputs(case.parameters)]
        scratch = [_empty(t, sizes, device) for t in spec.workspaces(case.parameters, request.configuration)]
        call = partial(functions[request], *inputs, *outputs, *scratch)
        call()
        error = max(deviation(out, want) for out, want in zip(outputs, expected, strict=True))
        ours = median_milliseconds(call, device)
        milliseconds = {"tkc": ours} | ({"PyTorch": reference_ms} if reference_ms else {})
        notes: dict[str, float | str] = {"TFLOP/s": work.flops / ours / 1e9, "TB/s": work.bytes / ours / 1e9}
        if every:
            notes["configuration"] = str(request.configuration)
        name = f"{case.kernel} {_short(case)}"
        yield Row(name, milliseconds, reference_ms / ours if reference_ms else None, error, notes)


def random_input(case: Case, tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """A random tensor that is valid as this argument: experts in range, offsets ascending up to the rows."""
    shape = _shape(tensor, sizes)
    if tensor.name == "experts":
        return torch.randint(0, case.parameters.num_experts, shape, device=device, dtype=getattr(torch, tensor.dtype))
    if tensor.name == "offsets":
        # Uneven groups: the shares that a softmax over random scores gives.
        shares = torch.randn(shape, device=device).softmax(0).cumsum(0)
        offsets = (shares * sizes["m"]).round().to(torch.int32)
        offsets[-1] = sizes["m"]
        return offsets
    if tensor.dtype == "bool":
        return torch.rand(shape, device=device) < 0.9
    return torch.randn(shape, device=device).to(getattr(torch, tensor.dtype))


def deviation(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference over the largest magnitude; for integers, the share that differs."""
    if not expected.dtype.is_floating_point:
        return float((result != expected).double().mean())
    difference = (result.double() - expected.double()).abs().max()
    value = float(difference / expected.double().abs().max().clamp_min(1e-30))
    return float("inf") if value != value else value


def _empty(tensor: TensorType, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    out = torch.empty(_shape(tensor, sizes), device=device, dtype=getattr(torch, tensor.dtype))
    return out.fill_(float("nan")) if out.dtype.is_floating_point and out.element_size() > 1 else out


def _shape(tensor: TensorType, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]


_TOLD = (
    *("kind", "n", "k", "num_experts", "num_groups", "channels", "scale"),
    *("num_heads", "num_kv_heads", "causal"),
)  # the parameters by which rows are told apart


def _short(case: Case) -> str:
    p = case.parameters
    words = [
        f"{name}={getattr(p, name)}"
        for name in (
            "kind",
            "n",
            "k",
            "num_experts",
            "num_groups",
            "channels",
            "scale",
            "num_heads",
            "num_kv_heads",
            "causal",
        )
        if hasattr(p, name)
    ]
    return " ".join([*words, *(f"{name}={size}" for name, size in case.sizes.items())])


def _sort(parameters: MoePermuteParameters, experts: torch.Tensor) -> object:
    return torch.sort(experts, stable=True)


def _normalized(parameters: NormalizationParameters, x: torch.Tensor, weight: torch.Tensor) -> object:
    if parameters.kind == "rms":
        return torch.nn.functional.rms_norm(x, (parameters.channels,), weight, parameters.epsilon)
    return torch.nn.functional.layer_norm(x, (parameters.channels,), weight, None, parameters.epsilon)


def _matmul(parameters: MatmulParameters, a: torch.Tensor, b: torch.Tensor) -> object:
    return a @ b.T


def _grouped(parameters: GroupedMatmulParameters, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> object:
    return torch._grouped_mm(a, b.transpose(1, 2), offs=offsets)


def _sdpa(parameters: AttentionParameters, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    causal = parameters.causal is not None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=parameters.scale, enable_gqa=True
    )
