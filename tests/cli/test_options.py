"""tkc's functions name their options, refuse others, and the command line is made from them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tkc
from tkc import api
from tkc.cli import signatures
from tkc.cli.app import app
from tkc.kernels.devices import ARCHITECTURES

FUNCTIONS = (api.compile, api.explain, api.tune, api.load, api.debug)
COMMANDS = {"compile": ("compile",), "explain": ("explain",), "debug": ("debug",), "tune": ("tune", "model")}


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}


def parameters(name: str) -> dict[str, Any]:
    """The parameters of the command for the function ``name``."""
    command: Any = typer.main.get_command(app)
    for word in COMMANDS[name]:
        command = command.commands[word]
    return {parameter.name: parameter for parameter in command.params}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_help_lists_the_options(function: Callable[..., Any]) -> None:
    """With types and defaults, and nothing that takes any name."""
    signature = inspect.signature(function)
    assert getattr(tkc, function.__name__) is function
    assert not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    assert all(each.annotation is not each.empty for each in signature.parameters.values())
    assert options(function) and all(each.default is not each.empty for each in options(function).values())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_option_is_documented(function: Callable[..., Any]) -> None:
    """In the function's own docstring, or in that of ``compile``; and no other is."""
    for name in options(function):
        assert signatures.option_text(function, name).endswith(".")
    assert set(signatures._argument_texts(function)) <= set(inspect.signature(function).parameters)
    assert set(signatures._argument_texts(api.compile)) == set(inspect.signature(api.compile).parameters)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_option_that_does_not_exist_is_refused(function: Callable[..., Any]) -> None:
    """Before anything is done; the nearest name is told, and which there are."""
    meant = next(iter(options(function)))
    with pytest.raises(tkc.UsageError) as caught:
        function("no such file", **{meant[:-1]: 1, "zzz": 2})
    assert f"tkc.{function.__name__} has no option {meant[:-1]!r} (did you mean {meant!r}?), 'zzz'" in str(caught.value)
    assert ", ".join(options(function)) in str(caught.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_the_functions_options(name: str) -> None:
    """Each of them, or a reason why not, with the same default and text."""
    function = getattr(api, name)
    left_out = signatures.NOT_ON_THE_COMMAND_LINE[name]
    assert set(left_out) | set(signatures.command_line_options(function)) == set(options(function))
    assert all(reason for reason in left_out.values())
    found = parameters(name)
    for option in signatures.command_line_options(function):
        assert found[option].help.startswith(signatures.option_text(function, option))
        assert (found[option].default or None) == (options(function)[option].default or None)
        assert f"--{option.replace('_', '-')}".startswith(found[option].opts[0])
    assert not set(left_out) & set(found)


def test_texts_are_for_a_terminal() -> None:
    """Without the marks of reStructuredText, and without Python's values."""
    for name in COMMANDS:
        for option in signatures.command_line_options(getattr(api, name)):
            text = parameters(name)[option].help
            assert "`" not in text and "None" not in text and "{" not in text
    assert f"({', '.join(ARCHITECTURES)}; no GPU needed)" in signatures.option_text(api.compile, "target")


def test_a_new_option_is_on_the_command_line() -> None:
    """Nothing else has to be changed for it; one of a type that has no form stops the program."""
    given: list[Any] = []

    def made(model: Any, *, loudly: bool = False, times_over: int | None = None, checks: bool = False) -> None:
        """Something.

        Args:
            loudly: With noise. Much of it.
            times_over: How often it is done, by
                default once.

        Raises nothing.
        """

    def odd(model: Any, *, kernels: complex = 1j) -> None:
        """Something else."""

    command = typer.Typer(rich_markup_mode=None)

    @command.command()
    @signatures.with_options_of(made)
    def run(model: str, last: bool = False, **options: Any) -> None:
        given.extend([model, last, options])

    shown = CliRunner().invoke(command, ["--help"]).output
    assert "With noise." in shown and "Much" not in shown and "by default once." in " ".join(shown.split())
    assert CliRunner().invoke(command, ["a", "--times-over", "3", "--loudly"]).exit_code == 0
    assert given == ["a", False, {"loudly": True, "times_over": 3, "checks": False}]
    with pytest.raises(TypeError, match="odd's option kernels is of the type complex"):
        signatures.with_options_of(odd)


def test_a_database_or_none() -> None:
    """Two options for one argument."""
    (form,) = [signatures.option_form(api.compile, "database")]
    assert [parameter.name for parameter in form.parameters] == ["database", "no_database"]
    assert form.value(None, False) is None and form.value(None, True) is False and form.value("x", False) == "x"
    with pytest.raises(typer.BadParameter, match="contradict"):
        form.value("x", True)


def test_signatures_load_neither_torch_nor_tvm() -> None:
    """The command line shows its help without them."""
    code = "import sys, tkc.cli.signatures; print(sorted({'torch', 'tvm', 'onnx'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
