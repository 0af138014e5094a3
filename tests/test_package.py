"""The distribution: four folders at the root, one import package wherever it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_wheel_holds_every_module_in_one_package(tmp_path: Path) -> None:
    """Each Python file of the source tree is in the wheel under ``tkc``, and so are the files the builder compiles."""
    source = tmp_path / "source"  # setuptools looks at every file beside it, a virtual environment's too, for minutes
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"tkc/{path.relative_to(ROOT / 'tkc')}" for path in (ROOT / "tkc").rglob("*.py")}
    for folder in ("kernels", "passes", "schedules", "tuning_db"):
        expected |= {f"tkc/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
    assert expected <= names
    compiled = {f"tkc/builder/{name}.{suffix}" for name in ("arguments", "launch") for suffix in ("cc", "h")}
    assert compiled | {"tkc/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"tkc", next(n for n in names if "dist-info" in n).split("/")[0]}


def test_importing_tkc_and_the_specs_loads_neither_tvm() -> None:
    """The builder processes import the specs and TileLang; Apache TVM in the same process would break both."""
    program = "import sys, tkc, tkc.kernels, tkc.builder; assert not {'tvm', 'tilelang', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_works_from_outside_the_repository(tmp_path: Path) -> None:
    """No folder of the current directory is needed to import it."""
    program = "import tkc.kernels, tkc.passes, tkc.schedules, tkc.tuning_db; print(tkc.kernels.SPECS['matmul'].name)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "matmul"
