"""A row has the same bits whatever else is in its batch, and however much: whole models, on the CPU and on a GPU.

Every model is compiled once, with a symbolic batch, and called with one row among others. On a GPU this also checks
what ``tkc.kernels.matmul.sum_order`` relies on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tkc
from tkc.kernels import Target
from tkc.kernels.attention.spec import AttentionDecode, DecodeConfiguration
from tkc.kernels.matmul import spec as matmul_spec
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.records import KernelRecord, write_records
from tkc.schedules.database_folders import target_folder

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.timeout(300)

BATCHES = (1, 2, 3, 7, 33)
SEQUENCE = 19
FP8 = torch.float8_e4m3fn

Inputs = dict[str, Any]


class FeedForward(nn.Module):
    """What a token's values become by products, activations, normalization and reductions, of one element some."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down, self.score = nn.Linear(size, 2 * size), nn.Linear(2 * size, size), nn.Linear(size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [batch, size]``."""
        y = x + self.down(F.gelu(self.up(self.norm(x))))
        score = self.score(y).squeeze(-1)
        return y, y.float().log_softmax(-1), score.float().exp(), score.float().tanh(), y.float().std(-1), y.cumsum(-1)


class Attention(nn.Module):
    """Causal self-attention over a normalized input, with a residual."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(size)
        self.queries, self.keys, self.values, self.out = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [batch, sequence, size]``."""
        y = self.norm(x)
        q, k, v = (
            projection(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (x + self.out(y.transpose(1, 2).flatten(-2)),)


class Decode(nn.Module):
    """One query a sequence over the keys and values of a cache, and the products around it."""

    def __init__(self, size: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, heads // kv_heads
        self.queries, self.out = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """``x [batch, size]``, ``keys`` and ``values [batch, kv_heads, length, head_size]``."""
        q = self.queries(x).unflatten(-1, (self.heads, 1, -1))
        y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=self.groups > 1)
        return (self.out(y.flatten(1)),)


class ScaledLinear(nn.Module):
    """A linear layer that rounds its input to FP8 by groups of 128, and has its weight so, by blocks of 128 x 128."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs) * inputs**-0.5
        blocks = weight.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = blocks.abs().amax((1, 3)) / 448.0
        self.register_buffer("weight", (blocks / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1).to(FP8))
        self.register_buffer("weight_scale", scale)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [tokens, inputs]`` to ``[tokens, outputs]``."""
        groups = x.float().unflatten(-1, (-1, 128))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        rounded = (groups / scale).clamp(-448.0, 448.0).to(FP8)
        wide = self.weight_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        out = F.linear((rounded.float() * scale).flatten(-2), self.weight.float() * wide)
        return (out.to(torch.bfloat16),)


@dataclass(frozen=True)
class Case:
    """A model, and inputs whose first axis is the batch: ``inputs(batch, seed)``."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Random numbers of sizes that differ, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-3, 3, shape, generator=generator))


def tokens(batch: int, seed: int) -> Inputs:
    """Of a language model, ``[batch, SEQUENCE]``."""
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(0, 64, (batch, SEQUENCE), generator=generator)}


def transformer(name: str, **options: Any) -> nn.Module:
    """A language model of ``transformers`` with random weights, whose logits are returned."""
    common = {"vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = getattr(transformers, f"{name}Config")(**common, **options)
    return getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="sdpa")


def language_model(name: str, **options: Any) -> Case:
    """Its prefill."""
    return Case(lambda: transformer(name, **options), tokens, {"use_cache": False})


def decoding(size: int, heads: int, kv_heads: int, length: int) -> Case:
    """A decode step over caches of ``length``."""

    def inputs(batch: int, seed: int) -> Inputs:
        cache = (batch, kv_heads, length, size // heads)
        shapes = {"x": (batch, size), "keys": cache, "values": cache}
        return {name: normal(shape, seed + place) for place, (name, shape) in enumerate(shapes.items())}

    return Case(lambda: Decode(size, heads, kv_heads), inputs)


def of_rows(build: Callable[[], nn.Module], *shape: int) -> Case:
    """A model of one input ``x [batch, *shape]``."""
    return Case(build, lambda batch, seed: {"x": normal((batch, *shape), seed)})


SMALL = {"hidden_size": 32, "intermediate_size": 48}
ON_CPU = {
    "feed-forward": of_rows(lambda: FeedForward(48), 48),
    "attention": of_rows(lambda: Attention(32, 4), SEQUENCE, 32),
    "decode": decoding(64, 4, 2, 150),
    "Llama": language_model("Llama", **SMALL),
    "Mixtral": language_model("Mixtral", **SMALL, num_local_experts=4, num_experts_per_tok=2),
    "Qwen3Moe": language_model(
        "Qwen3Moe", **SMALL, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16
    ),
}
# Both transformers have the same attention, whose kernels are built once.
LARGE = {"hidden_size": 512, "intermediate_size": 1024}
ON_GPU = {
    "feed-forward": of_rows(lambda: FeedForward(1024), 1024),
    "decode": decoding(1024, 8, 2, 3000),
    "FP8": of_rows(lambda: ScaledLinear(2048, 2048), 2048),
    "Llama": language_model("Llama", **LARGE),
    "Mixtral": language_model("Mixtral", **LARGE, num_local_experts=8, num_experts_per_tok=2),
}
GPU_BATCHES = (*BATCHES, 150)


def compiled(case: Case, *, batch_invariant: bool, target: str = "cpu", **options: Any) -> tkc.Executable:
    """The case's model with a symbolic batch; for a GPU in bfloat16."""
    torch.manual_seed(0)
    model, example = case.build().eval(), case.inputs(3, 0)
    if target != "cpu":
        device = "cuda" if target == "cuda" else "cpu"
        model = model.to(device) if isinstance(model, ScaledLinear) else model.to(device, torch.bfloat16)
        example = on_gpu(example, device)
    batch = torch.export.Dim("batch", max=256)
    shapes = {**{name: {0: batch} for name in example}, **dict.fromkeys(case.constants)}
    return tkc.compile(
        model,
        (),
        {**example, **case.constants},
        target=target,
        dynamic_shapes=shapes,
        batch_invariant=batch_invariant,
        **options,
    )


def on_gpu(inputs: Inputs, device: str = "cuda") -> Inputs:
    """The same there, floats in bfloat16."""
    return {
        name: value.to(device, torch.bfloat16 if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }


def results(executable: tkc.Executable, case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    """What a call returns, as a tuple."""
    found = executable(**inputs, **case.constants)
    found = found if isinstance(found, tuple) else tuple(found.values())
    return tuple(each for each in found if torch.is_tensor(each))


def differing(
    executable: tkc.Executable,
    case: Case,
    batches: tuple[int, ...] = BATCHES,
    moved: Callable[[Inputs], Inputs] = lambda inputs: inputs,
) -> Iterator[str]:
    """Where the row has other bits than alone: first, in the middle and last among other rows of each batch."""
    row = case.inputs(1, 0)
    alone = results(executable, case, moved(row))
    for batch in batches:
        for place in sorted({0, batch // 2, batch - 1}):
            inputs = case.inputs(batch, 100 + batch)
            for name, values in row.items():
                inputs[name][place] = values[0]
            for number, (found, expected) in enumerate(
                zip(results(executable, case, moved(inputs)), alone, strict=True)
            ):
                if not torch.equal(found[place], expected[0]):
                    yield f"result {number} of row {place} in a batch of {batch}"


@pytest.mark.daily(6)
@pytest.mark.parametrize("kernels", ["all", "none"])
@pytest.mark.parametrize("name", ON_CPU)
def test_a_row_has_its_bits_in_every_batch(name: str, kernels: str) -> None:
    """By kernels and by generated code."""
    case = ON_CPU[name]
    executable = compiled(case, batch_invariant=True, kernels=kernels)
    assert executable.report.batch_invariant
    assert list(differing(executable, case)) == []


def recorded(parameters: MatmulParameters, configurations: Mapping[int, Tiling], database: Path) -> None:
    """Write records of ``configurations``, by the rows at which each was the fastest."""
    target = Target.parse("cpu")
    records = [
        KernelRecord(
            kernel="matmul",
            parameters=dataclasses.asdict(parameters),
            configuration=dataclasses.asdict(configuration),
            target=str(target),
            sizes={"m": rows},
            milliseconds=1.0,
            device="CPU",
            versions={},
            time="2026-01-01T00:00:00+00:00",
        )
        for rows, configuration in configurations.items()
    ]
    write_records(target_folder(database, target), records)


def test_configurations_by_size_change_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a product whose sums have 16 lanes and 2: without the option a row differs from batch to batch."""
    tilings = (Tiling(4, 4, 16, stages=1, threads=1), Tiling(4, 4, 2, stages=1, threads=1))
    monkeypatch.setattr(matmul_spec, "cpu_tilings", lambda *_: tilings)
    recorded(MatmulParameters(64, 128, "float32", bias=True), dict(zip((1, 64), tilings, strict=True)), tmp_path)
    case = Case(lambda: nn.Sequential(nn.Linear(128, 64)), lambda batch, seed: {"input": normal((batch, 128), seed)})
    options = {"kernels": "all", "database": tmp_path}
    changing = compiled(case, batch_invariant=False, **options)
    assert len(changing.libraries) == 2 and not changing.report.batch_invariant
    assert any(tensor_differs(changing, batch) for batch in BATCHES)
    invariant = compiled(case, batch_invariant=True, **options)
    assert len(invariant.libraries) == 1
    assert not any(tensor_differs(invariant, batch) for batch in BATCHES)
    loaded = tkc.load(invariant.save(tmp_path / "linear.tkc"))
    assert loaded.report.batch_invariant and "batch_invariant=True" in str(loaded.report)


def tensor_differs(executable: tkc.Executable, batch: int) -> bool:
    """Whether the first row of a ``batch`` has other bits than alone."""
    x = normal((batch, 128), 7)
    return not torch.equal(executable(input=x)[:1], executable(input=x[:1]))


def test_a_kernel_that_cannot_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding whose splits the batch decides falls to generated code, and the report says why."""
    monkeypatch.setattr(AttentionDecode, "configurations", lambda *_: (DecodeConfiguration(64, 16, 128),))
    found = {}
    for batch_invariant in (False, True):
        found[batch_invariant] = explained(batch_invariant)
    assert "attention.decode" in {use.kernel for use in found[False].uses}
    assert "attention.decode" not in {use.kernel for use in found[True].uses}
    assert any("depends on the batch" in refused.reason for refused in found[True].refused)


def explained(batch_invariant: bool) -> Any:
    """The report of the decode step for Hopper, where nothing is built."""
    case = ON_GPU["decode"]
    torch.manual_seed(0)
    example = on_gpu(case.inputs(3, 0), "cpu")
    shapes = {name: {0: torch.export.Dim("batch", max=256)} for name in example}
    return tkc.explain(
        case.build().to(torch.bfloat16).eval(),
        (),
        example,
        target="cuda:sm_90a",
        kernels="all",
        dynamic_shapes=shapes,
        batch_invariant=batch_invariant,
    )


def test_decoding_for_hopper_has_one_configuration() -> None:
    """That splits a sequence's keys by their number alone; without the option there are others."""
    for batch_invariant in (False, True):
        (use,) = (use for use in explained(batch_invariant).uses if use.kernel == "attention.decode")
        split_keys = [configuration["split_keys"] for configuration in use.configurations]
        assert (len(split_keys) == 1 and split_keys[0] > 0) if batch_invariant else not any(split_keys)


@cache
def on_this_gpu(name: str, batch_invariant: bool) -> tkc.Executable:
    """A case's executable, with kernels wherever there are some, by the records that come with tkc."""
    return compiled(ON_GPU[name], batch_invariant=batch_invariant, target="cuda", kernels="all")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_a_row_has_its_bits_in_every_batch_on_a_gpu(name: str) -> None:
    """Over sizes that have tiles of their own, and with the kernels of each family."""
    executable = on_this_gpu(name, batch_invariant=True)
    expected = {
        "feed-forward": {"matmul", "normalization"},
        "decode": {"matmul", "attention.decode"},
        "FP8": {"matmul.scaled"},
        "Llama": {"matmul", "matmul.gated", "attention.prefill", "normalization", "rotary"},
        "Mixtral": {"matmul", "matmul.grouped", "moe.topk_gate", "moe.permute", "normalization"},
    }
    assert expected[name] <= {use.kernel for use in executable.report.uses}
    assert list(differing(executable, ON_GPU[name], GPU_BATCHES, on_gpu)) == []


@pytest.mark.gpu
def test_without_it_rows_differ_on_a_gpu() -> None:
    """Or the tests above would show nothing."""
    assert list(differing(on_this_gpu("decode", batch_invariant=False), ON_GPU["decode"], GPU_BATCHES, on_gpu))
