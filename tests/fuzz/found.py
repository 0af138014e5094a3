"""Failures as test cases: self-contained source, to be pasted into ``test_found.py``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import nn

import tkc
from tests.conformance.comparison import Expected
from tests.conformance.samples import Sample

from .graph import Input
from .judge import Verdict, updated_by
from .program import Program, source
from .tensors import make_all
from .types import symbol


def signature(verdict: Verdict) -> str:
    """What failures of one cause have in common: the verdict, and its reason without numbers and names."""
    reason = re.sub(r"at \{[^}]*\}: ", "", verdict.reason)
    if verdict.kind == "wrong":
        reason = re.sub(r":? ?\d+ of \d+ differ.*|(result|updated tensor) \d+", "", reason)
    reason = re.sub(r"\[.*?\]|\d+|'.*?'|v\d+", "", reason)
    return f"{verdict.kind}: {reason[:120]}"


def written_case(name: str, program: Program, verdict: Verdict) -> str:
    """The source of a test that fails as long as ``verdict`` stands."""
    lines = [f"def test_{name}() -> None:", f'    """{_line(verdict)}"""', ""]
    lines += textwrap.indent(source(program), "    ").rstrip().splitlines()
    lines.append("")
    rows = []
    for each in program.inputs:
        parts = [repr(str(each.id)), "(" + "".join(f"{_dim(dim)}, " for dim in each.shape) + ")", repr(each.dtype)]
        parts.append(repr(each.values))
        for key, plain in (("layout", "contiguous"), ("role", "input"), ("bound", 0), ("same", None)):
            if (value := getattr(each, key)) != plain:
                parts.append(f"{key}={value!r}")
        parts[0] = str(each.id)
        rows.append(f"            tensor({', '.join(parts)}),")
    lines += ["    check(", "        Model,", "        [", *rows, "        ],"]
    lines += [f"        {program.sizes.by_name()!r},", f"        {sorted(program.updated())!r},", "    )"]
    return "\n".join(lines) + "\n"


def _dim(dim: object) -> str:
    text = str(dim)
    return text if text.isdigit() else repr(text)


def _line(verdict: Verdict) -> str:
    return f"{verdict.kind}: {verdict.reason}"[:100].replace("\\", "/").replace('"', "'").replace("\n", " ")


def tensor(number: int, shape: Sequence[int | str], dtype: str, values: str, **others: Any) -> Input:
    """An input of a test case: sizes that differ from call to call have names."""
    dims = tuple(sympy.Integer(dim) if isinstance(dim, int) else _parsed(dim) for dim in shape)
    return Input(number, dims, dtype, values, **others)


def _parsed(dim: str) -> sympy.Expr:
    names = set(re.findall(r"[a-z]\w*", dim))
    return sympy.sympify(dim, locals={name: symbol(name) for name in names})


def check(
    model: Callable[..., nn.Module],
    inputs: Sequence[Input],
    calls: Sequence[Mapping[str, int]],
    updated: Sequence[int] = (),
    target: str = "cpu",
) -> None:
    """Compile ``model`` for ``target`` and compare its results, and what it updates, with PyTorch's at each call.

    ``calls`` are the sizes of the calls, of which the first is the example; ``updated`` are the numbers of the inputs
    and buffers that the model writes into. The bound is :mod:`tests.conformance.comparison`'s.
    """
    device = "cuda" if target.startswith("cuda") else "cpu"
    given = [each for each in inputs if each.role == "input"]
    held = [each for each in inputs if each.role != "input"]

    def made(tensors: Sequence[torch.Tensor]) -> nn.Module:
        result = model(list(tensors)) if held else model()
        result.device = device  # type: ignore[assignment]  # no buffer nor submodule of that name
        return result.eval()

    def call(*tensors: torch.Tensor, dtype: torch.dtype | None = None) -> Any:  # no dtype stands among arguments
        module = made([tensor.clone() for tensor in tensors[len(given) :]])
        outputs = module(*tensors[: len(given)])
        return outputs, updated_by(given, held, updated, tensors, dict(module.named_buffers()))

    weights = make_all(held, {}, device)
    executable = tkc.compile(
        made([weight.clone() for weight in weights]),
        tuple(make_all(given, calls[0], device)),
        target=target,
        dynamic_shapes=_dynamic(given, calls),
        database=False,
    )
    for sizes in calls:
        tensors = [*make_all(given, sizes, device), *weights]
        expected = Expected(Sample(0, "", tuple(tensors), call), "float32")
        if executable.signature.state:
            executable.reset()
        fresh = make_all(given, sizes, device)
        outputs = executable(*fresh)
        state = dict(executable.state) if executable.signature.state else {}
        difference = expected.difference((outputs, updated_by(given, held, updated, fresh, state)))
        assert difference is None, f"at {dict(sizes)}: {difference}"


def _dynamic(given: Sequence[Input], calls: Sequence[Mapping[str, int]]) -> dict[str, dict[int, Any]] | None:
    dims = {name: torch.export.Dim(name, min=min(call[name] for call in calls), max=1 << 16) for name in calls[0]}
    if not dims:
        return None
    return {
        each.name: {axis: dims[str(dim)] for axis, dim in enumerate(each.shape) if str(dim) in dims} for each in given
    }
