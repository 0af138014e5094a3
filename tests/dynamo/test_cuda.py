"""``torch.compile(backend="tkc")`` on a GPU: devices, streams, CUDA graphs, training and generation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.dynamo.comparing import check_compiled, check_same
from tkc.dynamo.backend import tkc

pytestmark = pytest.mark.gpu


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 32)).cuda()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dynamic", [True, False])
def test_layers_of_several_sizes(dtype: torch.dtype, dynamic: bool) -> None:
    """Sizes 0 and 1, odd ones and large ones, called several times, so that CUDA graphs are recorded and replayed."""
    model = _layers().to(dtype).eval()
    compiled = torch.compile(model, backend=tkc, dynamic=dynamic)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    with torch.no_grad():
        for rows in (7, 1, 0, 333, 7, 333, 7, 333) if dynamic else (7, 7, 7, 7):
            x = torch.randn(rows, 64, device="cuda", dtype=dtype)
            check_same(model(x), compiled(x), tolerance)


def test_training_gives_the_same_weights() -> None:
    """Three steps of AdamW, forward and backward compiled."""
    model, data = _layers(), torch.randn(3, 17, 64, device="cuda")
    other = copy.deepcopy(model)
    for call, parameters in ((model, model), (torch.compile(other, backend=tkc), other)):
        optimizer = torch.optim.AdamW(parameters.parameters(), 1e-3)
        for batch in data:
            optimizer.zero_grad()
            call(batch).square().mean().backward()
            optimizer.step()
    check_same(list(model.parameters()), list(other.parameters()), 1e-4)


def test_functions_that_write_mix_and_view() -> None:
    """An input updated in place, a number from the CPU, a view of an input among the outputs, random draws."""

    def function(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        return x * scale, x.t(), torch.dropout(x, 0.5, train=False), x.sum(), torch.arange(5, device=x.device)

    check_compiled(function, torch.randn(5, 9, device="cuda"), torch.tensor(3.0))
    check_compiled(function, torch.randn(9, 5, device="cuda").t(), torch.tensor(3.0), dynamic=True)


def test_autocast() -> None:
    """Layers in float32 under autocast compute in bfloat16, and hand that back."""
    model, x = _layers().eval(), torch.randn(8, 64, device="cuda")
    compiled = torch.compile(model, backend=tkc)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        check_same(model(x), compiled(x), 4e-2)


def test_the_callers_stream_is_used() -> None:
    """What the stream holds before the call is done before the graph reads its inputs; also when it is replayed."""
    model = _layers().eval()
    compiled = torch.compile(model, backend=tkc, dynamic=False)
    x = torch.randn(256, 64, device="cuda")
    with torch.no_grad():
        expected = model(x)
        for _ in range(4):
            late = torch.zeros_like(x)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(20_000_000)
                late.copy_(x)
                found = compiled(late)
                torch.cuda.current_stream().synchronize()
            check_same(expected, found, 1e-4)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_replays_read_weights_where_they_are(grad: bool) -> None:
    """Changed in place, or replaced, or those of another copy of the model at the same code."""
    model = _layers().eval()
    compiled = torch.compile(model, backend=tkc, dynamic=False)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            for _ in range(4):
                x = torch.randn(16, 64, device="cuda")
                check_same(model(x), compiled(x), 1e-4)
            with torch.no_grad():
                model[0].weight.mul_(1.5)
            check_same(model(x), compiled(x), 1e-4)
            model[3].weight.data = torch.randn_like(model[3].weight)
            check_same(model(x), compiled(x), 1e-4)


def test_graphs_hold_no_copies_of_weights() -> None:
    """Nor are these copied in each call: their replays take the memory of activations alone."""
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).cuda().eval()
    compiled = torch.compile(model, backend=tkc, dynamic=False)
    x = torch.randn(4, 2048, device="cuda")
    with torch.no_grad():
        compiled(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(4):
            compiled(x)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < model[0].weight.nbytes


def test_results_outlive_later_calls() -> None:
    """Replays of one CUDA graph do not write into what an earlier call returned."""
    compiled = torch.compile(_layers().eval(), backend=tkc, mode="reduce-overhead")
    with torch.no_grad():
        data = [torch.randn(16, 64, device="cuda") for _ in range(6)]
        kept = [compiled(x) for x in data]
        copies = [compiled(x).clone() for x in data]
    check_same(copies, kept, 0.0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one() -> None:
    """The graph runs where its tensors are; two devices in one program are two graphs."""
    models = [_layers().to(f"cuda:{index}").eval() for index in (0, 1)]
    compiled = [torch.compile(model, backend=tkc) for model in models]
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(11, 64, device="cuda:1")
            found = compiled[1](x)
            assert found.device == x.device and torch.cuda.current_device() == 0
            check_same(models[1](x), found, 1e-4)
            check_same(models[0](x.to("cuda:0")), compiled[0](x.to("cuda:0")), 1e-4)


@pytest.mark.parametrize(("dynamic", "cache"), [(True, None), (None, "static")], ids=["dynamic", "static"])
def test_generation_gives_the_tokens_of_eager(
    monkeypatch: pytest.MonkeyPatch, dynamic: bool | None, cache: str | None
) -> None:
    """Greedy, in float32, with left padding."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    prompt = torch.randint(1, 200, (2, 9), device="cuda")
    mask = torch.ones_like(prompt)
    mask[0, :3] = 0
    expected = model.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)
    monkeypatch.setattr(model, "forward", torch.compile(model.forward, backend=tkc, dynamic=dynamic))
    options = {} if cache is None else {"cache_implementation": cache}
    found = model.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False, **options)
    assert torch.equal(expected, found)
