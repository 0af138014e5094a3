"""Sources of libraries: without the library they have no cases; weights hide nothing; values are read as written."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from . import __main__, record, sources
from .diffusers_models import WRITTEN, _cases, _value
from .modules import exported, filled, first, runs
from .sources import LIBRARIES, NotConstructibleError

installed = pytest.mark.parametrize("name", [each for each, library in LIBRARIES.items() if find_spec(library)])
SMALL = {
    "diffusers": "T2IAdapter",
    "pyg": "GATConv",
    "timm": "convmixer",
    "torchaudio": "RNNT",
    "torchvision": "resnet18",
}


def test_a_library_that_is_not_installed_has_no_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is named; the others have theirs."""
    monkeypatch.setattr(sources, "find_spec", lambda name: None if name in ("timm", "torch_geometric") else object())
    assert sources.absent() == ["pyg", "timm"]
    assert not {"pyg", "timm"} & set(sources.sources()) and {"torch", "torchvision"} <= set(sources.sources())
    page = record.page({"commit": "0", "torch": "0", "transformers": "0", "total": 0, "absent": sources.absent()}, [])
    assert "Not installed, so nothing of them was run anew: pyg, timm." in page


@pytest.mark.parametrize(
    "name, words",
    [("torchvisoin", "no source is called torchvisoin; there are torch,"), ("timm", "not installed: pip")],
)
def test_a_source_that_there_is_not(monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    """Is no empty run that ends well."""
    monkeypatch.setattr(sources, "find_spec", lambda library: None)
    monkeypatch.setattr(sys, "argv", ["tests.coverage", "--source", name])
    with pytest.raises(SystemExit, match=words):
        __main__.main()


@installed
def test_an_installed_library(name: str) -> None:
    """Its names are sorted, and a case is made of each."""
    source = sources.sources()[name]
    assert source.names() == sorted(set(source.names())) and SMALL[name] in source.names()
    example = source.make(SMALL[name], source.variants(SMALL[name])[0])
    assert not example.module.training and runs(example.module, example.args, example.kwargs) is not None


def test_weights_that_hide_nothing() -> None:
    """Constants and statistics are others, numbers that were drawn are as before, and it is the same each time."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
        nn.init.zeros_(model[1].weight)
        return model

    one, before = filled(made()), made()
    assert torch.equal(one[0].weight, before[0].weight) and not one.training
    changed = [one[1].weight, one[1].bias, one[1].running_mean, one[1].running_var, one[2].weight]
    assert all(each.min() < each.max() for each in changed) and one[1].running_var.min() > 0
    again = filled(made()).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in one.state_dict().items())


def test_code_that_is_read_where_it_cannot_be_run() -> None:
    """A number of rows that depends on data; and the error of the run where neither works."""

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(int(at.max()) + 1, 3).index_add(0, at, x)

    class Neither(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    args = torch.randn(4, 3), torch.tensor([0, 2, 2, 1])
    torch.testing.assert_close(exported(Counting(), args, {}).module()(*args), Counting()(*args))
    with pytest.raises(Exception, match="data-dependent"):
        exported(Neither(), (torch.randn(3),), {})


def test_the_first_that_can_be_made() -> None:
    """The first error is told where none can."""

    def failing(reason: str) -> Any:
        def make() -> int:
            raise ValueError(reason)

        return make

    assert first([failing("a"), lambda: 3, failing("b")]) == 3
    with pytest.raises(NotConstructibleError, match="ValueError: a"):
        first([failing("a"), failing("b")])


def test_values_of_the_table() -> None:
    """Each way to write one; every case of diffusers is written in them."""
    assert _value({"shape": [2, 3]}).shape == (2, 3) and _value([1, {"tuple": [2, "x"]}]) == [1, (2, "x")]
    assert torch.equal(_value({"values": [[1, 2]]}), torch.tensor([[1, 2]])) and _value({"dict": {"0": 1}}) == {0: 1}
    assert torch.equal(_value({"all": 1, "shape": [2], "dtype": "int64"}), torch.tensor([1, 1]))
    ids = _value({"ids": 3, "shape": [50], "dtype": "float32"})
    assert ids.dtype == torch.float32 and set(ids.tolist()) == {0.0, 1.0, 2.0}
    cases = _cases()
    assert len(cases) > 100 and WRITTEN.keys() <= cases.keys()
    for case in cases.values():
        assert set(case) == {"config", "inputs"} and [_value(value) for value in case["inputs"].values()]
