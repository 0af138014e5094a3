"""Weights exchanged in a compiled model: what a fresh compilation of the new ones computes, or a refusal by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from manifests import edit_manifest
from torch import nn
from torch.nn import functional as F

import tkc


class Convolutions(nn.Module):
    """Convolutions, batch norms with statistics of their own, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.grouped, self.up = nn.Conv2d(32, 32, 3, groups=4), nn.ConvTranspose2d(32, 4, 2, 2)
        nn.init.normal_(self.norm.weight)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, 3, 20, 20]``."""
        return self.up(self.grouped(F.relu(self.norm(self.first(x)))))


class Decoder(nn.Module):
    """Attention of grouped queries, tied embeddings, positions from a buffer, experts chosen by a router."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, size), nn.Linear(size, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.q, self.k, self.v = (nn.Linear(size, width, bias=False) for width in (size, size // 2, size // 2))
        self.router, self.experts = nn.Linear(size, 4), nn.Parameter(torch.randn(4, size, size) / 8)
        self.norm, self.scale = nn.RMSNorm(size), nn.Parameter(torch.randn(()))
        self.register_buffer("positions", torch.randint(0, 8, (5,)))
        self.register_buffer("table", torch.randn(8, size))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch, 5, 32]``."""
        x = self.norm(self.embedding(ids) + self.table[self.positions])
        q, k, v = (project(x).unflatten(-1, (-1, 16)).transpose(1, 2) for project in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        share, chosen = self.router(seen).softmax(-1).max(-1)
        made = torch.einsum("bti,btij->btj", seen, self.experts[chosen]) * share.unsqueeze(-1)
        return self.head(x + self.scale * made)


class Complex(nn.Module):
    """A complex weight, a list of a parameter, and one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(8, dtype=torch.complex64)), nn.Linear(8, 8)
        self.same, self.unread = [self.linear.weight], nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, 8]``."""
        return (self.linear(x) * self.weight).real @ self.same[0]


def made(kind: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose weights depend on ``seed``."""
    torch.manual_seed(seed)
    return kind().eval()


IMAGE, IDS, ROWS = torch.linspace(-1, 1, 1200).reshape(1, 3, 20, 20), torch.tensor([[3, 1, 4, 1, 5]]), torch.eye(8)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("kind", "example", "options"),
    [
        (Convolutions, IMAGE, {}),
        (Decoder, IDS, {"kernels": "all"}),
        (Complex, ROWS, {}),
        (lambda: nn.LSTM(8, 4, bidirectional=True), torch.randn(3, 2, 8), {}),
    ],
)
def test_what_a_fresh_compilation_computes(
    kind: Callable[[], nn.Module], example: torch.Tensor, options: Mapping[str, Any]
) -> None:
    """To the last bit; and neither model changes."""
    old, new = made(kind, 0), made(kind, 1)
    kept = copy.deepcopy(old.state_dict()), copy.deepcopy(new.state_dict())
    executable = tkc.compile(old, (example,), **options)
    before = flat(executable(example))
    assert executable.load_weights(new.state_dict()) == ([], [])
    after = flat(executable(example))
    for found, fresh, other in zip(after, flat(tkc.compile(new, (example,), **options)(example)), before, strict=True):
        assert torch.equal(found, fresh) and not torch.allclose(found, other)
    for model, weights in zip((old, new), kept, strict=True):
        assert all(torch.equal(model.state_dict()[name], weight) for name, weight in weights.items())
    with torch.no_grad():
        [weight.zero_() for weight in new.parameters()]
    assert all(map(torch.equal, after, flat(executable(example))))


def flat(outputs: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return torch.utils._pytree.tree_leaves(outputs)


@pytest.fixture(scope="module")
def decoder() -> tkc.Executable:
    """One whose queries, keys and values have one weight."""
    return tkc.compile(made(Decoder, 0), (IDS,), kernels="all")


@pytest.mark.daily(1)
def test_all_that_is_wrong_is_said_before_anything_changes(decoder: tkc.Executable) -> None:
    """Names, shapes, dtypes, tied weights that differ, and indices that the table does not have."""
    new = made(Decoder, 1).state_dict()
    del new["router.bias"]
    wrong = {
        **new,
        "typo": torch.zeros(1),
        "q.weight": torch.zeros(64, 63),
        "k.weight": new["k.weight"].half(),
        "head.weight": torch.zeros(32, 64),
        "positions": torch.tensor([0, 1, 2, 3, 8]),
        "v.weight": "a string",
    }
    before = decoder(IDS)
    with pytest.raises(tkc.InputError) as raised:
        decoder.load_weights(wrong)
    for text in (
        "missing: 'router.bias'",
        "unexpected: 'typo'",
        "'q.weight' has shape [64, 63], expected [64, 64]",
        "'k.weight' has dtype float16, expected float32",
        "'embedding.weight' and 'head.weight' are one tensor",
        "'positions' holds the index 8, expected -8 to 7",
        "weight 'v.weight' is a str",
    ):
        assert text in str(raised.value)
    assert torch.equal(decoder(IDS), before)


def test_a_part_of_the_weights(decoder: tkc.Executable) -> None:
    """One of three that are packed, one of two names of a tied one."""
    mixed, new = made(Decoder, 0), made(Decoder, 2)
    part = {name: new.state_dict()[name].numpy() for name in ("k.weight", "head.weight")}
    mixed.load_state_dict({name: torch.from_numpy(array) for name, array in part.items()}, strict=False)
    executable = copy.copy(decoder)
    missing, unexpected = executable.load_weights({**part, "other": np.zeros(1)}, strict=False)
    assert "embedding.weight" not in missing and "q.weight" in missing and unexpected == ["other"]
    torch.testing.assert_close(executable(IDS), mixed(IDS))
    torch.testing.assert_close(decoder(IDS), made(Decoder, 0)(IDS))  # a copy has weights of its own from then on


def test_artifacts_have_the_new_weights_and_take_others(decoder: tkc.Executable, tmp_path: Path) -> None:
    """Saved, loaded, exchanged there, pickled; before and after a first call."""
    executable = copy.copy(decoder)
    executable.load_weights(made(Decoder, 3).state_dict())
    loaded = tkc.load(executable.save(tmp_path / "a.tkc"))
    torch.testing.assert_close(loaded(IDS), made(Decoder, 3)(IDS))
    loaded.load_weights(made(Decoder, 4).state_dict())
    torch.testing.assert_close(loaded(IDS), made(Decoder, 4)(IDS))
    again = pickle.loads(pickle.dumps(loaded))
    again.load_weights(made(Decoder, 5).state_dict())
    torch.testing.assert_close(again(IDS), made(Decoder, 5)(IDS))


def test_manifests_that_say_what_cannot_be(decoder: tkc.Executable, tmp_path: Path) -> None:
    """Weights that stand nowhere; and none at all, as before they were written."""
    path = decoder.save(tmp_path / "a.tkc")
    held = json.loads((path / "manifest.json").read_text())["entries"]["main"]["weights"]
    place = next(i for i, weight in enumerate(held) if weight["part"])
    for change in ({"position": 99}, {"position": -1}, {"part": [0, 0, 1]}, {"part": [5, 0, 1]}, {"dtype": "float64"}):
        weights = [{**weight, **change} if i == place else weight for i, weight in enumerate(held)]
        edit_manifest(path, lambda m, weights=weights: m["entries"]["main"].update(weights=weights))
        with pytest.raises(tkc.ArtifactError, match="says what cannot be"):
            tkc.load(path)
    edit_manifest(path, lambda manifest: manifest["entries"]["main"].pop("weights"))
    with pytest.raises(tkc.UsageError, match="compile the model again"):
        tkc.load(path).load_weights({})


def test_calls_that_run_meanwhile() -> None:
    """Each has the old weights or the new ones, and those that begin later the new ones."""
    models = [made(Convolutions, seed) for seed in range(3)]
    executable = tkc.compile(models[0], (IMAGE,), copy_weights=True, max_concurrency=3)
    expected = [executable(IMAGE)]
    for model in models[1:]:
        executable.load_weights(model.state_dict())
        expected.append(executable(IMAGE))
    executable.load_weights(models[0].state_dict())
    stop, wrong = threading.Event(), []

    def call() -> None:
        while not stop.is_set():
            found = executable(IMAGE)
            if not any(torch.equal(found, each) for each in expected):
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(3)]
    [thread.start() for thread in threads]
    for turn in range(30):
        executable.load_weights(models[turn % 3].state_dict())
        assert torch.equal(executable(IMAGE), expected[turn % 3])
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong


class Counter(nn.Module):
    """Adds to a buffer; has numbers, an index, a divisor, and views of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("sums", torch.zeros(4))
        self.register_buffer("scale", torch.rand(()))
        self.register_buffer("steps", torch.tensor(2))
        self.register_buffer("divisors", torch.randint(1, 9, (4,)))
        self.register_buffer("whole", torch.rand(2, 4))
        self.register_buffer("row", self.whole[1])

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[rows, 4]`` and ``[4]``."""
        self.sums.add_(self.linear(x).sum(0))
        rest = self.row + self.whole.sum(0)
        return self.sums * self.scale * self.steps + rest, n // self.divisors


def test_what_the_code_depends_on(caplog: pytest.LogCaptureFixture) -> None:
    """Values that are in the code, that were proved, or that share memory stay; so does state."""
    model, other, args = made(Counter, 0), made(Counter, 1), (torch.ones(1, 4), torch.arange(4))
    executable = tkc.compile(model, args)
    executable(*args)
    state = executable.state["sums"].clone()
    linear = {name: weight for name, weight in other.state_dict().items() if name.startswith("linear.")}
    executable.load_weights({**model.state_dict(), "sums": torch.ones(4), **linear})
    assert torch.equal(executable.state["sums"], state) and "sums" in caplog.text
    model.load_state_dict(linear, strict=False)
    model.sums.copy_(state)
    for found, expected in zip(executable(*args), model(*args), strict=True):
        torch.testing.assert_close(found, expected)
    other.steps.fill_(3)
    with pytest.raises(tkc.InputError) as raised:
        executable.load_weights(other.state_dict())
    for name in ("scale", "steps", "divisors", "whole", "row"):
        assert f"'{name}'" in str(raised.value)
    assert "linear" not in str(raised.value)


def test_numbers_are_exchangeable_if_asked_for() -> None:
    """A buffer of one float is a parameter then."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.rand(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    executable = tkc.compile(made(Scaled, 0), (ROWS,), exchangeable_weights=True)
    executable.load_weights(made(Scaled, 1).state_dict())
    assert torch.equal(executable(ROWS), made(Scaled, 1)(ROWS))


def test_programs() -> None:
    """Entries share a weight, one of them under another name."""

    class Twice(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner(x))

    old, new = (nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
    entry = tkc.Entry(example_args=(ROWS,))
    program = tkc.compile(old, entries={"once": entry, "twice": dataclasses.replace(entry, model=Twice(old))})
    program.once(ROWS)  # twice is loaded later
    program.load_weights(new.state_dict())
    torch.testing.assert_close(program.once(ROWS), new(ROWS))
    torch.testing.assert_close(program.twice(ROWS), new(new(ROWS)))
    assert len(program.parameters) == 2
    with pytest.raises(tkc.UsageError, match="by the program's load_weights"):
        program.once.load_weights(new.state_dict())
    with pytest.raises(tkc.InputError, match=r"missing: '0\.bias', 'inner\.0\.bias'"):
        program.load_weights({"0.weight": new.state_dict()["0.weight"]})


@pytest.mark.gpu
def test_graphs_are_recorded_anew() -> None:
    """On a GPU: replays have the new weights, calls of other threads and streams the old or the new ones."""
    models = [made(Convolutions, seed).cuda() for seed in range(2)]
    image = IMAGE.cuda()
    executable = tkc.compile(models[0], (image,), target="cuda")
    expected = [executable(image).clone() for _ in range(3)][-1:]
    executable.load_weights(models[1].cpu().state_dict())
    expected.append([executable(image).clone() for _ in range(3)][-1])
    assert not torch.allclose(*expected)
    torch.testing.assert_close(expected[1], models[1].cuda()(image), rtol=1e-3, atol=1e-3)
    stop, wrong = threading.Event(), []

    def call() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                found = executable(image)
                if not any(torch.equal(found, each) for each in expected):
                    wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(2)]
    [thread.start() for thread in threads]
    for turn in range(20):
        executable.load_weights(models[turn % 2].state_dict())
        assert all(torch.equal(executable(image), expected[turn % 2]) for _ in range(3))
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong
