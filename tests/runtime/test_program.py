"""Programs of several entries: one set of weights, one state, one artifact."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from manifests import edit_manifest
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

import tkc
from tkc.cli.app import app

SIZE = 8


class Memory(nn.Module):
    """Adds rows, times a weight, to a buffer ``[4, SIZE]``, and counts them."""

    sums: torch.Tensor
    count: torch.Tensor
    table: torch.Tensor

    def __init__(self, rows: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(SIZE, SIZE)
        self.register_buffer("sums", torch.zeros(rows, SIZE, dtype=dtype))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("table", torch.tensor([0.5, float("nan")] * (SIZE // 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums after the rows ``x [n, SIZE]`` were added to each."""
        self.sums.add_(self.linear(x).sum(0).to(self.sums.dtype))
        self.count.add_(x.shape[0])
        return self.sums + self.table.nan_to_num()


class Reads(nn.Module):
    """Only reads what another module updates, a number among it, under other names."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.inner = memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[4, SIZE]``."""
        return self.inner.linear(x).sum() + self.inner.sums * self.inner.count


class Twice(nn.Module):
    """Updates the same buffers under other names, in another way."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.inner = memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[4, SIZE]``."""
        self.inner.sums.mul_(2.0)
        return self.inner.sums + x.sum()


def entries(memory: Memory) -> dict[str, Any]:
    """Many rows, one, and two modules around the same one."""
    rows, one = torch.zeros(3, SIZE), torch.zeros(1, SIZE)
    return {
        "many": tkc.Entry(example_args=(rows,), dynamic_shapes=({0: Dim("rows", min=2, max=64)},)),
        "one": tkc.Entry(example_args=(one,)),
        "read": tkc.Entry(model=Reads(memory), example_args=(one,)),
        "twice": tkc.Entry(model=Twice(memory), example_args=(one,)),
    }


@pytest.fixture(scope="module")
def memory() -> Memory:
    """The model."""
    return Memory()


@pytest.fixture(scope="module")
def compiled(memory: Memory) -> tkc.Program:
    """Of four entries."""
    program = tkc.compile(memory, entries=entries(memory), kernels="none", database=False)
    assert isinstance(program, tkc.Program)
    return program


@pytest.fixture
def program(compiled: tkc.Program) -> tkc.Program:
    """Which begins anew."""
    compiled.reset()
    return compiled


def check_calls(program: Any, memory: Memory) -> None:
    """What each entry leaves is what the next one finds; results are PyTorch's."""
    reference = copy.deepcopy(memory)
    many, one = torch.randn(5, SIZE), torch.randn(1, SIZE)
    for name, module, x in (
        ("many", reference, many),
        ("one", reference, one),
        ("read", Reads(reference), one),
        ("twice", Twice(reference), one),
        ("read", Reads(reference), one),
        ("many", reference, many),
    ):
        with torch.no_grad():
            expected = module(x)
        torch.testing.assert_close(getattr(program, name)(x), expected, rtol=1e-5, atol=1e-5)
    assert int(program.state["count"]) == int(reference.count)
    for name, tensor in program.state.items():
        torch.testing.assert_close(tensor, dict(reference.named_buffers())[name], rtol=1e-5, atol=1e-5)


def test_entries_share_state(program: tkc.Program, memory: Memory) -> None:
    """Also those that only read it, a number that the compiler could have taken for a constant, and by other names."""
    check_calls(program, memory)
    assert list(program.state) == ["sums", "count"]
    assert program.entries["one"].state is program.state
    assert program.many is program.entries["many"]
    assert {"many", "one", "read", "twice"} <= set(dir(program))


def test_weights_are_in_memory_once(program: tkc.Program, memory: Memory) -> None:
    """They are the model's own; the artifact has each once, NaNs among them."""
    weight = memory.linear.weight.data_ptr()
    assert [
        entry.parameters["linear.weight"].data_ptr() for name, entry in program.entries.items() if name != "twice"
    ] == [weight] * 3
    assert sorted(program.parameters) == ["count", "linear.bias", "linear.weight", "sums", "table"]


def test_saved_and_loaded(program: tkc.Program, memory: Memory, tmp_path: Path) -> None:
    """With the state's first values, whatever it is now; weights are stored and loaded once."""
    program.one(torch.ones(1, SIZE))
    path = program.save(tmp_path / "model.tkc")
    stored = safetensors.torch.load_file(path / "params.safetensors")
    assert sorted(stored) == ["count", "linear.bias", "linear.weight", "sums", "table"]
    loaded = tkc.load(path)
    assert isinstance(loaded, tkc.Program)
    assert len({entry.parameters["linear.weight"].data_ptr() for entry in (loaded.many, loaded.one, loaded.read)}) == 1
    check_calls(loaded, memory)
    assert loaded.report.to_json() == program.report.to_json()
    assert repr(loaded) == repr(program)
    with pytest.raises(tkc.UsageError, match="is an artifact already"):
        program.save(path)


def test_copies_and_pickles_have_state_of_their_own(program: tkc.Program) -> None:
    """Which begins where the other's is; code and weights are shared by copies."""
    x = torch.ones(1, SIZE)
    program.one(x)
    for other in (copy.copy(program), copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert torch.equal(other.state["sums"], program.state["sums"]) and int(other.state["count"]) == 1
        other.one(x)
        assert int(other.state["count"]) == 2 and int(program.state["count"]) == 1
        assert not torch.equal(other.read(x), program.read(x))
    assert copy.copy(program).one.parameters["linear.weight"] is program.one.parameters["linear.weight"]


def test_what_a_program_says(program: tkc.Program) -> None:
    """Its entries, and what they share; it cannot be called itself, and has no signature."""
    text = repr(program)
    assert "2 to 64" in text and text.count("inputs") == 4 and text.count("state ") == 1
    assert "Entry many" in str(program.report) and program.report.verdict.count("compiled whole") == 4
    assert program.report.entries["one"].stages[0].name == "import"
    assert "one: import" in {stage.name for stage in program.report.stages}
    assert len(program.report.scheduled) == sum(len(entry.report.scheduled) for entry in program.entries.values())
    coverage = program.report.coverage
    assert coverage.exact + coverage.anchor + coverage.none == pytest.approx(1)
    assert tkc.ProgramReport.from_json(program.report.to_json()) == program.report
    with pytest.raises(tkc.InputError, match=r"several entries; call one of them: exe.many\(...\), exe.one\(...\)"):
        program(torch.ones(1, SIZE))
    with pytest.raises(AttributeError, match="no entry 'three'; it has many, one, read, twice"):
        program.three  # noqa: B018
    with pytest.raises(AttributeError, match=r"exe.entries\['many'\].signature"):
        program.signature  # noqa: B018
    with pytest.raises(tkc.InputError, match="axis 0 of input 'x'"):
        program.one(torch.ones(2, SIZE))


def test_calls_of_all_entries_run_one_at_a_time(program: tkc.Program) -> None:
    """No update is lost between two entries in several threads."""
    x = torch.zeros(1, SIZE), torch.zeros(3, SIZE)

    def work() -> None:
        for _ in range(100):
            program.one(x[0])
            program.many(x[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(program.state["count"]) == 4 * 100 * 4
    assert program.max_concurrency == 1


@pytest.mark.daily(2)
def test_saved_programs_share_by_name(memory: Memory, tmp_path: Path) -> None:
    """Whose tensors are no longer the same memory; from the command line."""
    files = {}
    for name, x in (("many", torch.zeros(3, SIZE)), ("one", torch.zeros(1, SIZE))):
        files[name] = tmp_path / f"{name}.pt2"
        torch.export.save(torch.export.export(memory, (x,)), files[name])
    options = [f"--entry={name}={file}" for name, file in files.items()]
    artifact = str(tmp_path / "model.tkc")
    run = CliRunner().invoke
    result = run(app, ["compile", *options, "-o", artifact, "--kernels", "none", "--no-database", "--json"])
    assert result.exit_code == 0 and set(json.loads(result.stdout)["report"]["entries"]) == {"many", "one"}
    stored = safetensors.torch.load_file(Path(artifact) / "params.safetensors")
    assert sorted(stored) == ["count", "linear.bias", "linear.weight", "sums", "table"]
    assert run(app, ["run", artifact, "--entry", "one", "--compare", str(files["one"])]).exit_code == 0
    for arguments in ([], ["--entry", "none"]):
        refused = run(app, ["run", artifact, *arguments])
        assert isinstance(refused.exception, tkc.UsageError) and "many, one" in str(refused.exception)
    assert "Entry many" in run(app, ["inspect", artifact]).stdout
    explained = run(app, ["explain", *options, "--json"])
    assert set(json.loads(explained.stdout)["entries"]) == {"many", "one"}
    twice = run(app, ["explain", options[0], options[0]])
    assert isinstance(twice.exception, tkc.UsageError) and "one file" in str(twice.exception)


def test_weights_of_one_name_that_differ(tmp_path: Path) -> None:
    """Of two models: each entry keeps its own, in the artifact too. Dumps and stages say which entry they are of."""
    stages: list[str] = []
    models = [nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)]
    with torch.no_grad():
        models[1].bias.copy_(models[0].bias)
    x = torch.randn(2, SIZE)
    program = tkc.compile(
        entries={f"m{i}": torch.export.export(model, (x,)) for i, model in enumerate(models)},
        kernels="none",
        database=False,
        dump=tmp_path / "dump",
        observer=stages.append,
    )
    assert {folder.name for folder in (tmp_path / "dump").iterdir()} == {"m0", "m1"}
    assert stages[:2] == ["m0: import", "m1: import"] and "m1: generate code" in stages
    for made in (program, tkc.load(program.save(tmp_path / "model.tkc"))):
        assert sorted(made.parameters) == ["bias", "m1.weight", "weight"]
        for i, model in enumerate(models):
            torch.testing.assert_close(made.entries[f"m{i}"](x), model(x), rtol=1e-5, atol=1e-5)
    assert program.max_concurrency > 1


@pytest.mark.daily(2)
def test_copied_weights_are_shared_too(memory: Memory) -> None:
    """With ``copy_weights``: they are no longer the model's, and still one for all entries."""
    given = {name: entry for name, entry in entries(memory).items() if name in ("one", "read")}
    program = tkc.compile(memory, entries=given, kernels="none", database=False, copy_weights=True)
    weights = {entry.parameters["linear.weight"].data_ptr() for entry in program.entries.values()}
    assert len(weights) == 1 and memory.linear.weight.data_ptr() not in weights


class Packs(nn.Module):
    """Concatenates two of its weights, which the compiler does once for all calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Parameter(torch.randn(3, SIZE)), nn.Parameter(torch.randn(5, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, 8]``."""
        return nn.functional.linear(x, torch.cat([self.a, self.b]))


def test_packed_weights_are_shared(tmp_path: Path) -> None:
    """As those of a fused QKV are: packed once, and in memory and on disk once."""
    model, x = Packs(), torch.randn(2, SIZE)
    given = {name: tkc.Entry(example_args=(x[:rows],)) for name, rows in (("two", 2), ("one", 1))}
    program = tkc.compile(model, entries=given, kernels="none", database=False)
    for made in (program, tkc.load(program.save(tmp_path / "model.tkc"))):
        assert list(made.parameters) == ["a+b"]
        assert made.one.parameters["a+b"] is made.two.parameters["a+b"]
        torch.testing.assert_close(made.two(x), model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(made.one(x[:1]), model(x[:1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "names no entry"),
        (("save",), "cannot have the name 'save', which executables have for something else"),
        (("signature",), "'signature'"),
        (("main",), "'main'"),
        (("not one",), "give a plain identifier"),
        (("_x",), "give a plain identifier"),
        (("for",), "give a plain identifier"),
        (("../x",), "give a plain identifier"),
    ],
)
def test_names_that_entries_cannot_have(names: tuple[str, ...], message: str) -> None:
    """Before anything is imported."""
    with pytest.raises(tkc.UsageError, match=message):
        tkc.compile(entries=dict.fromkeys(names, "no such file.pt2"))


def test_what_is_no_entry_is_refused(memory: Memory) -> None:
    """And examples beside the entries, entries without a model, a model without entries."""
    entry = tkc.Entry(example_args=(torch.zeros(1, SIZE),))
    for arguments, given, message in (
        ((memory,), {"a": (torch.zeros(1, SIZE),)}, "entry 'a' is a tuple; give tkc.Entry("),
        ((memory, (torch.zeros(1, SIZE),)), {"a": entry}, "are those of each entry"),
        ((), {"a": entry}, "entry 'a' has examples, and there is no model"),
        ((memory,), {"a": "model.pt2"}, "no entry calls the Memory"),
        ((), {"a": "model.pt2"}, "entry 'a': there is no model file"),
        ((memory,), [entry], "entries is a list"),
        ((), None, "there is no model"),
    ):
        with pytest.raises(tkc.UsageError, match=re.escape(message)):
            tkc.compile(*arguments, entries=given)  # type: ignore[arg-type]  # a list among them
    broken = tkc.Entry(example_args=(torch.zeros(1, SIZE + 1),))
    with pytest.raises(tkc.UnsupportedModelError, match=r"entry 'b': torch\.export cannot export"):
        tkc.compile(memory, entries={"a": entry, "b": broken})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Memory(rows=2), r"entry 'b' has the state sums of float32 \[2, 8\], and entry 'a' of float32 \[4, 8\]"),
        (Memory(dtype=torch.float64), r"sums of float64 \[4, 8\]"),
    ],
)
def test_state_that_does_not_fit_is_named(memory: Memory, other: Memory, message: str) -> None:
    """Another shape, another dtype."""
    entry = tkc.Entry(example_args=(torch.zeros(1, SIZE),))
    with pytest.raises(tkc.UnsupportedModelError, match=message):
        tkc.compile(memory, entries={"a": entry, "b": tkc.Entry(model=other, example_args=entry.example_args)})


def test_state_with_other_first_values_is_named(memory: Memory) -> None:
    """Which ``reset`` could not restore for both."""
    other = Memory()
    other.sums[0, 0] = 1
    entry = tkc.Entry(example_args=(torch.zeros(1, SIZE),))
    with pytest.raises(tkc.UnsupportedModelError, match="the state sums begins with other values in entry 'b'"):
        tkc.compile(memory, entries={"a": entry, "b": tkc.Entry(model=other, example_args=entry.example_args)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["entries"]["one"].update(code="code/many.so"), "has its code in"),
        (lambda m: m["entries"]["one"].update(code="../x.so"), "has its code in"),
        (lambda m: m["entries"]["one"].update(kernels=["kernels/none.so"]), "kernels that are not there"),
        (lambda m: m["entries"].clear(), "no entries with names"),
        (lambda m: m["entries"].update({"../x": m["entries"].pop("one")}), "has the name"),
        (lambda m: m.update(format=4), "no entry main"),
        (lambda m: m["entries"]["one"]["signature"]["state"][0].update(shape=[2, SIZE]), "another state sums"),
    ],
)
def test_changed_manifests_are_refused(program: tkc.Program, tmp_path: Path, change: Any, message: str) -> None:
    """Before code is loaded."""
    path = program.save(tmp_path / "model.tkc")
    edit_manifest(path, change)
    with pytest.raises(tkc.ArtifactError, match=message):
        tkc.load(path)
