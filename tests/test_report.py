"""The printed report of a compilation."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

from rich.console import Console

import tkc
from tkc.kernels.normalization.parameters import NormalizationParameters
from tkc.kernels.spec import parameters_told
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.runtime.report import ProgramReport, Report, print_report
from tkc.runtime.report_rows import KernelUse, OperatorUse, Refused, Stage


def test_parameters_at_their_defaults_are_not_printed() -> None:
    """Nothing is said of quantization where there is none; what differs from a default that is true is said."""
    parameters = {
        "swiglu": SwiGLUParameters(8, "float32", packed=True),
        "normalization": NormalizationParameters(8, "float32", "rms", 0.0, weight=False),
    }
    uses = tuple(
        KernelUse("rule", name, dataclasses.asdict(each), ({},), 1, parameters_told(each))
        for name, each in parameters.items()
    )
    lines = str(Report("cpu", "all", uses, (), ())).splitlines()
    (swiglu,) = (line for line in lines if "swiglu" in line)
    (normalization,) = (line for line in lines if "normalization" in line)
    assert "packed=True" in swiglu and "float8" not in swiglu and "None" not in swiglu
    assert "epsilon=0.0" in normalization and "weight=False" in normalization


def test_the_verdict_comes_last() -> None:
    """Whether PyTorch computes a part of the model, and which."""
    assert str(Report("cpu", "all")).rstrip().endswith("Verdict: compiled whole.")
    uses = (
        OperatorUse("aten::nonzero", 2, ("node 'a'", "node 'b'"), "why"),
        OperatorUse("aten::lgamma", 1, ("c",), "why"),
    )
    printed = str(Report("cpu", "all", operators=uses))
    assert printed.rstrip().endswith("with 3 calls of operators in PyTorch: aten::nonzero (2), aten::lgamma (1).")


def test_the_verdict_is_one_line_wherever_it_is_printed() -> None:
    """However narrow the terminal is; JSON holds it, too, and so does the report of a program."""
    uses = tuple(OperatorUse(f"mylib::an_operator_with_a_name_{i}", 1, ("a",), "why") for i in range(9))
    report = Report("cpu", "all", operators=uses)
    program = ProgramReport.of({"one": report, "two[n, 4]": Report("cpu", "all")})
    for each in (report, program):
        text = io.StringIO()
        print_report(each, Console(file=text, width=40))
        for printed in (text.getvalue(), str(each)):
            assert printed.splitlines()[-1] == f"Verdict: {each.verdict}."
            assert printed.count("Verdict") == 1
        assert each.to_json()["verdict"] == each.verdict
        assert type(each).from_json(each.to_json()) == each
    assert "Entry two[n, 4]" in str(program) and "two[n, 4]: compiled whole" in program.verdict


def test_names_in_brackets_are_printed_as_they_are() -> None:
    """They are no markup, in all tables of a report, nor would a table with other consoles take them for such."""
    name = "[n, 4] [red]x[/red] [/]"
    report = Report(
        "cpu",
        "all",
        uses=(KernelUse(f"rule {name}", f"kernel {name}", {}, ({},), 1),),
        uses_measured_on=(f"device {name}",),
        operators=(OperatorUse(f"operator {name}", 1, (f"node {name}",), f"why {name}"),),
        refused=(Refused(f"left {name}", f"variable {name}", f"reason {name}"),),
        stages=(Stage(f"stage {name}", 1.0),),
    )
    text = io.StringIO()
    Console(file=text, width=1000).print(report)
    for printed in (text.getvalue(), str(report).replace("\n", "")):
        assert printed.count("[red]") >= 10
    for what in ("rule", "kernel", "device", "operator", "node", "why", "left", "variable", "reason", "stage"):
        assert f"{what} {name}" in text.getvalue()


def test_tables_and_prints_take_nothing_for_markup() -> None:
    """Every table of TKC is one of text, and what is printed of names says that it is no markup."""
    for path in Path(tkc.__file__).parent.rglob("*.py"):
        source = path.read_text()
        assert "from rich.table" not in source or path.name == "tables.py", path
        for call in re.findall(r"(?:_out|out|console|Console\([^)]*\))\.print\(\s*f\"[^\n]*", source):
            whole = source[source.index(call) :].partition("\n    )\n")[0] if call.endswith("print(") else call
            assert "markup=False" in whole or not re.search(r"\{(path|output|folder|source|named|target)", whole), call
