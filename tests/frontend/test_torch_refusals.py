"""What of PyTorch's models is refused, and how each is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.export.graph_signature import OutputKind

from tests.frontend.torch_models import Counting
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.torch.importer import import_torch

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


@pytest.mark.parametrize("content", ["text", "cut"])
def test_file_that_is_no_program(saved: Path, tmp_path: Path, content: str) -> None:
    """The error names the file and says what to do."""
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a program" if content == "text" else saved.read_bytes()[:5000])
    with pytest.raises(UnsupportedModelError, match=r"(?s)model\.pt2.*torch\.export\.save"):
        import_torch(path)


def test_missing_file(tmp_path: Path) -> None:
    """A path that is none is the caller's mistake."""
    with pytest.raises(UsageError, match=r"no file .*absent\.pt2"):
        import_torch(tmp_path / "absent.pt2")


def test_unknown_operators_are_all_listed_with_their_places() -> None:
    """One error names every operator without a converter, and the modules and lines it comes from."""

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x) + torch.geqrf(x)[0]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + torch.polygamma(21, x)

    with pytest.raises(UnsupportedModelError) as caught:
        import_torch(Outer(), (torch.eye(3),))
    message = str(caught.value)
    for operator in ("linalg_inv_ex", "geqrf", "polygamma"):
        assert operator in message
    assert "module 'inner'" in message
    assert "test_torch_refusals.py" in message


def test_all_refused_nodes_are_listed_whatever_refuses_them() -> None:
    """Operators without a converter, and uses that converters refuse, also of what refused nodes return."""

    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.polygamma(21, torch.histc(x, 4))
            z = nn.functional.dropout(torch.histc(y * 2, 5), 0.5, training=True)
            return torch.special.bessel_j0(z.double())

    with pytest.raises(UnsupportedModelError) as caught:
        import_torch(Refused(), (torch.rand(3),))
    message = str(caught.value)
    assert "polygamma" in message
    assert message.count("a histogram over the data's own range") == 2
    assert "native_dropout" in message
    assert "Bessel functions of float64" in message


def test_single_refusal_is_the_whole_error() -> None:
    """The node after it computes with zeros of the right shape, and is not named."""

    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.histc(x, 4).reshape(2, 2) @ x[:2]

    with pytest.raises(UnsupportedModelError, match=r"\Aaten\.histc.*Give min and max\.\Z"):
        import_torch(Refused(), (torch.rand(3),))


def test_state_that_overlaps_other_state_is_refused() -> None:
    """The error names both tensors."""

    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("both", torch.zeros(2, 4))
            self.register_buffer("first", self.both[0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.first.add_(x)
            return self.both + x

    with pytest.raises(UnsupportedModelError, match=r"'b_first'.*'b_both'.*a tensor of its own"):
        import_torch(Overlapping(), (torch.ones(4),))


def test_gradients_are_refused() -> None:
    """Only a forward pass can be compiled; the error names what is returned besides."""
    program = torch.export.export(Counting(), (torch.ones(3),))
    program = program.run_decompositions({})
    specs = program.graph_signature.output_specs
    specs[0] = dataclasses.replace(specs[0], kind=OutputKind.TOKEN)
    with pytest.raises(UnsupportedModelError, match="as token; only a forward pass"):
        import_torch(program)


def test_model_that_cannot_be_exported_is_refused() -> None:
    """Control flow over data is reported as what it is."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedModelError, match="cannot export Branching"):
        import_torch(Branching(), (torch.ones(3),))


class Called(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """What the function gives."""
        return self.function(*inputs)


LIBRARY = torch.library.Library("tkcrefused", "FRAGMENT")
LIBRARY.define("no_rule(Tensor x) -> Tensor")
LIBRARY.impl("no_rule", lambda x: x * 2, "CPU")


@torch.library.custom_op("tkcrefused::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    """An operator whose author wrote no fake function."""
    return x * 2


_CTC = (torch.tensor([[1, 2]]), torch.tensor([2]))


@pytest.mark.parametrize(
    ("function", "shape", "operator", "reason"),
    [
        (lambda x: torch.linalg.lstsq(x, x)[0], (4, 4), "aten.linalg_lstsq.default", "sizes PyTorch takes for decided"),
        (
            lambda x: nn.functional.ctc_loss(x.log_softmax(-1), _CTC[0], torch.tensor([6]), _CTC[1]),
            (6, 1, 4),
            "aten._ctc_loss.Tensor",
            "sizes PyTorch takes for decided",
        ),
        (torch.corrcoef, (4, 4), "aten.equal.default", "a value that its data decides"),
        (lambda x: x if torch.allclose(x, x) else -x, (3,), "aten.allclose.default", "a value that its data decides"),
        (lambda x: torch.ops.tkcrefused.no_rule(x), (3,), "tkcrefused.no_rule.default", "has no rule that says"),
        (no_fake, (3,), "no_fake", "no fake impl"),
    ],
    ids=["lstsq", "ctc", "corrcoef", "allclose", "no rule", "no fake"],
)
def test_operators_that_cannot_be_traced(
    function: Callable[..., Any], shape: tuple[int, ...], operator: str, reason: str
) -> None:
    """Are refused with the reason, the line and the cure, and no word on the examples."""
    with pytest.raises(UnsupportedModelError, match="cannot export Called") as caught:
        import_torch(Called(function), (torch.randn(shape),))
    message = str(caught.value)
    assert operator in message and reason in message and "register_fake" in message
    assert "test_torch_refusals.py" in message and "must fit its forward" not in message
    assert "draft_export" not in message


def test_operators_that_cannot_be_traced_for_any_size() -> None:
    """PyTorch has shapes of them for fixed sizes alone."""
    shapes = {"inputs": ({0: torch.export.Dim.DYNAMIC},)}
    with pytest.raises(UnsupportedModelError, match=r"aten\.geqrf\.default \(File .*has no rule.*custom_op"):
        import_torch(Called(lambda x: torch.geqrf(x)[0]), (torch.randn(4, 4),), dynamic_shapes=shapes)


def test_packed_sequences_are_refused_by_themselves() -> None:
    """With the line, and without a word on the examples."""

    def function(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return nn.utils.rnn.pack_padded_sequence(x, lengths).data

    with pytest.raises(UnsupportedModelError, match="packed sequences") as caught:
        import_torch(Called(function), (torch.randn(5, 2, 3), torch.tensor([5, 3])))
    assert "test_torch_refusals.py" in str(caught.value) and "must fit" not in str(caught.value)


def test_examples_that_do_not_fit_are_told_so() -> None:
    """As is what else PyTorch cannot export."""
    with pytest.raises(UnsupportedModelError, match="must fit its forward"):
        import_torch(nn.Linear(3, 3), (torch.ones(3), torch.ones(3)))


_GENERATOR = torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("draw", "operator"),
    [
        (lambda x: torch.rand(3, generator=_GENERATOR) + x, "aten.rand.generator"),
        (lambda x: torch.multinomial(x, 2, generator=_GENERATOR), "aten.multinomial.default"),
        (lambda x: x.clone().normal_(generator=_GENERATOR), "aten.normal"),
        (
            lambda x: torch.randperm(3, generator=_GENERATOR) + torch.bernoulli(x, generator=_GENERATOR),
            "aten.randperm.generator",
        ),
    ],
    ids=["rand", "multinomial", "normal", "two"],
)
@pytest.mark.parametrize("fallback", [False, True])
def test_generators_are_refused_with_what_draws(draw: Callable[..., Any], operator: str, fallback: bool) -> None:
    """And the cure: calls follow PyTorch's default generator."""
    with pytest.raises(
        UnsupportedModelError, match=r"A torch\.Generator, which the model holds, is taken by"
    ) as caught:
        import_torch(Called(draw), (torch.ones(3),), fallback=fallback)
    message = str(caught.value)
    assert operator in message and "test_torch_refusals.py" in message and "torch.manual_seed" in message


def test_generators_as_inputs_are_refused() -> None:
    """By the input's name."""

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor, source: torch.Generator) -> torch.Tensor:
            return torch.rand(3, generator=source) + x

    with pytest.raises(UnsupportedModelError, match=r"A torch\.Generator.*torch\.manual_seed"):
        import_torch(Drawing(), (torch.ones(3), torch.Generator()))


def test_torchscript_inside_of_a_model() -> None:
    """Is named by its path; a model that is such a module itself is refused, too."""
    scripted = torch.jit.script(nn.Sequential(nn.ReLU(), nn.Tanh()))
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(scripted))
    with pytest.raises(
        UnsupportedModelError, match=r"export Sequential: its '1\.0' is a TorchScript.*without torch\.jit"
    ):
        import_torch(model, (torch.ones(2, 3),))
    with pytest.raises(UnsupportedModelError, match=r"it is a TorchScript module.*without torch\.jit"):
        import_torch(scripted, (torch.ones(2, 3),))


def test_constants_whose_numbers_the_tracer_lost_are_refused() -> None:
    """By name: strict export lets them pass."""

    class Lost(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.new_zeros(4)
            y.data[1:].copy_(x)
            return y * 2

    program = torch.export.export(Lost(), (torch.ones(3),), strict=True)
    with pytest.raises(UnsupportedModelError, match=r"'lifted_tensor_0' without its numbers.*Write into x itself"):
        import_torch(program)


@pytest.mark.parametrize("function", [lambda x: x & x, lambda x: x ^ 1, torch.bitwise_not], ids=["and", "xor", "not"])
def test_bits_of_floats_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """PyTorch exports them, and raises in every call."""

    class Bits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    with pytest.raises(UnsupportedModelError, match="has no bits"):
        import_torch(Bits(), (torch.rand(3),))


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return self.function(*inputs)


@pytest.mark.parametrize("function, operator", [
    (lambda x: x.to_sparse().to_dense(), "to_sparse"),
    (lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), x[0], (2, 2)).to_dense(), "sparse_coo_tensor"),
])  # fmt: skip
def test_sparse_tensors_are_refused_in_files(
    function: Callable[[torch.Tensor], torch.Tensor], operator: str, tmp_path: Path
) -> None:
    """A file does not say of which layout its tensors are; the program that it is of can be compiled."""
    program = torch.export.export(Function(function), (torch.eye(2),))
    path = tmp_path / "sparse.pt2"
    torch.export.save(program, path)
    import_torch(program, fallback=True)
    with pytest.raises(UnsupportedModelError, match=f"{operator}.*layout[^$]*compile the nn.Module itself"):
        import_torch(path, fallback=True)


_SMALL = torch.ones(4)


@pytest.mark.parametrize("function, given, name", [
    (lambda x: torch.cond(x.sum() > 0, lambda x: torch.fft.fft(x).abs(), lambda x: x * 1, (x,)), _SMALL, "cond"),
    (lambda z: torch.cond(z.real.sum() > 0, lambda z: z * 2, lambda z: z.conj() * 2, (z,)), _SMALL + 0j, "cond"),
    (
        lambda c: while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * z + c), (torch.tensor(0), c * 0))[1],
        _SMALL + 0j,
        "while_loop",
    ),
    (lambda z: scan(lambda s, v: (s * v, s + v), z[0], z)[1], _SMALL + 0j, "scan"),
])  # fmt: skip
def test_complex_numbers_in_control_flow_are_refused(
    function: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor, name: str
) -> None:
    """As operands, in a branch alone, and as the state of loops; the node is named, and what to do."""
    program = torch.export.export(Function(function), (given,))
    with pytest.raises(UnsupportedModelError, match=rf"^{name} \(.*is complex.*\n.*view_as_real"):
        import_torch(program, fallback=True)
