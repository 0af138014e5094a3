"""``.pt2`` files made by an enemy: refused by name before anything in them runs. Honest ones are read."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tkc.frontend.torch.files import load_program
from tkc.frontend.torch.untrusted.guards import harmless_guards

Members = dict[str, bytes]
MODEL, SAMPLES = "m/models/model.json", "m/data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "m/data/weights/model_weights_config.json", "m/data/constants/model_constants_config.json"


class _Model(torch.nn.Module):
    """Tied and expanded weights, buffers, a constant, and sizes that are formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("wide", torch.ones(1).expand(1000))
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Slices, and sizes from remainders."""
        size = x.shape[0]
        half = self.second(self.first(x))[: size // 2] + self.mean * scale
        return half, self.constant.sum() + torch.zeros(size * 3 % 7 + 2), self.wide * 2


class _Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A branch on data."""
        return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))


class _Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A size that depends on data."""
        return x.nonzero().sum(1)


class _Joins(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums, minima and maxima of sizes."""
        c = torch.cat([a, b])
        return c.reshape(-1, 2, 2), torch.ones(max(a.shape[0], 3)), torch.arange(min(c.shape[0], 9))


HONEST: dict[str, Callable[[], torch.export.ExportedProgram]] = {
    "formulas": lambda: torch.export.export(
        _Model(), (torch.randn(8, 4),), {"scale": torch.ones(4)},
        dynamic_shapes={"x": {0: 2 * Dim("half", min=4, max=100)}, "scale": None}),
    "branches": lambda: torch.export.export(_Branches(), (torch.randn(3),)),
    "counts": lambda: torch.export.export(_Counts(), (torch.ones(3, 4),)),
    "joins": lambda: torch.export.export(
        _Joins(), (torch.randn(4, 4), torch.randn(6, 4)), dynamic_shapes={"a": {0: Dim.AUTO}, "b": {0: Dim.AUTO}}),
    "gru": lambda: torch.export.export(
        torch.nn.GRU(4, 4, batch_first=True), (torch.randn(2, 5, 4),), dynamic_shapes={"input": {0: Dim.AUTO}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_what_pytorch_saves_is_read(name: str, tmp_path: Path) -> None:
    """Sizes, constraints, constants, shared and expanded weights, subgraphs."""
    torch.export.save(HONEST[name](), tmp_path / "model.pt2")
    assert isinstance(load_program(tmp_path / "model.pt2"), torch.export.ExportedProgram)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of an honest archive."""
    path = tmp_path_factory.mktemp("honest") / "m.pt2"
    torch.export.save(HONEST["formulas"](), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _written(members: Members, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _refused(members: Members, tmp_path: Path, marker: Path) -> str:
    path = _written(members, tmp_path / "m.pt2")
    with pytest.raises((tkc.UnsupportedModelError, tkc.UsageError)) as raised:
        load_program(path)
    assert not isinstance(raised.value, tkc.InternalError)
    assert not marker.exists()
    return str(raised.value)


class _Touch:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def _with(members: Members, name: str, change: Callable[[dict[str, Any]], object]) -> Members:
    content = json.loads(members[name])
    change(content)
    return {**members, name: json.dumps(content).encode()}


def _replaced(members: Members, old: str, new: str) -> Members:
    text = members[MODEL].decode()
    assert old in text
    return {**members, MODEL: text.replace(old, new).encode()}


def _first_formula(members: Members) -> str:
    text = members[MODEL].decode()
    start = text.index('"expr_str": "') + len('"expr_str": ')
    return text[start : text.index('"', start + 1) + 1]


FORMULAS = [
    "__import__('os').mkdir('MARKER')",
    "().__class__.__base__.__subclasses__()",
    "Symbol('s0').__class__",
    "sympify(\"__import__('os').mkdir('MARKER')\")",
    "Integer(\"__import__('os').mkdir('MARKER')\")",
    "Symbol('s0', x=__import__('os').mkdir('MARKER'))",
    "Symbol('s0) or open(1')",
    "lambdify(1, 2)",
    "[mkdir for mkdir in 'x']",
    "(lambda: 1)()",
    "9**9**9**9",
    "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))",
    "LShift(Integer(1), Integer(1099511627776))",
    "factorial(100000000)",
    "100000000!",
    "2^99999999999",
    "(" * 5000 + "1" + ")" * 5000,
    "-" * 3000 + "1",
    "Add(" * 300 + "1" + ",1)" * 300,
    "1 if exit else 2",
    "s0 @ s0",
    "s0\x00",
    "ｅval(1)",
    "x" * 1_000_000,
    "f'{exit()}'",
    "s0 := 3",
    "S('exit()')",
    "Float('__import__(1)')",
    "Max(*range(10))",
    "Max(**{})",
]


@pytest.mark.parametrize("formula", FORMULAS, ids=range(len(FORMULAS)))
def test_a_size_that_is_code_is_not_evaluated(formula: str, honest: Members, tmp_path: Path) -> None:
    """Nor one whose value would fill the memory."""
    marker = tmp_path / "ran"
    changed = _replaced(honest, _first_formula(honest), json.dumps(formula.replace("MARKER", str(marker))))
    assert "size" in _refused(changed, tmp_path, marker)


@pytest.mark.parametrize(
    "target",
    [
        *("torch.load", "torch.ops.load_library", "torch.ops.load_library.__call__", "torch.os.system"),
        *("torch.serialization.os.mkdir", "_operator.attrgetter", "_operator.methodcaller", "_operator.__builtins__"),
        *("math.factorial", "os.system", "builtins.exec", "torch.ops.aten.__class__.mro", "", "#x", 7, None, []),
        *("torch.ops.aten.add.Tensor.__globals__", "torch._C._jit_pass_inline", "x" * 100_000),
    ],
)  # fmt: skip
def test_a_call_of_no_operator_is_not_looked_up(target: Any, honest: Members, tmp_path: Path) -> None:
    """By its name alone."""
    changed = _with(
        honest, MODEL, lambda program: program["graph_module"]["graph"]["nodes"][0].__setitem__("target", target)
    )
    assert "calls" in _refused(changed, tmp_path, tmp_path / "ran")


@pytest.mark.parametrize("old", ['"x"', '"linear"', '"p_first_weight"', '"scale"'])
def test_a_name_that_is_code_is_no_name(old: str, honest: Members, tmp_path: Path) -> None:
    """PyTorch writes it into the source of a function."""
    marker = tmp_path / "ran"
    changed = _replaced(honest, old, json.dumps(f"x=__import__('os').mkdir({str(marker)!r})"))
    assert "names a" in _refused(changed, tmp_path, marker)


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _pickled_payload(config: dict[str, Any]) -> None:
    next(iter(config["config"].values()))["use_pickle"] = True


PICKLES: dict[str, Callable[[Members, Path], Members]] = {
    "example inputs": lambda members, marker: {**members, SAMPLES: _saved(((_Touch(marker),), {}))},
    "example inputs, bare": lambda members, marker: {**members, SAMPLES: pickle.dumps(_Touch(marker))},
    "weight": lambda members, marker: {
        **_with(members, WEIGHTS, _pickled_payload), "m/data/weights/weight_0": _saved(_Touch(marker))},
    "weight, bare": lambda members, marker: {
        **_with(members, WEIGHTS, _pickled_payload), "m/data/weights/weight_0": pickle.dumps(_Touch(marker))},
    "constant": lambda members, marker: {
        **_with(members, CONSTANTS, _pickled_payload), "m/data/constants/tensor_0": _saved(_Touch(marker))},
    "weights of old": lambda members, marker: {**members, "m/data/weights/model.pt": _saved({"a": _Touch(marker)})},
    "constants of old": lambda members, marker: {**members, "m/data/constants/model.pt": _saved({"a": _Touch(marker)})},
    "opaque object": lambda members, marker: {
        **_with(members, CONSTANTS, lambda config: next(iter(config["config"].values())).update(
            path_name="opaque_obj_0", use_pickle=True)),
        "m/data/constants/opaque_obj_0": pickle.dumps(_Touch(marker))},
    "custom object": lambda members, marker: {
        **_with(members, CONSTANTS, lambda config: next(iter(config["config"].values())).update(
            path_name="custom_obj_0", use_pickle=True)),
        "m/data/constants/custom_obj_0": pickle.dumps(_Touch(marker))},
    "layout of old": lambda members, marker: {
        "version": b"8.15", "serialized_exported_program.json": members[MODEL],
        "serialized_state_dict.pt": _saved({"a": _Touch(marker)}), "serialized_constants.pt": _saved({}),
        "serialized_example_inputs.pt": _saved(((), {}))},
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_of_more_than_tensors_is_not_unpickled(name: str, honest: Members, tmp_path: Path) -> None:
    """The message says which member it is, and what may be done."""
    marker = tmp_path / "ran"
    message = _refused(PICKLES[name](honest, marker), tmp_path, marker)
    assert "Export the model without" in message or "add_safe_globals" in message


def test_the_structures_of_arguments_call_nothing(honest: Members, tmp_path: Path) -> None:
    """A default factory that is none; what is no structure; too deep a one."""

    def put(spec: str) -> Members:
        def change(program: dict[str, Any]) -> None:
            program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = spec

        return _with(honest, MODEL, change)

    for spec in (
        '[1, {"type": "collections.defaultdict", "context": {"default_factory_module": "os", '
        '"default_factory_name": "getcwd", "dict_context": []}, "children_spec": []}]',
        '[1, {"type": "builtins.tuple", "context": "null", "children_spec": ' * 5000,
        "[2, {}]",
        "[",
    ):
        assert "structure" in _refused(put(spec), tmp_path, tmp_path / "ran")


def _sizes(sizes: list[int], strides: list[int] | None = None) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        meta = next(iter(config["config"].values()))["tensor_meta"]
        meta["sizes"] = [{"as_int": size} for size in sizes]
        meta["strides"] = [{"as_int": stride} for stride in strides or [0] * len(sizes)]

    return change


BROKEN: dict[str, Callable[[Members], Members]] = {
    "nested": lambda members: {**members, MODEL: b"[" * 1_000_000},
    "nested objects": lambda members: {**members, MODEL: b'{"a":' * 1_000_000},
    "no JSON": lambda members: {**members, MODEL: b"\xff" * 1000},
    "a list": lambda members: {**members, MODEL: b"[]"},
    "empty": lambda members: {**members, MODEL: b"{}"},
    "no configuration": lambda members: {**members, WEIGHTS: b"{}"},
    "configuration of texts": lambda members: {**members, WEIGHTS: b'{"config": {"a": "b"}}'},
    "tensor of 2^40": lambda members: _with(members, WEIGHTS, _sizes([1 << 40])),
    "tensor of 2^80": lambda members: _with(members, WEIGHTS, _sizes([1 << 40, 1 << 40])),
    "tensor of negative size": lambda members: _with(members, WEIGHTS, _sizes([-4])),
    "tensor of nothing": lambda members: {
        **_with(members, WEIGHTS, _sizes([1 << 30])), "m/data/weights/weight_0": b""},
    "tensor beyond": lambda members: _with(members, WEIGHTS, _sizes([100], [1])),
    "size without end": lambda members: _with(
        members, MODEL, lambda program: program["range_constraints"].update(
            {"u99999999999": {"min_val": 0, "max_val": 1}})),
    "two folders": lambda members: {**members, "other/models/model.json": members[MODEL]},
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_is_refused(name: str, honest: Members, tmp_path: Path) -> None:
    """Before memory is taken for it."""
    assert _refused(BROKEN[name](honest), tmp_path, tmp_path / "ran")


def test_conditions_that_are_code_are_dropped() -> None:
    """``ExportedProgram.module`` runs them; those that compare sizes stay."""
    sound = ["(L['x'].size()[0] // 2) <= L['x'].size()[0]", "L['x'].shape[0] % 2 == 0"]
    assert harmless_guards(sound) == sound
    assert not harmless_guards(["__import__('os').mkdir('x')", "L['x'].numpy()", "9**9**9", "(" * 9999, "exit()"])


def test_a_program_that_was_read_keeps_its_honest_conditions(honest: Members, tmp_path: Path) -> None:
    """And loses the others."""

    def add(program: dict[str, Any]) -> None:
        program["guards_code"] = [*program.get("guards_code", ()), "exit()"]

    program = load_program(_written(_with(honest, MODEL, add), tmp_path / "m.pt2"))
    assert "exit()" not in getattr(program, "_guards_code", ())
