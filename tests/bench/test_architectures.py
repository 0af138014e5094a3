"""The benchmark of architectures, on tiny ones: what a row holds, and that one that fails does not end the others."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from tkc.bench import architectures, model
from tkc.bench.architecture_inputs import FAMILIES, PIXELS, Size
from tkc.bench.architectures import ARCHITECTURES, Architecture, _Measuring, bench_architectures
from tkc.bench.comparison import comparison
from tkc.errors import UsageError
from tkc.measure.record import Row, record

TINY = {"hidden_sizes": [8], "depths": [1], "num_stages": 1}
CPU = torch.device("cpu")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks of convolutions, of which one takes images of four channels, and gets three."""
    made = [Architecture("resnet", "vision", {"num_channels": 4}), Architecture("convnext", "vision", TINY)]
    monkeypatch.setattr(architectures, "ARCHITECTURES", {one.model_type: one for one in made})


@pytest.mark.daily(1)
@pytest.mark.usefixtures("tiny")
def test_one_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row says why, and tables and means leave it out; so does that of a reference that fails."""

    class Broken(torch.nn.Module):
        def forward(self, **_: object) -> None:
            raise ValueError("no such tile")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: Broken())
    failed, measured = bench_architectures(["resnet", "convnext"], CPU, torch.float32, ["eager", "compile"])
    assert failed.name == "vision resnet, 32 × 224²" and not failed.milliseconds and failed.ratio is None
    assert "channel" in str(failed.notes["failed"])
    assert measured.name == "vision convnext, 32 × 224²" and set(measured.milliseconds) == {"tkc auto", "eager"}
    assert measured.notes["compile failed"] == "ValueError: no such tile"
    assert measured.ratio == pytest.approx(measured.milliseconds["eager"] / measured.milliseconds["tkc auto"])
    assert measured.error is not None and measured.error < 1e-5
    found = record("architectures", [failed, measured, Row("vision one more", {"tkc auto": 1.0}, 2.0)], CPU)
    assert set(found.mean_ratios()) == {"vision"}
    assert comparison(found, found).row_count == 3


def test_unknown_names_are_refused() -> None:
    """Before anything is measured, architectures and references alike."""
    with pytest.raises(UsageError, match="no benchmark architecture lama"):
        next(bench_architectures(["resnet", "lama"], CPU, torch.float32))
    with pytest.raises(UsageError, match="there is no reference eagre"):
        next(bench_architectures(["resnet"], CPU, torch.float32, ["eagre"]))


def test_jobs_are_given_to_other_processes() -> None:
    """As they are: how to measure, and what."""
    measuring = _Measuring(CPU, torch.float32, ["eager"], None, Path("device.lock"))
    row, architecture = pickle.loads(pickle.dumps((measuring.rows, ARCHITECTURES["bert"])))
    assert row.__self__ == measuring and architecture == ARCHITECTURES["bert"]


def test_options_are_those_of_the_configurations() -> None:
    """A name that transformers does not know would be kept, and change nothing."""
    undeclared = {"head_dim", "norm_rel_ebd", "position_buckets", "share_att_key"}  # read where there are some
    undeclared |= {"bos_token_id", "eos_token_id", "pad_token_id"}  # as generation does, of whatever model
    for name, architecture in ARCHITECTURES.items():
        assert architecture.model_type == name and architecture.family in FAMILIES
        config = AutoConfig.for_model(name)
        unknown = set(architecture.options) - set(config.to_dict()) - set(config.attribute_map) - undeclared
        assert not unknown, f"{name} has no options {sorted(unknown)}"


def test_ends_of_branches_are_modules() -> None:
    """Those that an architecture names stand in it, and have something to shrink."""
    for architecture in ARCHITECTURES.values():
        if architecture.branch_ends:
            with torch.device("meta"):
                model = AutoModel.from_config(AutoConfig.for_model(architecture.model_type, **architecture.options))
            for end in architecture.branch_ends:
                found = [module for name, module in model.named_modules() if name.endswith(end)]
                assert found and all(isinstance(module.weight, torch.nn.Parameter) for module in found), end


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "levit", "swinv2"])
def test_rounding_stays_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own bfloat16 result is near its float32 one, so that an error says something of who made it."""
    sizes = (Size(2, height=PIXELS, width=PIXELS),) * 3
    monkeypatch.setitem(FAMILIES, "vision", replace(FAMILIES["vision"], sizes=sizes))
    case = ARCHITECTURES[name].benchmarked(CPU, torch.bfloat16)
    tracked = [value for key, value in case.model.named_buffers() if key.endswith("num_batches_tracked")]
    assert all(value == 1 for value in tracked) and not any(module.training for module in case.model.modules())
    with torch.no_grad():
        rounded = case.model(**case.kwargs)[0].float()
        exact = case.model.float()(pixel_values=case.kwargs["pixel_values"].float())[0]
    assert torch.linalg.vector_norm(rounded - exact) < 0.02 * torch.linalg.vector_norm(exact)


@pytest.mark.daily(1)
@pytest.mark.usefixtures("tiny")
def test_three_sizes_of_one_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is compiled once, and images of an odd height and width are among its sizes where it takes such."""
    sizes = (Size(1, height=PIXELS, width=PIXELS), Size(3, height=33, width=39), Size(4, height=PIXELS, width=PIXELS))
    monkeypatch.setitem(FAMILIES, "vision", replace(FAMILIES["vision"], sizes=sizes))
    monkeypatch.setattr(model, "median_milliseconds", lambda *_: 1.0)
    made = {
        "convnext": Architecture("convnext", "vision", TINY, any_image=True),
        "resnet": Architecture("resnet", "vision", {"hidden_sizes": [8], "depths": [1], "embedding_size": 8}),
    }
    monkeypatch.setattr(architectures, "ARCHITECTURES", made)
    rows = list(bench_architectures(list(made), CPU, torch.float32, symbolic=True))
    odd = {"convnext": "3 × 33 × 39", "resnet": f"3 × {PIXELS}²"}
    assert [row.name for row in rows] == [
        f"vision {name}, {size}" for name in made for size in (f"1 × {PIXELS}²", odd[name], f"4 × {PIXELS}²")
    ]
    assert all(row.error is not None and row.error < 1e-5 for row in rows), [row.notes for row in rows]
    assert len({row.notes["tkc auto compile s"] for row in rows}) == len(made)


def test_sizes_that_two_inputs_share_are_one() -> None:
    """A mask has as many rows and columns as the tokens that it hides."""
    for name, family in FAMILIES.items():
        inputs = family.inputs(family.sizes[1], CPU, torch.float32)
        shapes = family.dynamic_shapes(inputs, any_image=True)
        assert set(shapes) == set(inputs) and any(shapes.values()), name
        for each, axes in family.axes.items():
            assert len(axes) <= inputs[each].ndim
            for axis, size in enumerate(axes):
                assert size is None or inputs[each].shape[axis] == getattr(family.sizes[1], size)
