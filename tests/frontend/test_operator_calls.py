"""Operators without a converter, called in PyTorch: right, named in the report, and compiled around."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tests.captured_calls import captured
from tests.frontend.whole_models import Model, called, compiled

Arguments = tuple[Any, ...]


def check(executable: tkc.Executable, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """As PyTorch has it, from the same seed."""
    torch.manual_seed(0)
    expected = function(*inputs)
    torch.manual_seed(0)
    found = executable(*inputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
ROWS = Dim("rows", min=2, max=1000)

# Each between operators that are compiled.
DATA_DECIDES_SIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: torch.relu(x)[torch.nonzero(x[:, 0] > 0)[:, 0]] @ torch.ones(4, 3),
    "nonzero of all axes": lambda x: torch.nonzero(x + 1 > 1) * 2,
    "nonzero as tuple": lambda x: sum(torch.nonzero(x > 0, as_tuple=True)),
    "masked_select": lambda x: torch.masked_select(x, x > 0) * 2 + 1,
    "mask as index": lambda x: (x[x > 0] * 2).sum(),
    "mask of rows": lambda x: torch.softmax(x[x.sum(1) > 0], -1),
    "unique": lambda x: torch.unique(x.sign().long()) + 1,
    "unique with counts": lambda x: torch.unique(x.sign().long(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).long().flatten()) * 2,
    "bincount": lambda x: torch.bincount((x > 0).long().flatten() * 3) + 1,
    "repeat_interleave": lambda x: torch.repeat_interleave(x * 2, (x[:, 0] > 0).long() * 2, 0) + 1,
    "two selections": lambda x: x[x > 0].sum() + torch.nonzero(x < 0).float().mean(0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x[x > 0] * 2),
    "masked_scatter of rows": lambda x: x.masked_scatter((x[:, :1] > 0), x[x[:, 0] > 0].exp()),
    "two selections of one size": lambda x: torch.nonzero(x > 0)[:, 0] + torch.nonzero(x > 0)[:, 1] * 2,
    "write at what was found": lambda x: (x * 1).index_put(
        (torch.nonzero(x > 0)[:, 0], torch.nonzero(x > 0)[:, 1]), torch.tensor(5.0)
    ),
    "selections one behind the other": lambda x: torch.cat([x[x > 0], x[x < 0] * 2]) + 1,
    "argwhere": lambda x: torch.argwhere(x > 0.5) + 1,
}


@pytest.mark.parametrize("name", DATA_DECIDES_SIZES)
@pytest.mark.daily(2)
def test_one_compilation_serves_every_count(name: str) -> None:
    """None among them, and all, at several sizes of the input."""
    function = DATA_DECIDES_SIZES[name]
    executable = compiled(function, X, dynamic_shapes=(({0: ROWS},),))
    assert bool(called(executable)) == ("unique" in name)
    for x in (X, torch.randn(9, 4), torch.rand(2, 4) + 0.1, -torch.rand(5, 4) - 0.1, torch.zeros(3, 4)):
        check(executable, function, x)


SAME_SIZES: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "solve": (lambda a, b: torch.linalg.solve(a @ a.T + torch.eye(4), b) + 1, (torch.randn(4, 4), torch.randn(4, 3))),
    "svd": (lambda a: torch.linalg.svdvals(a * 2).sum(), (torch.randn(4, 6),)),
    "eigh": (lambda a: torch.linalg.eigh(a @ a.T)[0] * 2, (torch.randn(4, 4),)),
    "det": (lambda a: torch.linalg.det(a) + 1, (torch.randn(4, 4),)),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.T + torch.eye(4)) @ a, (torch.randn(4, 4),)),
    "qr": (lambda a: torch.linalg.qr(a)[1].abs() + 1, (torch.randn(5, 3),)),
    "gcd": (lambda a: torch.gcd(a * 2, a + 6) + 1, (torch.arange(8),)),
    "polygamma": (lambda a: torch.polygamma(21, a) * 2, (torch.randn(8),)),
    "dtype argument": (lambda a: torch.nansum(torch.polygamma(21, a), dtype=torch.float64), (torch.rand(8) + 1,)),
    "rand": (lambda a: a + torch.rand(3), (torch.rand(3),)),
    "randn_like twice": (lambda a: torch.randn_like(a) - torch.randn_like(a), (torch.rand(3, 5),)),
    "randperm": (lambda a: a[torch.randperm(5)], (torch.rand(5),)),
    "multinomial": (lambda a: torch.multinomial(a.softmax(0), 3), (torch.rand(7),)),
    "bernoulli": (lambda a: torch.bernoulli(a) * 3, (torch.rand(20),)),
    "bfloat16": (lambda a: torch.nextafter(a, a * 2) + 1, (torch.rand(9).bfloat16() + 1,)),
    "transposed operand": (lambda a: torch.polygamma(21, a.T) @ a, (torch.rand(4, 3) + 1,)),
    "rfft": (lambda a: torch.fft.rfft(a * 2).abs(), (torch.randn(4, 9),)),
    "fft of two axes": (lambda a: torch.fft.fft(torch.fft.fft(a, dim=-1), dim=-2).real, (torch.randn(2, 4, 8),)),
    "fft2": (lambda a: torch.fft.fft2(a + 1).imag, (torch.randn(4, 8),)),
    "convolution": (
        lambda a, b: torch.fft.irfft(torch.fft.rfft(a, 16) * torch.fft.rfft(b, 16), 16),
        (torch.randn(4, 8), torch.randn(4, 8)),
    ),
    "ifft": (lambda a: torch.fft.ifft(torch.fft.fft(a, norm="ortho") * (1 + 2j)).abs(), (torch.randn(4, 8),)),
    "double ifft": (lambda a: torch.fft.ihfft(a).real + 1, (torch.randn(4, 8).double(),)),
    "stft": (lambda a: torch.stft(a, 8, window=torch.hann_window(8), return_complex=True).abs(), (torch.randn(40),)),
    "istft": (
        lambda a: torch.istft(
            torch.stft(a, 8, window=torch.hann_window(8), return_complex=True), 8, window=torch.hann_window(8)
        ),
        (torch.randn(40),),
    ),
    "no elements": (lambda a: torch.polygamma(21, a) + 1, (torch.rand(0, 3),)),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", SAME_SIZES)
def test_results_are_pytorchs(name: str) -> None:
    """Random ones with PyTorch's own generator."""
    function, inputs = SAME_SIZES[name]
    executable = compiled(function, *inputs)
    assert called(executable) or name in ("no elements", "bfloat16")  # whose nextafter is compiled
    check(executable, function, *inputs)
    check(executable, function, *(x.flip(0) for x in inputs))


def test_a_number_of_a_tensor_is_a_size() -> None:
    """Nothing is computed from one that the model was not exported for."""

    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        n = count.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        return x.narrow(0, 0, n).sum(0) + torch.zeros(n).sum()

    executable = compiled(function, X, torch.tensor(2))
    for n in (0, 3, 6):
        check(executable, function, X, torch.tensor(n))
    for n in (7, -1):
        with pytest.raises(tkc.InputError, match=rf"is {n}; it was exported for 0 to 6"):
            executable(X, torch.tensor(n))


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["read", "written", "added"])
def test_sizes_of_data_that_do_not_fit_are_an_error(name: str) -> None:
    """As PyTorch has it: nothing is read past the end of the shorter one."""

    def function(x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.nonzero(x > 0)[:, 0], torch.nonzero(x < 0)[:, 1]
        if name == "read":
            return x[rows, columns] * 2
        return (x * 1).index_put((rows, columns), torch.tensor(5.0)) if name == "written" else rows + columns

    fits, unfit = torch.tensor([[1.0, -1], [-2, 3]]), torch.tensor([[1.0, 1], [2, -3], [1, 1], [1, -1]])
    with pytest.raises((IndexError, RuntimeError)):
        function(unfit)
    executable = compiled(function, fits, dynamic_shapes=(({0: ROWS},),))
    check(executable, function, fits)
    with pytest.raises(tkc.Error):
        executable(unfit)


def test_a_float_of_a_tensor_is_an_argument() -> None:
    """As Python's float that it is, of no dtype of its own."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        factor = y.item()
        return (torch.arange(4) * factor + torch.clamp(x, max=factor)).exp()

    y = torch.tensor(0.3, dtype=torch.float64)
    executable = compiled(function, torch.randn(6, 4), y)
    assert called(executable) == {}  # generated code reads it
    check(executable, function, X, y)
    check(executable, function, X, y - 1)


def test_what_a_model_asserts_of_a_size_is_checked() -> None:
    """Before anything is computed from it, with the line that asserts it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chosen = torch.masked_select(x, x > 0)
        torch._check(chosen.shape[0] == y.shape[0] * 2)
        return chosen.reshape(-1, 2) + y[:, None]

    x = torch.tensor([1.0, -1, 2, 3, -2, 4])
    executable = compiled(function, x, torch.ones(2))
    check(executable, function, x, torch.ones(2))
    with pytest.raises(tkc.InputError, match=r"exported for .*does not hold"):
        executable(x.abs(), torch.ones(2))


def test_what_a_converter_refuses_is_called() -> None:
    """And says why."""
    executable = compiled(lambda x: torch.cumsum(x, 0) + torch.polygamma(21, x), X)
    assert list(called(executable)) == ["aten::polygamma"]
    (use,) = executable.report.operators
    assert "no converter" in use.why and "whole_models.py" in use.nodes[0]
    assert "Called in PyTorch" in str(executable.report) and "aten::polygamma" in repr(executable)


def test_without_fallback_each_is_refused_by_name() -> None:
    """All at once, with the cure."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"aten._unique2[^$]*aten.polygamma[^$]*fallback=True"):
        compiled(lambda x: torch.polygamma(21, torch.unique(x)), X, fallback=False)


def test_operators_have_the_names_that_users_know() -> None:
    """Not TKC's own for Fourier transforms, nor PyTorch's for operators in a fixed order."""
    with pytest.raises(tkc.UnsupportedModelError, match=r"aten._fft_r2c.default") as refused:
        compiled(lambda x: torch.fft.rfft(torch.linalg.inv(x)).abs(), torch.eye(4), fallback=False)
    assert "aten.linalg_inv_ex.default" in str(refused.value)
    assert not any(name in str(refused.value) for name in ("tkc.", "with_effects", "token"))


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda y: y.select(0, 4), 5),
        (lambda y: torch.nn.functional.interpolate(y[None, None], size=3), 1),
        (lambda y: y.unfold(0, 4, 1), 4),
        (lambda y: torch.nn.functional.avg_pool1d(y[None], 3), 3),
    ],
    ids=["select", "interpolate", "unfold", "pool"],
)
def test_too_few_elements_of_those_that_data_decide_are_refused(function: Any, least: int) -> None:
    """By the node that asks for more; what is not there was read."""
    executable = compiled(lambda x: function(x[x > 0]), torch.ones(6))
    x = torch.ones(6)
    x[least:] = -1
    torch.testing.assert_close(executable(x), function(x[x > 0]))
    x[least - 1] = -1
    with pytest.raises(tkc.InputError, match=rf">= {least} \(.*in forward\)"):
        executable(x)


def _mine(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """A custom operator of the test's library."""
    operator = torch.library.custom_op(f"tkc_tests_declared::{name}", function, mutates_args=())
    operator.register_fake(fake)
    return operator


def _as_double(x: torch.Tensor) -> torch.Tensor:
    return x.double()


def _first(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone()


def _with_axis(x: torch.Tensor) -> torch.Tensor:
    return x[None].clone()


def _half(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2].clone()


def _one(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1]


@pytest.mark.parametrize(
    ("function", "fake", "read", "message"),
    [
        (_as_double, torch.empty_like, None, r"returned float64 \[3\] as result 0; its fake .* has float32 \[3\]"),
        (_first, torch.empty_like, None, r"returned float32 \[1\] as result 0; its fake .* has float32 \[3\]"),
        (_with_axis, torch.empty_like, None, r"returned float32 \[1, 3\] as result 0; .* has float32 \[3\]"),
        (_one, lambda x: [torch.empty_like(x)] * 2, 0, "returned 1 results; its fake function has 2"),
    ],
    ids=["dtype", "size", "rank", "count"],
)
def test_an_operator_whose_fake_function_is_wrong_is_named(
    function: Callable[..., Any], fake: Callable[..., Any], read: int | None, message: str
) -> None:
    """With what it returned, and what was declared: the model was compiled for that."""
    operator = _mine(f"wrong{function.__name__}", function, fake)
    executable = compiled(lambda x: (operator(x) if read is None else operator(x)[read]) * 2, torch.ones(3))
    for _ in range(2):
        with pytest.raises(tkc.OperatorError, match=f"wrong{function.__name__}.* {message}"):
            executable(torch.ones(3))


def test_an_operator_that_returns_another_symbolic_size_is_named() -> None:
    """Generated code finds that sizes do not fit; the message says who may be at fault."""
    operator = _mine("half", _half, torch.empty_like)
    executable = tkc.compile(Model(lambda x: operator(x) + x), (X,), dynamic_shapes=(({0: ROWS},),))
    with pytest.raises(tkc.InputError, match="tkc_tests_declared::half returned another shape than its fake function"):
        executable(X)


def _count(x: torch.Tensor) -> int:
    return int((x > 0).sum())


def _with_count(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * 2, _count(x)


@pytest.mark.daily(1)
def test_integers_of_operators_are_sizes() -> None:
    """Which only the call knows; alone, beside tensors, and with those that nothing reads."""
    new_size = lambda: torch.library.get_ctx().new_dynamic_size()  # noqa: E731
    alone = _mine("count", _count, lambda x: new_size())
    beside = _mine("with_count", _with_count, lambda x: (torch.empty_like(x), new_size()))
    cases = [
        lambda x: torch.arange(alone(x)) * 2,
        lambda x: (beside(x)[0] + 1, torch.zeros(beside(x)[1]) + 3),
        lambda x: x[: alone(x)].sum() if x.ndim == 1 else x * alone(x),
        lambda x: beside(x)[0].exp(),
    ]
    for function in cases:
        executable = compiled(function, X)
        for x in (X, -X.abs(), X.abs() + 1):
            torch.testing.assert_close(executable(x), function(x))
        with pytest.raises(tkc.UnsupportedModelError, match="tkc_tests_declared"):
            tkc.compile(Model(function), (X,), fallback=False)


def test_an_operator_that_fails_is_named() -> None:
    """With what it was called with; the next call works."""
    executable = compiled(lambda a: torch.linalg.cholesky(a) + 1, torch.eye(3))
    with pytest.raises(
        tkc.OperatorError, match=r"aten::linalg_cholesky.* failed for float32 \[3, 3\].*positive-definite"
    ):
        executable(-torch.eye(3))
    torch.testing.assert_close(executable(torch.eye(3)), torch.eye(3) + 1)


@torch.library.custom_op("tkc_tests::keeps", mutates_args=())
def keeps(x: torch.Tensor, counts: list[int], scale: float, turned: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results, one of another layout in memory."""
    return (x.flip(0) if turned else x.clone()) * scale, x.new_ones(x.shape[::-1]).T * sum(counts)


@keeps.register_fake
def _(x: torch.Tensor, counts: list[int], scale: float, turned: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def test_operators_of_other_libraries() -> None:
    """With arguments of several kinds, at a size that is symbolic."""

    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = torch.ops.tkc_tests.keeps(x + 1, [1, 2], float("inf"), turned=True)
        return left * right

    executable = compiled(function, X, dynamic_shapes=(({0: ROWS},),))
    assert called(executable) == {"tkc_tests::keeps": 1}
    check(executable, function, X)
    check(executable, function, torch.randn(3, 4))


@torch.library.custom_op("tkc_tests::lies", mutates_args=())
def lies(x: torch.Tensor) -> torch.Tensor:
    """One row less than it says."""
    return x[1:].clone()


@lies.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_result_of_another_shape_is_an_error() -> None:
    """Generated code would read past its end."""
    executable = compiled(lambda x: torch.ops.tkc_tests.lies(x) + 1, X)
    with pytest.raises(tkc.Error):
        executable(X)


@pytest.mark.daily(1)
def test_an_artifact_says_what_it_needs(tmp_path: Path) -> None:
    """It runs where the operator is known, and is refused by its name where it is not."""
    function = SAME_SIZES["svd"][0]
    executable = compiled(function, torch.randn(4, 6))
    loaded = tkc.load(executable.save(tmp_path / "svd.tkc"))
    check(loaded, function, torch.randn(4, 6))
    assert called(loaded) == called(executable)

    compiled(lambda x: torch.fft.rfft(x).abs(), X).save(tmp_path / "fft.tkc")
    call = f"import tkc, torch; print(tkc.load({str(tmp_path / 'fft.tkc')!r})(torch.ones(6, 4))[0, 0].item())"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout == "4.0\n"

    compiled(lambda x: torch.ops.tkc_tests.keeps(x, [], 2.0)[0], X).save(tmp_path / "keeps.tkc")
    program = textwrap.dedent(f"""
        import tkc
        try:
            tkc.load({str(tmp_path / "keeps.tkc")!r})
        except tkc.ArtifactError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "it calls tkc_tests::keeps, which PyTorch does not know here; import what registers it first" in done.stdout


def test_threads_call_at_once() -> None:
    """Each with its own inputs, and its own errors."""
    executable = compiled(lambda a: torch.linalg.cholesky(a) * 2, torch.eye(3))
    wrong: list[object] = []

    def work(scale: float) -> None:
        for _ in range(100):
            try:
                found = executable(torch.eye(3) * scale)
                if scale < 0 or not torch.allclose(found, torch.eye(3) * scale**0.5 * 2):
                    wrong.append(found)
            except tkc.OperatorError as error:
                if scale > 0:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1.0, 4.0, -1.0, 9.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _update(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(1.0) * 2


def _update_of_a_view(x: torch.Tensor) -> torch.Tensor:
    x[:, :-1] = 1.0
    return x.sum()


def _update_of_a_result(x: torch.Tensor) -> torch.Tensor:
    y = x + 1.0
    y[1:].mul_(3.0)
    return y


@pytest.mark.parametrize("function", [_update, _update_of_a_view, _update_of_a_result])
def test_no_update_is_lost_where_pytorch_cannot_decompose(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process without CUDA that was forked from one with it: in-place operators are refused, not called."""

    def fails(*_: object) -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr("tkc.frontend.torch.simplification._decomposed", fails)
    with pytest.raises(tkc.UnsupportedModelError, match="Cannot re-initialize CUDA"):
        compiled(function, torch.ones(3, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nonzero", "masked_select", "unique", "two selections"])
def test_sizes_that_data_decides_on_a_gpu(name: str) -> None:
    """On the caller's stream, with no wait but PyTorch's own."""
    function = DATA_DECIDES_SIZES[name]
    with torch.device("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        executable = tkc.compile(Model(function), (X.cuda(),), target="cuda", dynamic_shapes=(({0: ROWS},),))
        for x in (X.cuda(), torch.randn(9, 4), -torch.rand(5, 4) - 0.1):
            torch.testing.assert_close(executable(x), function(x))


@pytest.mark.gpu
def test_a_callers_own_cuda_graph_has_the_calls_in_it() -> None:
    """``torch.cuda.graph`` around a call, replayed with other values: what operators allocate is the graph's."""
    function = lambda x: torch.polygamma(21, x + 1) + torch.special.bessel_j0(x * 2)  # noqa: E731
    x = torch.rand(64, device="cuda")
    executable = tkc.compile(Model(function), (x,), target="cuda")
    assert called(executable)
    graph, y = captured(lambda: executable(x))
    for _ in range(3):
        x.copy_(torch.rand(64))
        graph.replay()
        torch.testing.assert_close(y, function(x))


@pytest.mark.gpu
def test_triton_kernels_as_operators() -> None:
    """At any number of rows, on the caller's stream."""
    pytest.importorskip("triton")
    from tests.frontend.triton_operator import scaled

    function = lambda x: scaled(x + 1, 3.0) * 2  # noqa: E731
    executable = tkc.compile(Model(function), (X.cuda(),), target="cuda", dynamic_shapes=(({0: ROWS},),))
    assert called(executable) == {"tkc_tests_triton::scaled": 1}
    for rows in (2, 6, 999):
        x = torch.randn(rows, 4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.testing.assert_close(executable(x), (x + 1) * 6)


@pytest.mark.speed
@pytest.mark.parametrize(
    ("function", "bound"),
    [
        (lambda a: torch.polygamma(21, a), 1.0),
        (lambda a: torch.linalg.qr(a.reshape(4, 4))[0].reshape(-1), 2.0),
        (torch.unique, 2.0),
    ],
    ids=["one result", "two results", "three results, of sizes that data decides"],
)
def test_a_call_costs_little_over_pytorchs_own(function: Callable[[torch.Tensor], torch.Tensor], bound: float) -> None:
    """``bound`` times ``torch.from_dlpack`` of a tensor; 2.1 times is 15 µs on two idle cores.

    By turns, the median of many; the least of five ratios, as what else runs makes calls longer alone.
    """
    import time

    x = torch.rand(16) + 1

    def repeated(times: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(a: torch.Tensor) -> torch.Tensor:
            for _ in range(times):
                a = function(a) + 1
            return a

        return run

    executables = {times: compiled(repeated(times), x) for times in (1, 4)}

    def median(function: Callable[[], object]) -> float:
        times = []
        for _ in range(2000):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    def ratio() -> float:
        own = median(lambda: repeated(4)(x)) - median(lambda: repeated(1)(x))
        ours = median(lambda: executables[4](x)) - median(lambda: executables[1](x))
        return (ours - own) / 3 / median(lambda: torch.from_dlpack(x))

    ratios = [ratio() for _ in range(5)]
    assert min(ratios) < bound, ratios
