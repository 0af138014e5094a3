"""Products of dequantized FP8 are found however that is written, and only where the kernel computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.passes.reference_execution import checked_substitutions, imported, refusal_reasons, substituted
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.passes.rules.matmul import MATMUL
from tkc.passes.rules.quantized_swiglu import QUANTIZED_SWIGLU
from tkc.passes.rules.scaled_matmul import SCALED_MATMUL
from tkc.passes.rules.table import RULES

FP8 = torch.float8_e4m3fn
M, N, K = 4, 256, 384
RAGGED_N, RAGGED_K = 200, 304

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def numbers(*shape: int) -> Tensor:
    """FP8 numbers, the same each time; none is subnormal, because TVM's own casts of the yardstick get those wrong."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    return (values.sign() * values.abs().clamp(min=2**-6)).to(FP8)


def scales(*shape: int) -> Tensor:
    """Scales that differ, the same each time."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5)) + 0.5


def blocks(size: int) -> int:
    """How many blocks of 128 there are."""
    return -(-size // 128)


def operands(n: int = N, k: int = K, rows: tuple[int, ...] = (M,)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Activations, their scales, weight, its scales."""
    return numbers(*rows, k), scales(*rows, blocks(k)), numbers(n, k), scales(blocks(n), blocks(k))


def row_groups(a: Tensor, scale: Tensor) -> Tensor:
    """Groups of 128 channels as an axis."""
    return (a.float().unflatten(-1, (-1, 128)) * scale[..., None]).flatten(-2)


def weight_blocks(w: Tensor, scale: Tensor) -> Tensor:
    """Blocks as axes."""
    n, k = w.shape
    return (w.float().view(n // 128, 128, k // 128, 128) * scale[:, None, :, None]).view(n, k)


def repeated(w: Tensor, scale: Tensor) -> Tensor:
    """Scales repeated over each block, and cropped to the weight."""
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return w.float() * wide[: w.shape[0], : w.shape[1]]


def repeated_rows(a: Tensor, scale: Tensor) -> Tensor:
    """Scales repeated over each group, and cropped to the row."""
    return a.float() * scale.repeat_interleave(128, -1)[..., : a.shape[-1]]


def padded_rows(a: Tensor, scale: Tensor) -> Tensor:
    """Rows padded to whole groups, and cropped afterwards."""
    return row_groups(F.pad(a.float(), (0, -a.shape[-1] % 128)), scale)[..., : a.shape[-1]]


def padded_blocks(w: Tensor, scale: Tensor) -> Tensor:
    """The weight padded to whole blocks, and cropped afterwards."""
    n, k = w.shape
    return weight_blocks(F.pad(w.float(), (0, -k % 128, 0, -n % 128)), scale)[:n, :k]


def kronecker(w: Tensor, scale: Tensor) -> Tensor:
    """Scales times blocks of ones."""
    return torch.kron(scale, torch.ones(128, 128)) * w.float()


def gathered(w: Tensor, scale: Tensor) -> Tensor:
    """Each element's scale looked up by its position."""
    row, column = torch.arange(w.shape[0]) // 128, torch.arange(w.shape[1]) // 128
    return w.float() * scale[row][:, column]


def expanded(w: Tensor, scale: Tensor) -> Tensor:
    """Scales broadcast over axes of 128."""
    n, k = w.shape
    return w.float() * scale[:, None, :, None].expand(-1, 128, -1, 128).reshape(n, k)


@dataclass(frozen=True)
class Form:
    """One way to write the product, and what its kernel's parameters are."""

    function: Function
    n: int = N
    k: int = K
    rows: tuple[int, ...] = (M,)
    out_dtype: str = "float32"


FORMS = {
    "groups and blocks as axes": Form(lambda a, s, w, t: row_groups(a, s) @ weight_blocks(w, t).T),
    "repeated scales": Form(lambda a, s, w, t: F.linear(repeated_rows(a, s), repeated(w, t))),
    "cropped scales": Form(lambda a, s, w, t: F.linear(repeated_rows(a, s), repeated(w, t)), RAGGED_N, RAGGED_K),
    "cropped blocks": Form(lambda a, s, w, t: padded_rows(a, s) @ padded_blocks(w, t).T, RAGGED_N, RAGGED_K),
    "kronecker product": Form(lambda a, s, w, t: row_groups(a, s) @ kronecker(w, t).mT),
    "scales by position": Form(lambda a, s, w, t: row_groups(a, s) @ gathered(w, t).T),
    "expanded scales": Form(lambda a, s, w, t: F.linear(row_groups(a, s), expanded(w, t))),
    "batch and sequence": Form(lambda a, s, w, t: F.linear(row_groups(a, s), repeated(w, t)), rows=(M, 3)),
    "flattened rows": Form(
        lambda a, s, w, t: (row_groups(a, s).flatten(0, 1) @ weight_blocks(w, t).T).view(-1, 3, N), rows=(M, 3)
    ),
    "scales first": Form(lambda a, s, w, t: F.linear(s.repeat_interleave(128, 1) * a.float(), repeated(w, t))),
    "one group": Form(lambda a, s, w, t: F.linear(a.float() * s, repeated(w, t)), N, 96),
    "bfloat16": Form(
        lambda a, s, w, t: F.linear(row_groups(a, s).bfloat16(), repeated(w, t).bfloat16()), out_dtype="bfloat16"
    ),
    "widened to bfloat16": Form(
        lambda a, s, w, t: F.linear(
            a.bfloat16() * s.bfloat16().repeat_interleave(128, 1),
            w.bfloat16() * t.bfloat16().repeat_interleave(128, 0).repeat_interleave(128, 1),
        ),
        out_dtype="bfloat16",
    ),
    "cast at the end": Form(
        lambda a, s, w, t: F.linear(row_groups(a, s), repeated(w, t)).to(torch.float16), out_dtype="float16"
    ),
    "a part of longer rows": Form(lambda a, s, w, t: F.linear(row_groups(a.repeat(1, 2)[:, :K], s), repeated(w, t))),
    "scales that are computed": Form(lambda a, s, w, t: F.linear(row_groups(a, 2 * s.flip(0)), repeated(w, t))),
    "scales that are transposed": Form(
        lambda a, s, w, t: F.linear(row_groups(a, s.view(3, -1).T), weight_blocks(w, t.view(3, 2).T))
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms(form: Form) -> None:
    """One kernel call over the FP8 numbers and the scales, with the same result."""
    inputs = operands(form.n, form.k, form.rows)
    module = imported(form.function, *inputs, symbolic=())
    rtol = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 0.1}[form.out_dtype]  # TVM sums bfloat16 in bfloat16
    (call,) = checked_substitutions(module, *inputs, rules=(SCALED_MATMUL, MATMUL), rtol=rtol)
    assert (call.kernel, call.count) == ("matmul.scaled", 1)
    assert call.parameters == ScaledMatmulParameters(form.n, form.k, form.out_dtype)


@pytest.mark.parametrize(("rows", "dequantized"), [((M,), repeated_rows), ((M, 3), row_groups)])
def test_symbolic_rows(rows: tuple[int, ...], dequantized: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The number of rows may be known only at the call."""
    inputs = operands(rows=rows)
    module = imported(lambda a, s, w, t: F.linear(dequantized(a, s), repeated(w, t)), *inputs, symbolic=(0, 1))
    (call,) = checked_substitutions(module, *inputs, rules=(SCALED_MATMUL,))
    assert call.parameters == ScaledMatmulParameters(N, K, "float32")


def test_exponents_as_scales() -> None:
    """Scales may be stored as bare exponents."""
    a, s, w, t = operands()
    s, t = (scale.to(torch.float8_e8m0fnu) for scale in (s, t))
    module = imported(
        lambda a, s, w, t: F.linear(row_groups(a, s.float()), repeated(w, t.float())), a, s, w, t, symbolic=()
    )
    (call,) = substituted(module, (SCALED_MATMUL,))[1].substitutions
    assert call.parameters == ScaledMatmulParameters(N, K, "float32")


def test_a_product_that_is_read_twice_keeps_its_dtype() -> None:
    """A cast of it does not become the kernel's."""
    inputs = operands()
    module = imported(
        lambda a, s, w, t: ((y := F.linear(row_groups(a, s), repeated(w, t))), y.half()), *inputs, symbolic=()
    )
    (call,) = checked_substitutions(module, *inputs, rules=(SCALED_MATMUL,), rtol=1e-3)
    assert (call.parameters, call.count) == (ScaledMatmulParameters(N, K, "float32"), 1)


def test_quantized_swiglu_feeds_the_product() -> None:
    """Between the two kernels there is nothing but the FP8 numbers and their scales."""

    def expert(gate: Tensor, up: Tensor, w: Tensor, t: Tensor) -> Tensor:
        groups = (F.silu(gate) * up).unflatten(-1, (-1, 128))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        quantized = (groups / scale).clamp(-448.0, 448.0).to(FP8)
        return F.linear((quantized.float() * scale).flatten(-2), repeated(w, t))

    gate, up = (torch.randn(M, K, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    _, _, w, t = operands()
    module = imported(expert, gate, up, w, t, symbolic=(0, 1))
    calls = checked_substitutions(module, gate, up, w, t, rules=(QUANTIZED_SWIGLU, SCALED_MATMUL, MATMUL), rtol=1e-2)
    assert [call.parameters for call in calls] == [
        SwiGLUParameters(K, "float32", scale="group"),
        ScaledMatmulParameters(N, K, "float32"),
    ]


def test_comes_before_the_ordinary_product() -> None:
    """In the table of rules, because that one takes any floating-point operands."""
    assert RULES.index(QUANTIZED_SWIGLU) < RULES.index(SCALED_MATMUL) < RULES.index(MATMUL)


@dataclass(frozen=True)
class NearMiss:
    """A product that the kernel does not compute, its inputs, and a part of the reason."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    reason: str


A, S, W, T = operands()
SQUARE = operands(N, N)
FIRST, SECOND = "first operand is not", "second operand is not"
REFUSED = {
    "groups of 64": NearMiss(
        lambda a, s, w, t: F.linear((a.float().unflatten(-1, (-1, 64)) * s[..., None]).flatten(-2), repeated(w, t)),
        (A, scales(M, K // 64), W, T),
        FIRST,
    ),
    "a scale for a row": NearMiss(
        lambda a, s, w, t: F.linear(a.float() * s, repeated(w, t)), (A, scales(M, 1), W, T), FIRST
    ),
    "no scales": NearMiss(lambda a, w, t: F.linear(a.float(), repeated(w, t)), (A, W, T), FIRST),
    "two scales": NearMiss(
        lambda a, s, w, t: F.linear(row_groups(a, s) * s.repeat_interleave(128, 1), repeated(w, t)), (A, S, W, T), FIRST
    ),
    "a factor more": NearMiss(lambda a, s, w, t: F.linear(row_groups(a, s) * 0.5, repeated(w, t)), (A, S, W, T), FIRST),
    "scales divided by": NearMiss(
        lambda a, s, w, t: F.linear(a.float() / s.repeat_interleave(128, 1), repeated(w, t)), (A, S, W, T), FIRST
    ),
    "scales of interleaved channels": NearMiss(
        lambda a, s, w, t: F.linear(a.float() * s.repeat(1, 128), repeated(w, t)), (A, S, W, T), FIRST
    ),
    "padded in front": NearMiss(
        lambda a, s, w, t: F.linear(row_groups(F.pad(a.float(), (80, 0)), s)[:, 80:], repeated(w, t)),
        operands(N, RAGGED_K),
        FIRST,
    ),
    "scales along the tokens": NearMiss(
        lambda a, s, w, t: F.linear(a.float() * s.repeat_interleave(128, 0), repeated(w, t)),
        (numbers(256, K), scales(2, K), W, T),
        FIRST,
    ),
    "a scale for a row of the weight": NearMiss(
        lambda a, s, w, t: F.linear(row_groups(a, s), w.float() * t), (A, S, W, scales(N, 1)), SECOND
    ),
    "scales for groups of the weight's rows": NearMiss(
        lambda a, s, w, t: F.linear(row_groups(a, s), row_groups(w, t)), (A, S, W, scales(N, 3)), SECOND
    ),
    "blocks of 64 rows": NearMiss(
        lambda a, s, w, t: F.linear(row_groups(a, s), w.float() * t.repeat_interleave(64, 0).repeat_interleave(128, 1)),
        (A, S, W, scales(4, 3)),
        SECOND,
    ),
    "the weight not transposed": NearMiss(lambda a, s, w, t: row_groups(a, s) @ repeated(w, t), SQUARE, SECOND),
    "a weight for each batch": NearMiss(
        lambda a, s, w, t: row_groups(a, s) @ row_groups(w, t).mT,
        (numbers(2, M, K), scales(2, M, 3), numbers(2, N, K), scales(2, N, 3)),
        SECOND,
    ),
    "a vector": NearMiss(
        lambda a, s, w, t: repeated(w, t) @ (a.float() * s.repeat_interleave(128)),
        (numbers(K), scales(3), W, T),
        "a vector",
    ),
    "activations that were never FP8": NearMiss(
        lambda a, w, t: F.linear(a, repeated(w, t)), (torch.ones(M, K), W, T), "only one operand is float8_e4m3fn"
    ),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_near_misses(case: NearMiss) -> None:
    """Nothing is replaced, and the report says what is missing."""
    module = imported(case.function, *case.inputs, symbolic=())
    (reason,) = refusal_reasons(module, (SCALED_MATMUL,))
    assert case.reason in reason


def test_other_formats_are_not_near() -> None:
    """Products of e5m2, or of no FP8 at all, are nothing for the report."""
    inputs = (A.float().to(torch.float8_e5m2), S, W.float().to(torch.float8_e5m2), T)
    for tensors in (inputs, (A.float(), S, W.float(), T)):
        module = imported(lambda a, s, w, t: F.linear(row_groups(a, s), repeated(w, t)), *tensors, symbolic=())
        assert refusal_reasons(module, (SCALED_MATMUL,)) == []


def test_weight_of_unknown_size() -> None:
    """The kernel is built for its weight's sizes."""
    inputs = (A, S, numbers(M, K), S)
    module = imported(lambda a, s, w, t: F.linear(row_groups(a, s), row_groups(w, t)), *inputs, symbolic=(0, 1, 2, 3))
    (reason,) = refusal_reasons(module, (SCALED_MATMUL,))
    assert "not constant" in reason
