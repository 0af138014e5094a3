"""PyTorch's LSTM, GRU and RNN of symbolic length and batch against PyTorch, at several lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import tkc
from tests.frontend.execution import executable, relative_error
from tkc.errors import InputError, UnsupportedModelError
from tkc.frontend.torch.exporting import exported
from tkc.frontend.torch.importer import import_torch

FEATURES, HIDDEN = 3, 5
MAKES: dict[str, Callable[..., nn.RNNBase]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
WHOLE: dict[str, Any] = {"kernels": "none", "database": False, "fallback": False}
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """A layer, which of its axes are symbolic, and whether it is given its first state."""

    kind: str
    layers: int = 1
    bidirectional: bool = False
    batch_first: bool = False
    bias: bool = True
    projected: int = 0
    states: bool = False
    symbolic: str = "tb"
    hidden: int = HIDDEN
    dtype: torch.dtype = torch.float32

    def module(self) -> nn.RNNBase:
        """The layer, always the same."""
        torch.manual_seed(0)
        options: dict[str, Any] = {"proj_size": self.projected} if self.projected else {}
        made = MAKES[self.kind](
            FEATURES,
            self.hidden,
            num_layers=self.layers,
            bidirectional=self.bidirectional,
            batch_first=self.batch_first,
            bias=self.bias,
            **options,
        )
        return made.to(self.dtype).eval()

    def inputs(self, steps: int, batch: int) -> tuple[Any, ...]:
        """What a call takes."""
        x = torch.randn(*((batch, steps) if self.batch_first else (steps, batch)), FEATURES, dtype=self.dtype)
        if not self.states:
            return (x,)
        count = self.layers * (1 + self.bidirectional)
        hidden = torch.randn(count, batch, self.projected or self.hidden, dtype=self.dtype)
        return x, (hidden, torch.randn(count, batch, self.hidden, dtype=self.dtype)) if self.kind == "LSTM" else hidden

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """The symbolic axes of :meth:`inputs`."""
        dims = {name: Dim(name) for name in self.symbolic}
        axes = {int(self.batch_first): dims.get("t"), int(not self.batch_first): dims.get("b")}
        x = {axis: dim for axis, dim in axes.items() if dim is not None}
        state = {1: dims["b"]} if "b" in dims else {}
        return (x, (state, state) if self.kind == "LSTM" else state) if self.states else (x,)


CASES = [
    Case("LSTM"),
    Case("LSTM", 2, bidirectional=True, batch_first=True, projected=4, states=True),
    Case("LSTM", bias=False, projected=2, symbolic="t"),
    Case("LSTM", 2, batch_first=True, hidden=48, symbolic="t"),
    Case("GRU", 2, bidirectional=True, states=True),
    Case("GRU", bidirectional=True, batch_first=True, bias=False, symbolic="t", hidden=16),
    Case("GRU", batch_first=True),
    Case("tanh", 3, bidirectional=True, batch_first=True, states=True, symbolic="t"),
    Case("relu", 2, bias=False, bidirectional=True),
    Case("LSTM", batch_first=True, symbolic="b"),
    Case("LSTM", 2, batch_first=True, states=True, dtype=torch.float64),
    Case("LSTM", 2, states=True, dtype=torch.bfloat16),
    Case("GRU", 2, batch_first=True, dtype=torch.float16),
]


def _flat(results: Any) -> list[Tensor]:
    return list(torch.utils._pytree.tree_leaves(results))


@pytest.mark.daily(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_agree_at_each_length(case: Case) -> None:
    """Each direction, state, projection and dtype; one step and one sequence among the sizes."""
    call = tkc.compile(case.module(), case.inputs(5, 2), dynamic_shapes=case.dynamic_shapes(), **WHOLE)
    model = case.module().double()
    for steps, batch in [(5, 2), (1, 2), (9, 1), (1, 1), (17, 3)]:
        given = case.inputs(steps if "t" in case.symbolic else 5, batch if "b" in case.symbolic else 2)
        with torch.no_grad():
            expected = _flat(model(*torch.utils._pytree.tree_map(lambda x: x.double(), given)))
        found = _flat(call(*given))
        assert [f.dtype for f in found] == [case.dtype] * len(expected)
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one.double(), other) <= TOLERANCE[case.dtype]


def test_a_symbolic_length_is_one_loop() -> None:
    """As many bindings for any number of steps: nothing is unrolled."""
    counts = []
    for steps in (4, 40):
        imported = import_torch(nn.LSTM(3, 4), (torch.randn(steps, 2, 3),), dynamic_shapes=({0: Dim("t")},))
        counts.append(str(imported.module["main"]).count("\n"))
        assert any("recurrence" in name.name_hint for name in imported.module.get_global_vars())
    assert counts[0] == counts[1] < 60


class Attends(nn.Module):
    """An encoder of any length, and a decoder of cells that attends to its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.encoder = nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(8, 8)
        self.last = nn.LSTM(8, 8, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Three steps of the decoder, read by a layer of known length; and the last step of one of symbolic length."""
        outputs, last = self.encoder(self.embed(tokens))
        hidden = torch.cat([last[0], last[1]], -1)
        cell = torch.zeros_like(hidden)
        made = []
        for _ in range(3):
            weights = torch.softmax(torch.einsum("bth,bh->bt", outputs, hidden), -1)
            hidden, cell = self.cell(torch.einsum("bt,bth->bh", weights, outputs), (hidden, cell))
            made.append(hidden)
        return self.last(torch.stack(made, 1))[0].sum(1) + self.last(outputs)[0][:, -1]


@pytest.mark.daily(1)
@pytest.mark.parametrize("fallback", [False, True])
def test_an_encoder_and_a_decoder_that_attends_to_it(fallback: bool) -> None:
    """A layer of known length beside those of symbolic length, in a model that PyTorch decomposes."""
    torch.manual_seed(1)
    model = Attends().eval()
    tokens = torch.randint(0, 11, (2, 7))
    shapes = ({0: Dim("b"), 1: Dim("t")},)
    exe = tkc.compile(model, (tokens,), dynamic_shapes=shapes, fallback=fallback, kernels="none", database=False)
    for batch, steps in [(2, 7), (1, 1), (3, 12)]:
        tokens = torch.randint(0, 11, (batch, steps))
        torch.testing.assert_close(exe(tokens), model(tokens), rtol=1e-5, atol=1e-6)


def test_unbatched_sequences_and_none_of_no_steps() -> None:
    """A sequence without a batch; one of length 0 is refused in its call, as PyTorch refuses it."""
    model = nn.RNN(3, 4).eval()
    exe = tkc.compile(
        model, (torch.randn(5, 3),), dynamic_shapes=({0: Dim("t")},), kernels="none", database=False, fallback=False
    )
    for steps in (1, 6):
        x = torch.randn(steps, 3)
        torch.testing.assert_close(exe(x), model(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="t >= 1"):
        exe(torch.randn(0, 3))


class Positive(nn.Module):
    """A layer of as many steps as its data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for the rows whose sum is above zero."""
        return self.layer(x[x.sum(1) > 0])[0]


def test_a_length_that_the_data_decides() -> None:
    """As many steps as there are; none is an error in PyTorch too."""
    model = Positive().eval()
    exe = tkc.compile(model, (torch.randn(9, 3),), kernels="none", database=False)
    x = torch.randn(9, 3)
    torch.testing.assert_close(exe(x), model(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="without steps"):
        exe(-torch.ones(9, 3))


@pytest.mark.parametrize("shapes", [None, ({1: Dim("t")},)], ids=["known", "symbolic"])
def test_dropout_is_refused(shapes: Any) -> None:
    """In training, between layers: PyTorch's decomposition would leave it out."""
    model = nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True).train()
    with pytest.raises(UnsupportedModelError, match=r"lstm\.input"):
        import_torch(model, (torch.randn(2, 5, 3),), dynamic_shapes=shapes)
    import_torch(model.eval(), (torch.randn(2, 5, 3),), dynamic_shapes=shapes)


class Packs(nn.Module):
    """A layer that is handed a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The last state of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1]


def test_packed_sequences_are_refused() -> None:
    """By name, with what to do instead."""
    with pytest.raises(UnsupportedModelError, match=r"pack_padded_sequence.*padded tensor"):
        import_torch(Packs(), (torch.randn(2, 5, 3), torch.tensor([5, 3])))


def test_pytorch_is_as_before_behind_an_export() -> None:
    """What PyTorch's tracer has of these operators is put back, also by an export that fails."""
    table = torch._decomp.decomposition_table
    operators = [torch.ops.aten.lstm.input, torch.ops.aten.gru.input, torch.ops.aten._pack_padded_sequence.default]
    before = [(dict(op.py_kernels), table.get(op)) for op in operators]
    model = nn.LSTM(3, 4)
    exported(model, (torch.randn(5, 2, 3),), {}, ({0: Dim("t")},))
    with pytest.raises(UnsupportedModelError):
        exported(model, (torch.randn(5, 2, 4),), {}, ({0: Dim("t")},))
    assert [(dict(op.py_kernels), table.get(op)) for op in operators] == before


def test_a_program_of_known_length_is_taken() -> None:
    """As the user exported it, with a symbolic batch."""
    model = nn.LSTM(3, 4, batch_first=True).eval()
    program = torch.export.export(model, (torch.randn(2, 4, 3),), dynamic_shapes=({0: Dim("b")},))
    call = executable(import_torch(program))
    x = torch.randn(3, 4, 3)
    output, (hidden, cell) = model(x)
    for found, expected in zip(call(x), (output, hidden, cell), strict=True):
        assert relative_error(found, expected.detach()) <= 2e-6


@pytest.mark.nvcc
@pytest.mark.daily(1)
@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_compiles_for_cuda(case: Case) -> None:
    """Each sequence of each direction is a block."""
    tkc.compile(
        case.module(),
        case.inputs(5, 2),
        dynamic_shapes=case.dynamic_shapes(),
        target="cuda:sm_90a",
        kernels="none",
        database=False,
        fallback=False,
    )
