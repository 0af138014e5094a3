"""Attention kernels beside PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import tvm_ffi

from tkc.builder import KernelBuilder
from tkc.kernels import KernelRequest, Target, TensorType
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.attention.spec import AttentionDecode, AttentionPrefill

PREFILL, DECODE = AttentionPrefill(), AttentionDecode()
CPU, HOPPER = Target.parse("cpu"), Target.parse("cuda:sm_90a")
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
GUARD = 1024  # elements before and after each tensor, which no kernel may use or change


def parameters(
    heads: tuple[int, int] = (4, 2), size: tuple[int, int] = (64, 64), **options: object
) -> AttentionParameters:
    """Parameters with the usual scale; ``heads`` are the queries' and the keys', ``size`` the keys' and the values'."""
    return AttentionParameters(*heads, *size, **({"dtype": "float32", "scale": size[0] ** -0.5} | options))


def request(
    spec: AttentionPrefill | AttentionDecode, p: AttentionParameters, target: Target, index: int = 0
) -> KernelRequest:
    """The kernel in the configuration of that index."""
    assert spec.unsupported(p, target) is None
    return KernelRequest(spec.name, p, spec.configurations(p, target)[index], target)


def guarded(tensor: TensorType, sizes: Mapping[str, int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor inside a larger one that is all NaN (all true for ``bool``), and the larger one."""
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
    count = torch.Size(shape).numel()
    fill = True if tensor.dtype == "bool" else torch.nan
    whole = torch.full((count + 2 * GUARD,), fill, dtype=getattr(torch, tensor.dtype), device=device)
    return whole[GUARD : GUARD + count].view(shape), whole


def random_inputs(request: KernelRequest, sizes: Mapping[str, int], device: str) -> list[torch.Tensor]:
    """Normal tensors, and a :func:`random_mask`."""
    generator = torch.Generator().manual_seed(sum(sizes.values()))
    tensors = []
    for declared in request.spec.inputs(request.parameters):
        tensor, _ = guarded(declared, sizes, device)
        if declared.name == "mask":
            tensor.copy_(random_mask(tensor, generator))
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        tensors.append(tensor)
    return tensors


def random_mask(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half the keys hidden; but one row of four sees nothing, and to one all keys are equal.

    A mask that is one for all queries changes nothing of some tiles of keys, as those of padded sequences.
    """
    shown = torch.rand(like.shape, generator=generator) < 0.5
    row = torch.arange(like[..., 0].numel()).view(*like.shape[:-1], 1)
    key = torch.arange(like.shape[-1])
    unchanged = (key >= 128) & (key < 384) & torch.tensor(like.shape[-2] == 1)
    if like.dtype == torch.bool:
        return ((shown | unchanged) & (row % 4 != 1)) | (row % 4 == 2)
    mask = torch.randn(like.shape, generator=generator).masked_fill(~shown, -torch.inf)
    mask = mask.masked_fill(unchanged, 0.0).masked_fill(row % 4 == 1, -torch.inf)
    return mask.masked_fill(row % 4 == 2, torch.finfo(like.dtype).min)


def check(builder: KernelBuilder, request: KernelRequest, sizes: Mapping[str, int]) -> None:
    """Build the kernel, run it at these sizes, compare with its reference, and look for writes outside its tensors."""
    library = builder.build([request])[request]
    device = "cuda" if request.target.is_cuda else "cpu"
    spec, p = request.spec, request.parameters
    inputs = random_inputs(request, sizes, device)
    written = [guarded(t, sizes, device) for t in (*spec.outputs(p), *spec.workspaces(p, request.configuration))]
    tvm_ffi.load_module(str(library.path))[request.symbol](*inputs, *(tensor for tensor, _ in written))
    (expected,) = spec.reference(p, *inputs)
    tolerance = TOLERANCE[p.dtype]
    torch.testing.assert_close(written[0][0], expected, atol=tolerance, rtol=tolerance)
    for _, whole in written:
        assert whole[:GUARD].isnan().all() and whole[-GUARD:].isnan().all()
