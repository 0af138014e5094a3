"""Functions under ``torch.compile(backend="tkc")`` return, share and change what they do in PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.dynamo.comparing import check_compiled, check_same
from tkc.dynamo.backend import tkc
from tkc.errors import InputError, UnsupportedModelError

randn = torch.randn


def compiled(function, **options):
    """``function`` compiled by TKC, as one graph."""
    return torch.compile(function, backend=tkc, fullgraph=True, **options)


def test_results_are_no_inputs() -> None:
    """What a copy, or an operator without effect, returns is not the memory of its input."""
    x = randn(4, 5)
    kept = x.clone()
    for result in compiled(lambda x: (x.clone(), x + 0, x * 1, x.clone().view(-1)))(x):
        result.add_(1)
    assert torch.equal(x, kept)


def test_views_share_the_memory_of_inputs() -> None:
    """And an input that is returned is the tensor that was given."""
    x = randn(3, 4)
    flat, itself, row = compiled(lambda x: (x.view(-1), x, x[1]))(x)
    assert itself is x
    flat.zero_()
    assert not x.any() and not row.any()


def test_views_share_the_memory_of_results() -> None:
    """Also the parts of a split, and under gradients."""

    def function(x):
        y = x + 1
        return y, y.view(-1), y.t(), y[0], y.split(2)[1]

    check_compiled(function, randn(4, 5))
    check_compiled(function, randn(4, 5, requires_grad=True))
    first, *views = compiled(function)(randn(4, 5))
    first.zero_()
    assert not any(view.any() for view in views)


def test_writes_into_inputs_and_views_of_them() -> None:
    """Inputs hold afterwards what they hold in PyTorch."""

    def function(x, y):
        x.add_(1)
        y[0].mul_(2)
        x[:, 0] = 3
        return x.sum() + y.sum()

    check_compiled(function, randn(4, 5), randn(3, 2))
    check_compiled(lambda x: x[1:].zero_(), randn(4, 10)[:, ::2])


def test_inputs_that_overlap() -> None:
    """Each write is seen through the other input."""

    def function(x, y):
        x.mul_(2)
        y.add_(1)
        return x + 0, y + 0

    memory, compiled_memory = torch.arange(6.0), torch.arange(6.0)
    expected = function(memory[:4], memory[2:])
    found = compiled(function)(compiled_memory[:4], compiled_memory[2:])
    check_same(expected, found)
    assert torch.equal(memory, compiled_memory)


@pytest.mark.parametrize(
    "x",
    [
        randn(4, 1).expand(4, 5),
        randn(3, 4, 5).permute(2, 0, 1),
        randn(20).as_strided((4, 5), (2, 1)),
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=["expanded", "permuted", "overlapping", "channels_last"],
)
def test_inputs_that_are_not_contiguous(x: torch.Tensor) -> None:
    """Their values are read where they lie."""
    check_compiled(lambda x: (x.sin() * 2, x.sum(0), x.transpose(0, 1)), x)


@pytest.mark.parametrize(
    ("function", "is_compiled"),
    [
        (lambda x: x.as_strided((2, 2), (2, 1)) + 1, True),
        (lambda x: x.as_strided((2, 2), (2, 1), 3) + 1, False),
        (lambda x: x.as_strided((2, 2), (9, 9)) + 1, False),
        (lambda x: (x + 1)[2:].as_strided((2, 2), (2, 1)) + 1, True),
        (lambda x: (x + 1).view(3, 4)[:, 1:].as_strided((2, 2), (2, 1)) + 1, False),
        (lambda x: (x.as_strided((2, 2), (2, 1), 4).add_(1), x + 1), False),
    ],
    ids=["beginning", "offset", "outside", "of a part", "of a gap", "written"],
)
def test_views_by_strides(function, is_compiled: bool, warned: list[str]) -> None:
    """Of a tensor inside of another's memory: they are what they are in PyTorch, if need be in PyTorch."""
    memory, compiled_memory = torch.arange(24.0), torch.arange(24.0)
    check_same(function(memory[2:14]), torch.compile(function, backend=tkc)(compiled_memory[2:14]))
    assert torch.equal(memory, compiled_memory) and bool(warned) != is_compiled


def test_results_lie_as_in_pytorch() -> None:
    """Strides are those that PyTorch's operators give."""
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check_compiled(lambda x: F.conv2d(x, torch.ones(2, 3, 1, 1)).relu(), x)
    check_compiled(lambda x: (x.sin().expand(4, 5), x.cos().permute(1, 0), x.t().contiguous().t()), randn(4, 1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_without_elements(dynamic: bool) -> None:
    """With known and with symbolic sizes."""
    check_compiled(lambda x: (x + 1, x.sum(0), torch.cat([x, x]), x @ x.t()), torch.empty(0, 4), dynamic=dynamic)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8]
)
def test_dtypes(dtype: torch.dtype) -> None:
    """Floats and integers of each width."""
    check_compiled(lambda x: (x * 2 + 1, x > 1, x.t(), x.amax(0)), (randn(4, 5) * 5).to(dtype))


def test_truth_values() -> None:
    """Logic of truth values."""
    check_compiled(lambda x: (~x, x.any(), x & x), randn(4, 5) > 0)


@pytest.mark.daily(1)
def test_complex_numbers() -> None:
    """Also conjugates, which PyTorch makes lazily, and gradients."""
    x = torch.randn(4, 5, dtype=torch.complex64)
    check_compiled(lambda x: (x * 2, x.abs(), x.real, x.conj() * x, torch.view_as_real(x), x.conj()), x)
    check_compiled(lambda x: (x * x).abs().sum(), x.clone().requires_grad_())


def test_not_a_number() -> None:
    """NaN and infinity are what they are in PyTorch."""
    x = randn(4, 5)
    x[0], x[1] = float("nan"), float("inf")
    check_compiled(lambda x: (x.relu(), x.amax(), x.softmax(-1), x.clamp(0, 1)), x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers(dynamic: bool | None) -> None:
    """Python's numbers and a tensor of one number; in and out, constant and symbolic."""

    def function(x, integer, real, truth, scalar):
        return x + integer, x * real, x if truth else -x, integer * 2, x * scalar, x.shape[0] * integer, None

    check_compiled(function, randn(4), -3, 2.5, True, torch.tensor(2.0), dynamic=dynamic)


def test_one_compilation_serves_every_integer() -> None:
    """Also negative ones, and those that no tensor has as a size."""
    call = compiled(lambda x, n: (x + n, n * 3 - 1, x.sum() * n), dynamic=True)
    x = randn(4)
    call(x, 5)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (-7, 2, 3, 2**40, -(2**40)):
            check_same((x + n, n * 3 - 1, x.sum() * n), call(x, n))


@pytest.mark.daily(1)
def test_integers_that_no_size_stands_for(warned: list[str]) -> None:
    """A call runs in PyTorch, or a graph that is traced with one, and one warning says so; writes are done once."""

    def function(x, n):
        x.add_(n)
        return x * 2, x[0]

    call = compiled(function, dynamic=True)
    for numbers in ((5, 2**62, -7, 2**62 + 7), (-(2**63), 3)):
        warned.clear()
        x = torch.tensor([1, 2])
        y = x.clone()
        for n in numbers:
            check_same(function(x, n), call(y, n))
        check_same(x, y)
        assert len(warned) == 1 and "is an input, and beyond those that a size can stand for" in warned[0]
        torch._dynamo.reset()
    strict = torch.compile(function, backend=tkc, dynamic=True, options={"fallback": False})
    strict(torch.tensor([1, 2]), 5)
    with pytest.raises(UnsupportedModelError, match="beyond those that a size"):
        strict(torch.tensor([1, 2]), 2**62)


def test_constants_that_are_returned_are_new_in_each_call() -> None:
    """What a caller writes into one call's is not in the next one's."""

    def function(x):
        return torch.tensor([1, 2]), torch.arange(3), torch.arange(6).view(2, 3).t(), torch.tensor(2.5), x

    call, x = compiled(function), randn(2)
    for _ in range(2):
        results = call(x)
        check_same(function(x), results)
        for result in results[:-1]:
            result.add_(7)


@pytest.mark.daily(1)
def test_results_of_sizes_that_data_decides_lie_as_in_pytorch() -> None:
    """Indices of ``nonzero`` lie axis by axis, and so does what is computed of them."""

    def function(x):
        places, chosen = x.nonzero(), x[x > 0]
        return places, places * 2, places.t() + 1, chosen[:, None] * torch.ones(3), chosen.expand(2, -1) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check_compiled(function, torch.tensor([[1.0, 0.0, -2.0], [3.0, 4.0, 0.0]]))


def test_a_graph_of_integers_alone() -> None:
    """Nothing is left to compile, and nothing is refused."""
    check_compiled(lambda x, n: (n * 2, x.shape[0] + n), randn(5), 7, dynamic=True)


def test_one_compilation_serves_every_size() -> None:
    """Also where a size is returned."""

    def function(x, y):
        return (x @ y.t()).softmax(-1).view(-1, 2).sum(0), x.shape[0]

    call = compiled(function, dynamic=True)
    call(randn(4, 8), randn(4, 8))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (6, 10, 100):
            x, y = randn(n, 8), randn(n, 8)
            check_same(function(x, y), call(x, y), 1e-4)


def test_a_size_that_is_marked() -> None:
    """``mark_dynamic`` makes one size symbolic."""
    call, x = compiled(lambda x: x.relu() + 1), randn(4, 5)
    torch._dynamo.mark_dynamic(x, 0)
    call(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        check_same(torch.ones(9, 5), call(torch.zeros(9, 5)))


def test_static_sizes_compile_anew() -> None:
    """Sizes of zero and one among them."""
    call = compiled(lambda x: x * x.shape[0], dynamic=False)
    for n in (3, 4, 1, 0):
        check_same(torch.ones(n) * n, call(torch.ones(n)))


def test_graph_breaks() -> None:
    """The graphs before and after a break that depends on data."""

    def function(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() if y.sum() > 0 else y.tan()

    check_compiled(function, torch.ones(4), fullgraph=False)
    check_compiled(function, -torch.ones(4).requires_grad_(), fullgraph=False)


def test_module_hooks() -> None:
    """Hooks before and after a module are traced."""
    module = nn.Linear(4, 4)
    module.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    module.register_forward_hook(lambda module, given, result: result * 2)
    check_compiled(module, randn(3, 4, requires_grad=True))


def test_gradient_modes() -> None:
    """``no_grad`` in and around a function, and ``inference_mode``."""
    module = nn.Linear(4, 4)

    def function(x):
        with torch.no_grad():
            y = module(x)
        return y + module(x)

    check_compiled(function, randn(3, 4, requires_grad=True))
    with torch.no_grad():
        check_compiled(function, randn(3, 4))
    with torch.inference_mode():
        x = randn(3, 4)
        check_same(module(x), compiled(module)(x))


def test_autocast() -> None:
    """In and around a function."""
    module = nn.Linear(4, 4)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)

    check_compiled(function, randn(3, 4), tolerance=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_compiled(lambda x: module(x).float() + 1, randn(3, 4, requires_grad=True), tolerance=2e-2)


def test_what_the_module_holds() -> None:
    """A buffer that a call writes into, and tensors that are made in it of Python's numbers."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count + torch.tensor([1.0, 2.0, 3.0])

    module, x = Counting(), randn(3)
    call = compiled(module)
    for step in range(1, 4):
        check_same(x + step + torch.tensor([1.0, 2.0, 3.0]), call(x))
    assert module.count.tolist() == [3, 3, 3]


def test_random_numbers_are_those_of_eager() -> None:
    """By the same seed, also where axes lie in another order in memory."""
    check_compiled(
        lambda x: (F.dropout(x, 0.5), torch.rand(3), torch.randn_like(x), torch.rand(3), torch.bernoulli(x.sigmoid())),
        randn(50),
    )
    check_compiled(lambda x: F.dropout(x.sin(), 0.5).cos(), randn(50, requires_grad=True))
    check_compiled(lambda x: F.dropout(x.permute(2, 0, 1).sin(), 0.5), randn(4, 5, 6))


@pytest.mark.daily(1)
def test_attention() -> None:
    """Forward alone, and with its backward pass."""

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    check_compiled(function, *(randn(2, 3, 8, 16) for _ in range(3)))
    check_compiled(function, *(randn(2, 3, 8, 16, requires_grad=True) for _ in range(3)))


@pytest.mark.daily(1)
def test_flex_attention() -> None:
    """With a mask that is made inside, which captures a tensor, and with one made beforehand."""
    q, k, v = (randn(2, 3, tokens, 16) for tokens in (8, 12, 12))
    document = torch.arange(12) // 5
    before = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 12, device="cpu")

    def function(q, k, v, document):
        def seen(b, h, i, j):
            return document[i] == document[j]

        made = create_block_mask(seen, None, None, q.shape[2], k.shape[2], device="cpu")
        return (
            flex_attention(q, k, v, score_mod=lambda x, b, h, i, j: x - (i - j).abs(), block_mask=made),
            flex_attention(q, k, v, block_mask=before, return_lse=True),
        )

    with torch.no_grad():
        check_compiled(function, q, k, v, document)


@pytest.mark.daily(1)
def test_regions_that_are_compiled_once() -> None:
    """``nested_compile_region``, whose calls are computed in place, one within another, with gradients."""
    layer = nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def inner(x):
        return layer(x).relu(), x.sum(0)

    @torch.compiler.nested_compile_region
    def outer(x):
        y, total = inner(x)
        return y + total

    check_compiled(lambda x: outer(outer(x)), randn(2, 4).requires_grad_())


@pytest.mark.daily(1)
def test_factorizations_check_their_errors() -> None:
    """As PyTorch's own error; the operators that check have an order, by tokens."""
    call = compiled(lambda x: (torch.linalg.cholesky(x) * 2, torch.linalg.inv(x + 1)))
    x = torch.eye(3) * 4
    check_same((torch.linalg.cholesky(x) * 2, torch.linalg.inv(x + 1)), call(x), strides=False)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        call(-x)


class _OwnError(Exception):
    pass


def test_what_called_operators_raise() -> None:
    """As it was raised, with a note of where; later calls work."""

    @torch.library.custom_op("tkc_test::raising", mutates_args=())
    def raising(x: torch.Tensor) -> torch.Tensor:
        if x[0] < 0:
            raise _OwnError("negative")
        return x * 2

    raising.register_fake(torch.empty_like)
    call, x = compiled(lambda x: raising(x) + 1), torch.ones(2)
    check_same(x * 2 + 1, call(x))
    with pytest.raises(_OwnError, match="negative") as raised:
        call(-x)
    assert "tkc_test::raising" in "".join(raised.value.__notes__)
    check_same(x * 2 + 1, call(x))


@pytest.mark.daily(1)
def test_bad_numbers_raise_as_in_pytorch() -> None:
    """Indices an ``IndexError``, assertions and divisions by zero a ``RuntimeError``."""

    def checked(x):
        torch._assert_async(x.sum() > 0, "negative")
        return x + 1

    for function, arguments, kind in (
        (lambda x, i: x[i] + 1, (randn(3), torch.tensor([3])), IndexError),
        (lambda x, y: x // y, (torch.tensor([1]), torch.tensor([0])), RuntimeError),
        (checked, (-torch.ones(2),), RuntimeError),
    ):
        with pytest.raises(kind) as raised:
            compiled(function)(*arguments)
        assert isinstance(raised.value, InputError)


def test_operators_that_are_called_in_place() -> None:
    """What TKC has no converter of runs in PyTorch, between compiled parts."""
    check_compiled(lambda x: (torch.linalg.eigvalsh(x @ x.t()), torch.fft.fft(x).abs()), randn(4, 4), tolerance=1e-4)
    check_compiled(lambda x: (x.nonzero(), x[x > 0]), randn(10), fullgraph=False)


def test_control_flow_and_transforms() -> None:
    """``torch.cond``, ``vmap`` and ``grad``."""
    check_compiled(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), randn(3))
    check_compiled(lambda x: torch.vmap(lambda y: y.sin().sum())(x), randn(3, 4))
    check_compiled(lambda x: torch.func.grad(lambda y: y.sin().sum())(x), randn(3))
