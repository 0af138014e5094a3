"""Models that compute with complex numbers: they come to real ones, and agree with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.frontend import execution
from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.importer import import_torch

as_complex, as_real = torch.view_as_complex, torch.view_as_real

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a real factor": lambda z, x: as_real(z * x[..., 1]),
    "a real number": lambda z, x: as_real(2 * z),
    "a complex number": lambda z, x: as_real((z - 1j) * (2 + 1j)),
    "a number less": lambda z, x: as_real(1 - z),
    "in place": lambda z, x: as_real((z + 1).mul_(2).sub_(x[..., 0])),
    "a quotient": lambda z, x: as_real(z / (z.conj() + 3)),
    "a cast": lambda z, x: as_real(x[..., 0].to(torch.complex64) * z),
    "a wider cast": lambda z, x: as_real(z.to(torch.complex128)),
    "truth values": lambda z, x: as_real(z * (x[..., 0] > 0) + (x[..., 1] > 0).to(torch.complex64)),
    "an exponential": lambda z, x: torch.exp(1j * x[..., 0]).imag,
    "magnitude and angle": lambda z, x: torch.stack([z.abs(), z.angle()]),
    "a choice": lambda z, x: as_real(torch.where(x[..., 0] > 0, z, -z)),
    "shapes": lambda z, x: as_real(torch.cat([z[:, None], 2j * z[:, None]], 1).transpose(1, 2)),
    "a sum": lambda z, x: z.sum(-1).real,
}


class Functions(nn.Module):
    """All of :data:`FUNCTIONS`, of pairs of real numbers."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Each function's result."""
        return [function(as_complex(x), x) for function in FUNCTIONS.values()]


class Rotary(nn.Module):
    """A rotary embedding as the first Llama had it, and other complex weights of each kind."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(4) / 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent)
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.shift = torch.randn(4, dtype=torch.complex64).conj()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, sequence, 8]``, neighbouring channels turned as their position tells."""
        turned = as_complex(x.float().unflatten(-1, (-1, 2))) * self.turns[: x.shape[1]]
        return as_real(turned * self.scale + self.shift).flatten(2).type_as(x)


def test_operators_agree_with_pytorch() -> None:
    """Complex tensors among each other, with real ones and with Python's numbers."""
    check(Functions(), lambda rows: torch.randn(rows, 4, 2), {0: Dim("rows", min=5, max=64)})


@pytest.mark.parametrize("persistent", [True, False])
def test_complex_weights_agree_with_pytorch(persistent: bool) -> None:
    """Buffers that are saved or not, parameters, and a tensor that is conjugated lazily."""
    torch.manual_seed(0)
    check(Rotary(persistent), lambda length: torch.randn(2, length, 8), {1: Dim("length", min=5, max=32)})


def check(model: nn.Module, make: Callable[[int], torch.Tensor], dynamic: dict[int, Dim]) -> None:
    """Import the model with a symbolic axis, and compare its results at two sizes."""
    imported = import_torch(model, (make(5),), dynamic_shapes=(dynamic,))
    run = execution.executable(imported)
    for size in (5, 8):
        x = make(size)
        expected = model(x)
        expected = expected if isinstance(expected, list) else [expected]
        for found, reference in zip(run(x), expected, strict=True):
            assert execution.relative_error(found, reference.detach()) < 1e-5


def test_magnitudes_neither_overflow_nor_vanish() -> None:
    """Where the square of a part would, as in PyTorch."""

    class Magnitude(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return as_complex(x).abs()

    x = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [-5, 0]])
    (found,) = execution.executable(import_torch(Magnitude(), (x,)))(x)
    torch.testing.assert_close(found, Magnitude()(x), rtol=1e-6, atol=0)


class Takes(nn.Module):
    """Takes a complex tensor."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Its square's magnitude."""
        return (z * z).abs()


class Returns(nn.Module):
    """Returns a complex tensor."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Made of the real one."""
        return torch.complex(z, z)


class Powers(nn.Module):
    """Raises complex numbers to a power, which PyTorch's tracer does not survive."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Their magnitudes."""
        return (as_complex(z) ** 3).abs()


class Multiplies(nn.Module):
    """Has a matrix product of complex numbers, which PyTorch's decomposition leaves out."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Its magnitude."""
        return (as_complex(z) @ as_complex(z)).abs()


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (Takes(), torch.zeros(3, dtype=torch.complex64), "Input 'z' is torch.complex64.*view_as_real"),
        (Returns(), torch.zeros(3), "returns or updates 'complex_1', which is torch.complex64.*view_as_real"),
        (Powers(), torch.zeros(3, 3, 2), "complex ones.*real and imaginary parts"),
        (Multiplies(), torch.zeros(3, 3, 2), "aten.matmul.default.*real and imaginary parts"),
    ],
)
def test_what_has_no_real_form_is_refused(model: nn.Module, x: torch.Tensor, message: str) -> None:
    """The message names the culprit and the cure."""
    with pytest.raises(UnsupportedModelError, match=f"(?s){message}"):
        import_torch(model, (x,))
