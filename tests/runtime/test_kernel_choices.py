"""Measured configurations in a compilation: one artifact holds several, and each call chooses by its size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

import tkc
from tkc.kernels import SPECS, Target
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.records import KernelRecord, write_records
from tkc.schedules.database_folders import target_folder

CPU = Target.parse("cpu")


def test_one_artifact_serves_every_size_with_its_own_configuration(tmp_path: Path) -> None:
    """Both configurations are in it, and it is right on either side of the limit, before and after saving."""
    parameters = MatmulParameters(48, 32, "float32")
    records = [
        KernelRecord(
            kernel="matmul",
            parameters=dataclasses.asdict(parameters),
            configuration=dataclasses.asdict(configuration),
            target="cpu",
            sizes={"m": rows},
            milliseconds=1.0,
            device="CPU",
            versions={},
            time="2026-01-01T00:00:00+00:00",
        )
        for rows, configuration in zip((1, 64), SPECS["matmul"].configurations(parameters, CPU), strict=True)
    ]
    write_records(target_folder(tmp_path, CPU), records)
    layer = torch.nn.Linear(32, 48).eval()
    rows = torch.export.Dim("rows", max=256)
    shapes = {"input": {0: rows}}
    executable = tkc.compile(layer, (torch.randn(4, 32),), kernels="all", dynamic_shapes=shapes, database=tmp_path)
    assert len(executable.libraries) == 2
    (use,) = executable.report.uses
    assert [choice["most"] for choice in use.configurations] == [8, None]
    for ready in (executable, tkc.load(executable.save(tmp_path / "linear.tkc"))):
        for size in (1, 8, 9, 100):
            x = torch.randn(size, 32)
            torch.testing.assert_close(ready(x), layer(x), rtol=1e-4, atol=1e-5)
