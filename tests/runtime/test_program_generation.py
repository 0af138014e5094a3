"""``Program.generate``: the tokens of transformers' own loop over the same model in PyTorch."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import tkc

transformers = pytest.importorskip("transformers")
from transformers import StaticCache  # noqa: E402
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache  # noqa: E402

LENGTH = 24


class Decoder(nn.Module):
    """A language model with a static cache in its buffers, and a mask of the cache's whole length."""

    def __init__(self, model: Any, batch: int) -> None:
        super().__init__()
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        heads, size = model.config.num_key_value_heads, model.config.head_dim
        self.cache.early_initialization(batch, heads, size, model.dtype, model.device)
        for i, layer in enumerate(self.cache.layers):
            self.register_buffer(f"keys_{i}", layer.keys, persistent=False)
            self.register_buffer(f"values_{i}", layer.values, persistent=False)
            self.register_buffer(f"length_{i}", layer.cumulative_length, persistent=False)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        """Logits ``[batch, 1, vocabulary]`` of the last of ``input_ids [batch, tokens]``."""
        return self.model(  # type: ignore[no-any-return]  # transformers'
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            logits_to_keep=1,
        ).logits


@pytest.fixture(scope="module")
def model() -> Any:
    """Of one layer."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _compiled(model: Any, device: str = "cpu") -> tkc.Program:
    """Two sequences, padded."""

    def inputs(tokens: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(2, tokens, dtype=torch.int64, device=device)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones(2, LENGTH, dtype=torch.int64, device=device),
            "position_ids": ids.clone(),
        }

    tokens = Dim("tokens", min=2, max=16)
    shapes = {"input_ids": {1: tokens}, "attention_mask": None, "position_ids": {1: tokens}}
    return tkc.compile(
        Decoder(model, 2),
        entries={
            "prefill": tkc.Entry(example_kwargs=inputs(5), dynamic_shapes=shapes),
            "decode": tkc.Entry(example_kwargs=inputs(1)),
        },
        target=device,
        kernels="none",
        database=False,
    )


@pytest.fixture(scope="module")
def artifact(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, saved."""
    return _compiled(model).save(tmp_path_factory.mktemp("generation") / "llm.tkc")


@pytest.fixture(scope="module")
def program(artifact: Path) -> tkc.Program:
    """As it is served."""
    loaded = tkc.load(artifact)
    assert isinstance(loaded, tkc.Program)
    return loaded


@pytest.fixture(scope="module")
def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Seven tokens and four, with their mask."""
    torch.manual_seed(1)
    ids = torch.randint(1, 64, (2, 7))
    mask = torch.ones_like(ids)
    ids[1, :3] = mask[1, :3] = 0
    return ids, mask


SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": 30, "top_p": 0.9}


@pytest.mark.daily(1)
@pytest.mark.parametrize("options", [{}, SAMPLED, {"do_sample": True, "top_k": 0}], ids=["greedy", "warped", "sampled"])
def test_tokens_are_those_of_transformers(
    model: Any, program: tkc.Program, prompts: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]
) -> None:
    """Padded on the left, in float32, by the same random numbers; twice, since the cache begins anew."""
    ids, mask = prompts
    torch.manual_seed(7)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=9, **{"do_sample": False, **options})
    for _ in range(2):
        torch.manual_seed(7)
        assert torch.equal(program.generate(ids, 9, attention_mask=mask, **options), expected)
    if options:
        seeded = [program.generate(ids, 9, attention_mask=mask, **options, seed=seed) for seed in (3, 3, 4)]
        assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])
        drawn = program.generate(ids, 9, attention_mask=mask, **options, generator=torch.Generator().manual_seed(3))
        assert torch.equal(drawn, seeded[0])


def test_ends_streams_and_processors_of_transformers(
    model: Any, program: tkc.Program, prompts: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """A sequence that ends is padded while the other goes on, and nothing is computed after both ended."""
    ids, mask = prompts
    first = program.generate(ids, 9, attention_mask=mask)
    eos = int(first[0, 9])
    options: dict[str, Any] = {"attention_mask": mask, "eos_token_id": eos, "pad_token_id": 0}
    processors = transformers.LogitsProcessorList([transformers.RepetitionPenaltyLogitsProcessor(1.5)])
    for given in ({}, {"logits_processor": processors}):
        expected = model.generate(ids, max_new_tokens=9, do_sample=False, **options, **given)
        steps: list[torch.Tensor] = []
        found = program.generate(ids, 9, stream=steps.append, **options, **given)
        assert torch.equal(found, expected)
        assert torch.equal(torch.stack(steps, 1), found[:, 7:])
    assert torch.equal(program.generate(ids, 9, **options)[0, 10:], torch.zeros(len(expected[0, 10:]), dtype=int))
    short = transformers.StoppingCriteriaList([transformers.MaxLengthCriteria(9)])
    stopped = program.generate(ids, 9, attention_mask=mask, stopping_criteria=short, pad_token_id=0)
    assert torch.equal(stopped, first[:, :9])
    alone = program.generate(ids[[0, 0]], 9, eos_token_id=[eos, 63])
    assert alone.shape[1] < 16 and int(alone[0, -1]) in (eos, 63)


def test_streamers_of_transformers(program: tkc.Program, prompts: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Are told the prompts, each step, and the end."""

    class Streamer(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc, name-defined]  # has no types
        """Notes what it is told."""

        told: list[Any] = []  # noqa: RUF012  # of this test alone

        def put(self, value: torch.Tensor) -> None:
            """Note the shape."""
            self.told.append(tuple(value.shape))

        def end(self) -> None:
            """Note it."""
            self.told.append("end")

    ids, mask = prompts
    program.generate(ids, 2, attention_mask=mask, stream=Streamer())
    assert Streamer.told == [(2, 7), (2,), (2,), "end"]


@pytest.mark.parametrize(("tokens", "new"), [(1, 4), (2, 1), (16, LENGTH - 15), (7, 0)])
def test_lengths_at_their_bounds(model: Any, program: tkc.Program, tokens: int, new: int) -> None:
    """A prompt of one token, which prefill does not take; the longest one, up to the cache's last place; none new."""
    ids = torch.randint(1, 64, (2, tokens))
    expected = model.generate(ids, max_new_tokens=new, do_sample=False) if new else ids
    assert torch.equal(program.generate(ids, new), expected)


def test_what_does_not_fit_is_refused(program: tkc.Program, prompts: tuple[torch.Tensor, torch.Tensor]) -> None:
    """By name, with the sizes and what would do; and the next generation is none the worse."""
    ids, mask = prompts
    right = mask.flip(1)
    for error, message, tokens, new, options in (
        (tkc.InputError, "room for 24 tokens, and 7 of the prompt with 19 new ones need 25: .*=18 or", ids, 19, {}),
        (
            tkc.InputError,
            "prompt has 17 tokens, and prefill was compiled for at most 16",
            torch.ones(2, 17).long(),
            1,
            {},
        ),
        (tkc.InputError, r"expected int64 \[batch, tokens\]", ids[0], 1, {}),
        (tkc.InputError, r"expected int64 \[batch, tokens\]", ids.float(), 1, {}),
        (tkc.InputError, r"expected int64 \[batch, tokens\]", ids[:, :0], 1, {}),
        (tkc.InputError, "axis 0 of input 'input_ids' is 1, expected 2", ids[:1], 1, {}),
        (tkc.InputError, "pad on the left", ids, 1, {"attention_mask": right}),
        (tkc.InputError, "pad on the left", ids, 1, {"attention_mask": mask * 0}),
        (tkc.InputError, r"attention_mask is \[2, 6\]", ids, 1, {"attention_mask": mask[:, 1:]}),
        (tkc.UsageError, "max_new_tokens=-1", ids, -1, {}),
        (tkc.UsageError, "max_new_tokens=True", ids, True, {}),
        (tkc.UsageError, "temperature is for sampling: give do_sample=True", ids, 1, {"temperature": 0.5}),
        (tkc.UsageError, "seed is for sampling", ids, 1, {"seed": 0}),
        (tkc.UsageError, "sampling options mean nothing", ids, 1, {"do_sample": True, "temperature": -1.0}),
        (tkc.UsageError, "sampling options mean nothing", ids, 1, {"do_sample": True, "top_p": 2.0}),
        (tkc.UsageError, "contradict", ids, 1, {"do_sample": True, "seed": 1, "generator": torch.Generator()}),
        (tkc.UsageError, "give the pad_token_id", ids, 1, {"stopping_criteria": [lambda tokens, scores: True]}),
    ):
        with pytest.raises(error, match=message):
            program.generate(tokens, new, **options)
    with pytest.raises(tkc.InputError, match="holds the index 64"):
        program.generate(torch.full((2, 2), 64), 1)
    assert program.generate(ids, 1, attention_mask=mask).shape == (2, 8)


@pytest.mark.daily(2)
def test_a_loaded_program_needs_no_transformers(artifact: Path) -> None:
    """Greedy, and sampled without warpers; of these it is said what is missing."""
    code = f"""
import sys
sys.modules["transformers"] = None
import torch, tkc
program = tkc.load({str(artifact)!r})
ids = torch.ones(2, 3, dtype=torch.int64)
print(program.generate(ids, 3).shape, program.generate(ids, 3, do_sample=True, seed=0).shape)
try:
    program.generate(ids, 3, do_sample=True, top_k=3)
except tkc.UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "torch.Size([2, 6]) torch.Size([2, 6])",
        "temperature, top_k and top_p are transformers' own: pip install transformers, or give a logits_processor",
    ]


@pytest.mark.daily(3)
def test_a_cache_by_position(model: Any, prompts: tuple[torch.Tensor, torch.Tensor]) -> None:
    """As transformers wraps models for export, without a mask: prompts of one length, as long as the cache."""
    own = copy.deepcopy(model)
    own.generation_config.cache_implementation = "static"
    step = TorchExportableModuleWithStaticCache(own, batch_size=1, max_cache_len=LENGTH)
    tokens = Dim("tokens", min=2, max=LENGTH)

    def inputs(count: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(1, count, dtype=torch.int64), "cache_position": torch.arange(count)}

    shapes = {"input_ids": {1: tokens}, "cache_position": {0: tokens}}
    program = tkc.compile(
        step,
        entries={
            "prefill": tkc.Entry(example_kwargs=inputs(5), dynamic_shapes=shapes),
            "decode": tkc.Entry(example_kwargs=inputs(1)),
        },
        kernels="none",
        database=False,
    )
    ids, mask = prompts
    expected = model.generate(ids[:1], max_new_tokens=18, do_sample=False)
    assert torch.equal(program.generate(ids[:1], 18), expected)
    with pytest.raises(tkc.InputError, match=r"the cache has room for 24 tokens, .* max_new_tokens=18 or fewer"):
        program.generate(ids[:1], 19)
    with pytest.raises(tkc.UsageError, match="the entries prefill and decode take no attention_mask"):
        program.generate(ids[1:], 1, attention_mask=mask[1:])


class Counts(nn.Module):
    """No cache: the next token follows from the last one, and from how many the mask has."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits ``[batch, 11]``, after a result that is none."""
        following = (attention_mask.sum(1) + input_ids[:, -1]) % 11
        return {"following": following, "logits": nn.functional.one_hot(following, 11).to(torch.bfloat16)}


@pytest.mark.daily(3)
def test_masks_of_the_tokens_so_far() -> None:
    """Of a symbolic length, of truth values; any batch; logits by their name, in bfloat16; no state."""
    batch, tokens, length = Dim("batch"), Dim("tokens", min=2, max=64), Dim("length", min=2, max=8)

    def inputs(count: int, room: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.zeros(3, count, dtype=torch.int64),
            "attention_mask": torch.ones(3, room, dtype=torch.bool),
        }

    program = tkc.compile(
        Counts(),
        entries={
            "prefill": tkc.Entry(
                example_kwargs=inputs(4, 4),
                dynamic_shapes={"input_ids": {0: batch, 1: tokens}, "attention_mask": {0: batch, 1: tokens}},
            ),
            "decode": tkc.Entry(
                example_kwargs=inputs(1, 4),
                dynamic_shapes={"input_ids": {0: batch}, "attention_mask": {0: batch, 1: length}},
            ),
        },
        kernels="none",
        database=False,
    )
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    expected = torch.tensor([[0, 4, 5], [7, 8, 9]])
    for step in range(3):
        following = (mask.sum(1) + step + expected[:, -1]) % 11
        expected = torch.cat([expected, following[:, None]], 1)
    assert torch.equal(program.generate(expected[:, :3], 3, attention_mask=mask), expected)
    assert program.generate(expected[:1, :3], 6).shape == (1, 9)
    with pytest.raises(
        tkc.InputError, match="the attention_mask has room for 8 tokens, and 3 of the prompt with 7 new"
    ):
        program.generate(expected[:, :3], 7)


class Tokens(nn.Module):
    """Logits of other names and kinds."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[batch, tokens]``."""
        return tokens * 2


class Ids(nn.Module):
    """No logits."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[batch, tokens]``."""
        return input_ids * 2


def test_entries_that_cannot_generate_are_named() -> None:
    """None of the name, inputs that the loop does not have, results that are no logits."""
    ids = torch.ones(1, 1, dtype=torch.int64)
    for modules, message in (
        (
            {"prefill": Ids()},
            "generate needs the entries prefill and decode, and decode is not there; this program has",
        ),
        ({"prefill": Ids(), "decode": Tokens()}, "decode takes tokens"),
        (
            {"prefill": Ids(), "decode": Ids()},
            r"return logits \[batch, tokens, vocabulary\], .*; found mul int64 \[1, 1\]",
        ),
    ):
        given = {name: tkc.Entry(model=module, example_args=(ids,)) for name, module in modules.items()}
        program = tkc.compile(entries=given, kernels="none", database=False)
        with pytest.raises(tkc.UsageError, match=message):
            program.generate(ids, 1)


@pytest.mark.gpu
def test_tokens_on_a_gpu(model: Any, prompts: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    """Entries that update one cache, whose steps are recorded as CUDA graphs; compiled and loaded."""
    on_gpu = copy.deepcopy(model).cuda()
    ids, mask = (each.cuda() for each in prompts)
    expected = on_gpu.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    program = _compiled(on_gpu, "cuda")
    for exe in (program, tkc.load(program.save(tmp_path / "llm.tkc"))):
        for _ in range(2):
            assert torch.equal(exe.generate(ids, 12, attention_mask=mask), expected)
