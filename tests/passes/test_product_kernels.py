"""The runtime's products by themselves, in each width of vectors: all sizes, edges and vectors, against float64."""

from __future__ import annotations

import itertools
import os
import random
import threading

import pytest
import torch
import torch.nn.functional as F

from tests.passes.products_library import ProductsLibrary, bias_and_relu
from tkc.compiler import code
from tkc.targets import resolve_target

WIDEST = code.product_lanes(resolve_target("cpu"))
LANES = [lanes for lanes in (16, 8, 4) if lanes <= WIDEST]


@pytest.fixture(scope="module", params=LANES)
def products(request: pytest.FixtureRequest) -> ProductsLibrary:
    """In one width of vectors that this CPU has, with two threads."""
    return ProductsLibrary(request.param, 2)


def agrees(found: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor) -> None:
    """As near as sums of float32 are: within some roundings of the sum of magnitudes."""
    assert found.shape == exact.shape
    assert bool(((found - exact).abs() <= 2e-6 * magnitude + 1e-30).all())


ROWS = (0, 1, 2, 5, 6, 7, 13, 64, 65, 259)


@pytest.mark.daily(1)
@pytest.mark.parametrize("once", [False, True], ids=["shared", "packed"])
def test_linear_layers(products: ProductsLibrary, once: bool) -> None:
    """Of any number of rows, whole and partial tiles and vectors, sums of several chunks, and both orders of axes."""
    products.packs(once)
    for (k, n), transposed in itertools.product([(1, 1), (5, 3), (61, 83), (1100, 40), (2048, 17)], (False, True)):
        weight, bias = torch.randn((k, n) if transposed else (n, k)), torch.randn(n)
        matrix = (weight if transposed else weight.T).double()
        for rows in ROWS:
            x = torch.randn(rows, k)
            exact, magnitude = x.double() @ matrix + bias, x.abs().double() @ matrix.abs() + bias.abs()
            for _ in range(1 + once):
                agrees(products.linear(x, weight, bias_and_relu(bias), transposed=transposed), exact.relu(), magnitude)


def _sizes(seed: int, count: int) -> list[tuple[int, ...]]:
    """``(axes, channels, outputs, *size, *kernel, stride, padding, dilation)`` of convolutions that there are."""
    chosen, found = random.Random(seed), []
    while len(found) < count:
        axes = chosen.choice((1, 2, 2, 2))
        size = [chosen.randint(1, 20) for _ in range(axes)]
        kernel = [chosen.choice((1, 2, 3, 3, 5, 7, 8)) for _ in range(axes)]
        stride, padding, dilation = (
            chosen.choice((1, 1, 2, 3)),
            chosen.choice((0, 1, 2, 3, 5)),
            chosen.choice((1, 1, 2)),
        )
        if all(n + 2 * padding >= dilation * (k - 1) + 1 for n, k in zip(size, kernel, strict=True)):
            channels = chosen.choice((1, 2, 3, 5, 16, 17, 24, 33, 48, 72))
            outputs = chosen.choice((1, 3, 5, 16, 17, 40, 64, 72, 100))
            found.append((axes, channels, outputs, *size, *kernel, stride, padding, dilation))
    return found


@pytest.mark.daily(1)
@pytest.mark.parametrize("depthwise", [False, True], ids=["all channels", "depthwise"])
@pytest.mark.parametrize("once", [False, True], ids=["shared", "packed"])
def test_convolutions(products: ProductsLibrary, depthwise: bool, once: bool) -> None:
    """Unusual channels, kernels larger than the image, strides beyond them, gaps, one axis and two, empty batches."""
    products.packs(once)
    convolve = (None, F.conv1d, F.conv2d)
    for axes, channels, outputs, *rest, stride, padding, dilation in _sizes(7 + depthwise, 150):
        size, kernel = rest[:axes], rest[axes:]
        channels = max(channels, 2) if depthwise else channels
        outputs = channels if depthwise else outputs
        for batch in (0, 3):
            x = torch.randn(batch, channels, *size)
            weight, bias = torch.randn(outputs, 1 if depthwise else channels, *kernel), torch.randn(outputs)
            options = (stride, padding, dilation, channels if depthwise else 1)
            exact = convolve[axes](x.double(), weight.double(), bias.double(), *options)
            magnitude = convolve[axes](x.double().abs(), weight.double().abs(), bias.double().abs(), *options)
            found = products.convolution(x, weight, [(stride, padding, dilation)] * axes, bias_and_relu(bias))
            agrees(found, exact.relu(), magnitude)


def test_means(products: ProductsLibrary) -> None:
    """Of channels that are no whole vectors, and of one pixel."""
    for sizes in ((2, 72, 7, 9), (3, 1, 1, 1), (1, 17, 5), (2, 133, 4, 4)):
        x = torch.randn(sizes)
        axes = tuple(range(2, len(sizes)))
        agrees(products.means(x), x.double().mean(axes), x.double().abs().mean(axes))


@pytest.mark.parametrize("depthwise", [False, True], ids=["all channels", "depthwise"])
def test_what_is_no_number_stays(products: ProductsLibrary, depthwise: bool) -> None:
    """NaN and infinities come out where a sum has them, and nowhere else."""
    x, weight = torch.randn(1, 20, 9, 11), torch.randn(20, 1 if depthwise else 20, 3, 3)
    x[0, 3, 2, 5], x[0, 7, 8, 10], x[0, 11, 0, 0] = torch.nan, torch.inf, -torch.inf
    exact = F.conv2d(x.double(), weight.double(), None, 1, 1, 1, 20 if depthwise else 1)
    found = products.convolution(x, weight, [(1, 1, 1)] * 2)
    torch.testing.assert_close(found.double(), exact, equal_nan=True, rtol=1e-4, atol=1e-4)
    rows, matrix = torch.randn(70, 40), torch.randn(30, 40)
    rows[5, 3], rows[6, 39], rows[7, 1] = torch.nan, torch.inf, -torch.inf
    for count in (8, 70):
        exact = rows[:count].double() @ matrix.double().T
        torch.testing.assert_close(
            products.linear(rows[:count], matrix).double(), exact, equal_nan=True, rtol=1e-4, atol=1e-4
        )


def test_a_weight_may_be_read_in_two_ways(products: ProductsLibrary) -> None:
    """As ``[n, k]`` and as ``[k, n]``, and in part: what was packed for one is none for the other."""
    products.packs(True)
    weight, x = torch.randn(96, 96), torch.randn(80, 96)
    for _ in range(2):
        torch.testing.assert_close(products.linear(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(products.linear(x, weight, transposed=True), x @ weight, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(products.linear(x, weight[:40]), x @ weight[:40].T, rtol=1e-4, atol=1e-4)


def test_no_more_threads_work_than_may() -> None:
    """A pool's threads begin with the first call that takes more than one."""
    library, before = ProductsLibrary(WIDEST, 3), len(os.listdir("/proc/self/task"))
    x, weight = torch.randn(300, 200), torch.randn(130, 200)
    library.packs(False, most_threads=1)
    alone = library.linear(x, weight)
    assert len(os.listdir("/proc/self/task")) == before
    for most in (2, 0):
        library.packs(False, most_threads=most)
        assert torch.equal(library.linear(x, weight), alone)
    assert len(os.listdir("/proc/self/task")) == before + 2


def test_threads_make_no_difference() -> None:
    """The same bits with one thread and with two, from several callers at once, and in a forked child."""
    x, image = torch.randn(300, 200), torch.randn(2, 24, 30, 31)
    weight, filters, deep = torch.randn(130, 200), torch.randn(70, 24, 3, 3), torch.randn(24, 1, 5, 5)

    def results(library: ProductsLibrary) -> list[torch.Tensor]:
        axes = [(1, 1, 1)] * 2
        return [
            *(library.linear(x[:rows], weight) for rows in (1, 40, 300)),
            library.convolution(image, filters, axes),
            library.convolution(image, deep, axes),
            library.means(image),
        ]

    alone, together = ProductsLibrary(WIDEST, 1), ProductsLibrary(WIDEST, 2)
    expected = results(alone)
    different: list[bool] = []

    def check(library: ProductsLibrary) -> bool:
        return all(map(torch.equal, results(library), expected))

    def call() -> None:
        different.append(not all(check(together) for _ in range(5)))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert different == [False] * 4
    child = os.fork()
    if child == 0:
        os._exit(0 if check(together) else 1)
    assert os.waitpid(child, 0)[1] == 0
