"""The pages of models and devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from site_tables.markdown import bullets, table

_ROOT = Path(__file__).parents[2]


def models() -> str:
    """The models that tests and benchmarks compile."""
    import importlib.util

    from tkc.bench.architectures import ARCHITECTURES
    from tkc.bench.decoding import DECODE_STEPS
    from tkc.bench.models import MODELS

    at = importlib.util.spec_from_file_location("tested_models", _ROOT / "tests" / "frontend" / "models.py")
    assert at is not None and at.loader is not None
    tested = importlib.util.module_from_spec(at)
    sys.modules[at.name] = tested
    at.loader.exec_module(tested)
    cases = [case.name for case in vars(tested).values() if isinstance(case, tested.Case)]
    record = json.loads((_ROOT / "docs" / "benchmarks" / "h200" / "architectures.json").read_text())
    measured = {row["name"].split(",")[0].rpartition(" ")[2] for row in record["rows"]}
    rows = [
        (f"`{name}`", architecture.family, "yes" if name in measured else "", "yes" if name in cases else "")
        for name, architecture in ARCHITECTURES.items()
    ]
    return "\n".join(
        [
            "# Models\n",
            "Generated from the tables that tests and benchmarks read. Any model that `torch.export` exports compiles, "
            "with calls of PyTorch's operators where TKC has no converter; these are the ones that are tried.\n",
            "## Architectures of transformers\n",
            "`tkc bench architectures` compiles each with two layers and random weights, and compares it with PyTorch. "
            "*Measured* ones stand in the [record of the H200](../benchmarks/architectures.md); *tested* ones are "
            "compiled and compared by the tests, with sizes that stay symbolic.\n",
            table(("model type", "kind", "measured", "tested"), rows),
            "## Benchmarked models\n",
            "`tkc bench model NAME`:\n",
            bullets(f"`{name}`" for name in (*MODELS, *DECODE_STEPS)),
        ]
    )


def devices() -> str:
    """The table of devices."""
    from tkc.kernels.devices import _UNLISTED, DEVICES

    rows = [
        (
            f"`cuda:{row.arch}`",
            row.gpu,
            row.multiprocessors,
            f"{row.shared_memory // 1024} KiB",
            "`wgmma`" if row.wgmma else "`mma.sync`",
            "yes" if row.tma else "",
            "yes" if row.fp8 else "",
            f"{row.clock / 1e9:.2f} GHz",
            f"{row.bandwidth / 1e12:.2f} TB/s",
        )
        for row in DEVICES.values()
    ]
    head = ("target", "figures of", "SMs", "shared memory a block", "tensor cores", "TMA", "FP8", "clock", "bandwidth")
    return "\n".join(
        [
            "# Devices\n",
            "Generated from `kernels/devices.py`, which names the sources. Multiprocessors, clock and bandwidth serve "
            "for estimates alone.\n",
            table(head, rows),
            f"For {', '.join(f'`{arch}`' for arch in _UNLISTED)} there is no row: kernels use the instructions of 8.0 "
            "and the least shared memory of all rows, and the report says so. Nothing was measured on them.\n",
        ]
    )
