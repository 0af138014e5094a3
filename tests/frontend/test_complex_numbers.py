"""Models that compute with complex numbers: they come to real ones, and agree with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tkc
from tests.frontend import execution
from tests.frontend.whole_models import called, compiled, same
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


@pytest.mark.daily(1)
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


def _mixed(z: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    w = z[:4].mT @ z[:4]
    return {
        "arithmetic": (z + x, z - 2j, 2 - z, z * z, z / (z + 2), x / z, 1 / z, z / (1 + 2j), -z, z.square()),
        "parts": (z.abs(), z.angle(), z.conj(), z.real, z.imag, z.sgn(), torch.view_as_real(z.resolve_conj())),
        "matmul": (z @ w, z.mT @ z, z.conj() @ w, z @ w[0], torch.einsum("ij,kj->ik", z, w), torch.dot(w[0], w[1])),
        "linear": (nn.functional.linear(z, w), nn.functional.linear(z, w, w[0]), torch.addmm(z, z, w)),
        "functions": (z.exp(), z.log(), z.sqrt(), z.sin(), z.cos(), z.tan(), z.tanh(), z.sinh(), z.cosh(), z.rsqrt()),
        "inverses": (z.acosh(), z.asinh(), z.atanh(), z.atan(), z.log1p(), z.expm1()),
        "powers": (z**2, z**-3, z**0.5, z**1.5, z**z, 2**z, x**z),
        "shapes": (z.T, z.reshape(-1), z[1:, ::2], torch.cat([z, z]), torch.stack([z, z]), z.flip(0), z[None] * 1),
        "sums": (z.sum(), z.mean(1), z.cumsum(1), z.prod(1), torch.linalg.vector_norm(z, dim=1)),
        "comparisons": (z == z.conj(), z != z.conj(), z.isnan(), z.isfinite(), z == 2, z.any()),
        "choices": (torch.where(x > 0, z, 0), z.masked_fill(x > 0, 1j), z[torch.tensor([1, 0])]),
        "made": (torch.full((2,), 1j), torch.ones_like(z), torch.zeros_like(x, dtype=z.dtype), torch.eye(3) * 1j),
        "made of parts": (
            torch.polar(x.abs(), x),
            torch.complex(x, x),
            torch.complex(x, x[:1]),
            torch.full_like(z, 2 + 1j),
        ),
        "in place": (z + 0).mul_(2).add_(1j).index_put_((torch.tensor([0]),), z[1]),
        "unchanged": (z, z.clone(), z),
        "casts": (z.to(torch.complex128), x.to(torch.complex64), z.real.to(torch.complex64)),
    }


def _few(z: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    return {"exp": z.exp(), "quotient": z / (x + 1j), "product": z @ z.mT, "sum": z.sum(0), "magnitude": z.abs()}


@pytest.mark.parametrize(("dtype", "function"), [(torch.complex64, _mixed), (torch.complex128, _few)])
@pytest.mark.daily(2)
def test_complex_tensors_in_and_out(dtype: torch.dtype, function: Callable[..., dict[str, Any]]) -> None:
    """Among all operators that have a form in real numbers, at several sizes."""
    rows = Dim("rows", min=4, max=100)
    generator = torch.Generator().manual_seed(0)
    real = dtype.to_real()
    z = torch.randn(6, 4, dtype=dtype, generator=generator)
    x = torch.randn(6, 4, dtype=real, generator=generator)
    executable = compiled(function, z, x, dynamic_shapes=(({0: rows}, {0: rows}),))
    assert {*called(executable)} <= {"aten::index_put"}
    for inputs in ((z, x), (z[:5] * 3, x[:5]), (z.conj(), -x)):
        found, expected = executable(*inputs), function(*inputs)
        for name, value in expected.items():
            same(found[name], value, 1e-4 if dtype == torch.complex64 else 1e-10)


def test_what_has_no_real_form_is_called() -> None:
    """In PyTorch, on complex tensors that are the pairs seen as such; each by its name."""

    def function(z: torch.Tensor) -> Any:
        values, vectors = torch.linalg.eigh(z @ z.mH)
        return torch.linalg.inv(z) * 2, torch.linalg.eigvals(z.real).abs().sum(), values, vectors.abs(), z.sigmoid() + 1

    z = torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    executable = compiled(function, z)
    expected = {"aten::linalg_eigh", "aten::linalg_inv", "aten::linalg_eigvals", "aten::sigmoid"}
    assert {*called(executable)} == expected
    for each in (z, z.mT):
        same(executable(each), function(each), 1e-4)
    with pytest.raises(tkc.OperatorError, match="linalg_inv"):
        executable(torch.zeros(4, 4, dtype=torch.complex64))
    with pytest.raises(tkc.UnsupportedModelError, match=r"linalg_\w+(.default)?(?s:.)*fallback=True"):
        compiled(function, z, fallback=False)


class Attention(nn.Module):
    """Queries and keys as Llama's original code turns them, and complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, q: torch.Tensor, k: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """``[batch, sequence, heads, 8]``, by ``turns [sequence, 4]``, which the caller keeps."""
        q, k = (
            as_real(as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turns[:, None] * self.scale).flatten(3)
            for x in (q, k)
        )
        return nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2))


@pytest.mark.daily(1)
def test_rotary_embeddings_compile_fully(tmp_path: Path) -> None:
    """With the complex factors as an input; also from an artifact."""
    length = Dim("length", min=2, max=64)
    angles = torch.outer(torch.arange(64.0), 10000 ** (-torch.arange(4) / 4))
    turns = torch.polar(torch.ones_like(angles), angles)
    model = Attention()

    def inputs(size: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(2, size, 3, 8), torch.randn(2, size, 3, 8), turns[:size]

    executable = tkc.compile(model, inputs(7), dynamic_shapes=({1: length}, {1: length}, {0: length}))
    assert called(executable) == {}
    loaded = tkc.load(executable.save(tmp_path / "model.tkc"))
    for each in (executable, loaded):
        for size in (7, 12):
            given = inputs(size)
            same(each(*given), model(*given).detach(), 1e-4)
    assert "complex64" in repr(executable)


class Keeps(nn.Module):
    """Changes a complex buffer and a complex input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The buffer, the input and their product."""
        self.total += z.sum(0)
        z.mul_(1j)
        return self.total, z, self.total * z


def test_complex_tensors_are_updated() -> None:
    """The caller's own, whatever view of memory it is, and the model's, which is kept as pairs."""
    executable = tkc.compile(Keeps(), (torch.ones(2, 3, dtype=torch.complex64),), kernels="none", database=False)
    model = Keeps()
    z = torch.randn(2, 3, dtype=torch.complex64)
    for given in (z.clone(), z.mT.contiguous().mT, z.clone().conj()):
        mine, theirs = given.clone().conj().clone().conj(), given.clone()
        mine = mine if given.is_conj() else given.clone(memory_format=torch.preserve_format)
        theirs = mine.clone()
        same(executable(mine), model(theirs))
        same(mine, theirs)
    assert executable.state["total"].shape == (3, 2)
    same(as_complex(executable.state["total"]), model.total)


def test_complex_arrays_and_what_does_not_fit() -> None:
    """NumPy's arrays in and out; another dtype is refused."""
    executable = compiled(lambda z: z * 1j, torch.ones(3, dtype=torch.complex64))
    found = executable(np.array([1, 2j, 3], "complex64"))
    assert type(found).__name__ == "ndarray" and found.tolist() == [1j, -2, 3j]
    with pytest.raises(tkc.InputError, match="float32, expected complex64"):
        executable(torch.ones(3))


def _of_parts(z: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
    square = z[:4, :4]
    return [
        torch.ops.aten.unfold_backward(z.unfold(1, 2, 1), z.shape, 1, 2, 1),
        *(z.unfold(1, 2, 1), square.diagonal(1), torch.diagonal_scatter(square, z[0, :4].real, 0), z.unbind(1)[1]),
        *(torch.put(z, i, z[0, :3]), torch.block_diag(square, square.real, square), square.trace()),
        *(torch.addcmul(z, z, z + 1, value=0.5), torch.addcdiv(z, z, z + 3), torch.lerp(z, -z, 0.3), F.silu(z)),
        *(z.var(1), z.std(0), torch.logsumexp(z, 1), torch.norm(z, dim=1), z.exp2(), z.log2(), z.log10()),
        torch.addbmm(z[:, :4], z[None, :, :4], square[None], beta=2, alpha=1j),
    ]


@pytest.mark.daily(1)
def test_parts_are_moved_and_summed() -> None:
    """Real tensors among complex ones have no imaginary part; nothing is called in PyTorch."""
    z = torch.randn(5, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    i = torch.tensor([0, 7, 3])
    exe = compiled(_of_parts, z, i, fallback=False)
    for found, expected in zip(exe(z, i), _of_parts(z, i), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Random(nn.Module):
    """Complex random numbers beside real ones, and other creations of complex tensors."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Each kind twice, as equal calls draw other numbers."""
        z, kind = torch.complex(x, x), torch.complex64
        drawn = [torch.randn(x.shape[0], 2, dtype=kind), torch.rand(3, dtype=kind), torch.randn(3), torch.rand(3)]
        drawn += [torch.randn_like(z), torch.rand_like(z), torch.randn_like(x, dtype=kind), torch.randn_like(z.real)]
        drawn += [torch.randn_like(z, dtype=torch.float32), torch.randn(3, dtype=torch.complex128).abs()]
        drawn += [torch.randn(2, dtype=kind), torch.randn(2, dtype=kind), torch.rand(2, dtype=kind)]
        made = [torch.zeros(3, dtype=kind), torch.ones_like(x, dtype=kind), torch.eye(3, dtype=kind)]
        made += [torch.full((3,), 2j), torch.full_like(z, 1 + 2j), x.new_zeros(3, dtype=kind), torch.empty_like(z) * 0]
        made += [torch.empty(3, dtype=kind) * 0, torch.empty_strided((2, 3), (3, 1), dtype=kind) * 0]
        return [*drawn, *made]


def test_random_complex_numbers_are_those_of_pytorch() -> None:
    """With the same seed, at another size too; without calls of PyTorch's operators they are refused."""
    model, x = Random(), torch.rand(3)
    options: dict[str, Any] = {"kernels": "none", "database": False}
    executable = tkc.compile(model, (x,), dynamic_shapes=({0: Dim("rows")},), **options)
    for given in (x, torch.rand(5)):
        torch.manual_seed(0)
        expected = model(given)
        torch.manual_seed(0)
        torch.testing.assert_close(executable(given), expected)
    with pytest.raises(tkc.UnsupportedModelError, match=r"aten\.randn\.default of complex tensors.*fallback=True"):
        tkc.compile(model, (x,), fallback=False, **options)
