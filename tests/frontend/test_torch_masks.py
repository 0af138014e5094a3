"""Writes at boolean indices: by any axes, of any values that are the same wherever the mask holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tkc
from tests.frontend.side_by_side import Function, Several, compare
from tkc.frontend.torch.importer import import_torch
from tkc.runtime.input_checks import InputChecks

put = torch.ops.aten.index_put.default
SHAPES = ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, None)

WRITES: dict[str, Function] = {
    "rows": lambda x, rows, columns, both, v: put(x, [rows], v),
    "rows, added": lambda x, rows, columns, both, v: put(x, [rows], v, True),
    "columns": lambda x, rows, columns, both, v: put(x, [None, columns], v[:1]),
    "of each row": lambda x, rows, columns, both, v: put(x, [None, columns], x[:, :1]),
    "both": lambda x, rows, columns, both, v: put(x, [both], v[None]),
    "the last axis": lambda x, rows, columns, both, v: put(x, [None, None, v > 0], v.max()),
    "integers": lambda x, rows, columns, both, v: put(x.long(), [both], torch.tensor(7), True),
    "truth values": lambda x, rows, columns, both, v: put(x > 0, [None, columns], v[0] > 0, True),
    "bytes": lambda x, rows, columns, both, v: put(x, [rows.byte()], v),
    "two masks": lambda x, rows, columns, both, v: put(put(x, [rows], v), [both], v.sum()) @ x.mT,
}


def _inputs(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    masks = (torch.rand(rows) < 0.5, torch.rand(columns) < 0.5, torch.rand(rows, columns) < 0.5)
    return torch.randn(rows, columns, 4), *masks, torch.randn(4)


@pytest.mark.daily(1)
def test_masks_of_any_axes() -> None:
    """The masks' sizes are symbols of their own to PyTorch."""
    torch.manual_seed(0)
    compare(WRITES, *(_inputs(*sizes) for sizes in ((5, 3), (2, 7), (1, 1), (9, 2))), dynamic_shapes=SHAPES)


@pytest.mark.parametrize("saved", [False, True])
def test_sizes_of_masks_are_checked(saved: bool, tmp_path: Path) -> None:
    """PyTorch raises where a mask is of another size; the program that was handed over stays as it was."""
    shapes: Any = {"inputs": ({0: Dim("n", max=8), 1: Dim.AUTO}, *SHAPES[1:3], {0: Dim("k", max=6), 1: Dim.AUTO}, None)}
    program = torch.export.export(Several({"both": WRITES["both"]}), _inputs(5, 3), dynamic_shapes=shapes, strict=False)
    if saved:
        torch.export.save(program, tmp_path / "model.pt2")
        program = torch.export.load(tmp_path / "model.pt2")
    sizes = [node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"]
    before = str(sizes)
    checked = InputChecks(import_torch(program).signature, torch.device("cpu"))
    assert str(sizes) == before
    x, rows, columns, both, v = _inputs(4, 2)
    checked([x, rows, columns, both, v])
    with pytest.raises(tkc.InputError, match="at most 6"):
        checked(_inputs(7, 2))
    with pytest.raises(tkc.InputError, match="axis 1 of input 'inputs_3' is 1"):
        checked([x, rows, columns, both[:, :1], v])
