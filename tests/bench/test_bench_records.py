"""Benchmark records: written and read again, compared with earlier ones, and drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.command_line import tkc
from tkc.bench.comparison import comparison
from tkc.bench.kernels import device_rows, row_name
from tkc.bench.plots import COPY, MATRIX_PRODUCT, draw
from tkc.cli.bench import _finish
from tkc.errors import UsageError
from tkc.kernels.all_cases import benchmark_cases
from tkc.measure.record import Record, Row

SHIPPED = Path(__file__).parents[2] / "docs" / "benchmarks"


def record_of(*rows: Row) -> Record:
    """A record of a benchmark nobody ran."""
    return Record("kernels", "tkc bench kernels", "0123abc", "a device", {"tkc": "0"}, rows)


def shown(earlier: Record, later: Record) -> list[str]:
    """The lines of the comparison, below its title and heading."""
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(comparison(earlier, later))
    return [line.strip() for line in console.export_text().splitlines()[2:]]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With numbers, words, and what is left out."""
    made = record_of(
        Row("one", {"tkc": 1.5, "PyTorch": 3.0}, 2.0, 1e-3, {"TB/s": 4.0, "configuration": "c"}), Row("two", {})
    )
    made.write(tmp_path / "record.json")
    assert Record.read(tmp_path / "record.json") == made


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.json")), ids=lambda path: path.stem)
def test_shipped_records_can_be_read(path: Path) -> None:
    """And name the command and the commit that made them."""
    found = Record.read(path)
    assert found.command.startswith("tkc bench") and found.commit != "unknown" and found.rows


def test_what_an_interruption_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows so far, beside an earlier result, which stays."""

    def rows() -> Iterator[Row]:
        yield Row("one", {"tkc": 1.0})
        raise KeyboardInterrupt

    earlier = record_of(Row("earlier", {"tkc": 1.0}))
    earlier.write(tmp_path / "result.json")
    with pytest.raises(KeyboardInterrupt):
        _finish("kernels", rows(), False, tmp_path / "result.json", None)
    assert Record.read(tmp_path / "result.json") == earlier
    assert [row.name for row in Record.read(tmp_path / "result.partial.json").rows] == ["one"]
    assert f"{tmp_path / 'result.partial.json'} holds what was measured, rows: 1" in capsys.readouterr().err

    _finish("kernels", iter([Row("one", {"tkc": 1.0})]), False, tmp_path / "result.json", None)
    assert [row.name for row in Record.read(tmp_path / "result.json").rows] == ["one"]
    assert not (tmp_path / "result.partial.json").exists()


def test_ratios_of_a_kernel_have_a_mean() -> None:
    """Of its rows that have one; it stands below the table."""
    found = record_of(
        *(Row(f"matmul m={m}", {"tkc": 1.0}, ratio) for m, ratio in ((1, 4.0), (2, 1.0), (3, None))),
        Row("swiglu tokens=1", {"tkc": 1.0}, 3.0),
        Row("matmul dtype=float32 m=1", {"tkc": 1.0}, 5.0),
    )
    means = {"matmul": (2.0, 2), "swiglu": (3.0, 1), "matmul dtype=float32": (5.0, 1)}
    assert found.mean_ratios() == {kind: (pytest.approx(mean), count) for kind, (mean, count) in means.items()}
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(found)
    assert console.export_text().rstrip().endswith("geometric mean of the ratios: matmul 2.000 (2 rows)")
    assert record_of(*found.rows, found.rows[0]).mean_ratios() == {}


def test_a_narrow_table_breaks_between_notes() -> None:
    """Each is read as a whole."""
    notes = {"tkc auto compile s": 22.9, "max-autotune first call s": 118.0, "max-autotune error": 0.5}
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(record_of(Row("one", {"tkc": 1.0}, notes=notes)))
    told = console.export_text()
    assert all(f"{name}={value:.4g}" in told for name, value in notes.items())


def test_other_files_are_refused(tmp_path: Path) -> None:
    """With the file's name and the reason."""
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UsageError, match=r"notes\.json is no benchmark record: Field required"):
        Record.read(tmp_path / "notes.json")
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        Record.read(tmp_path / "none.json")


def test_a_comparison_pairs_rows_by_name() -> None:
    """What is in one of the two only has no speed."""
    earlier = record_of(Row("same", {"tkc": 3.0, "PyTorch": 3.0}, 1.0), Row("gone", {"tkc": 1.0}))
    later = record_of(Row("new", {"tkc": 4.0}), Row("same", {"tkc": 2.0, "PyTorch": 4.0}, 2.0))
    assert [line.split() for line in shown(earlier, later)] == [
        ["new", "–", "4", "–", "–", "–"],
        ["same", "3", "2", "1.50×", "1.00", "2.00"],
        ["gone", "1", "–", "–", "–", "–"],
    ]


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    """Ratios where there are references; a roofline where there are rates, with or without the device's own."""
    compared = Row("matmul n=1", {"tkc": 1.0, "PyTorch": 0.5}, 0.5)
    rated = Row("swiglu channels=2", {"tkc": 1.0}, notes={"TFLOP/s": 2.0, "TB/s": 3.0})
    device = (
        Row(COPY, {"PyTorch": 1.0}, notes={"TB/s": 4.0}),
        Row(MATRIX_PRODUCT, {"PyTorch": 1.0}, notes={"TFLOP/s": 700.0}),
    )
    assert draw(record_of(Row("overhead", {"tkc": 1.0})), tmp_path, "none") == []
    assert draw(record_of(compared), tmp_path, "one") == [tmp_path / "one-ratios.png"]
    assert draw(record_of(rated), tmp_path, "two") == [tmp_path / "two-roofline.png"]
    both = draw(record_of(compared, rated, *device), tmp_path, "both")
    assert both == [tmp_path / "both-ratios.png", tmp_path / "both-roofline.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in both)


def test_the_devices_limits_are_measured() -> None:
    """Here the CPU's: some GB/s, some GFLOP/s, under the names that the roofline looks for."""
    copy, product = device_rows(torch.device("cpu"))
    assert (copy.name, product.name) == (COPY, MATRIX_PRODUCT)
    assert float(copy.notes["TB/s"]) > 1e-4 and float(product.notes["TFLOP/s"]) > 1e-3


def test_rows_are_told_apart() -> None:
    """No two cases have one name, or comparisons would mix them up; names say nothing that is absent."""
    names = [row_name(case) for case in benchmark_cases()]
    assert len(set(names)) == len(names)
    assert not any("None" in name or "0.088" in name for name in names)


def test_the_command_shows_compares_and_draws(tmp_path: Path) -> None:
    """As a user types it, pictures named as their record; a wrong file costs exit code 2 before anything runs."""
    path = tmp_path / "mine.json"
    record_of(Row("same", {"tkc": 3.0, "PyTorch": 6.0}, 2.0)).write(path)
    done = tkc("bench", "show", path, "--against", path, "--plots", tmp_path)
    assert "1.00×" in done.stdout
    assert (tmp_path / "mine-ratios.png").is_file()
    assert "none.json" in tkc("bench", "show", tmp_path / "none.json", code=2).stderr
    for words in (
        ("overhead", "--against", tmp_path / "none.json"),
        ("overhead", "--output", tmp_path / "figures.txt"),
    ):
        assert words[-1].name in tkc("bench", *words, code=2).stderr
