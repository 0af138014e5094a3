"""The page of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from site_tables.markdown import plain_text, table


def command_line() -> str:
    """Every command with its options."""
    import typer.main

    from tkc.cli.app import app

    parts = [
        "# Command line\n",
        "Generated from the commands. Exit codes: 0 done, 1 a comparison failed, 2 an error of the input, 3 an error "
        "of TKC's, 130 interrupted.\n",
    ]
    for name, command in _commands("tkc", typer.main.get_command(app)):
        parts += [f"## {name}\n", plain_text(command.help) + "\n"]
        rows = [
            (_name(parameter), _kind(parameter), _help(parameter))
            for parameter in command.params
            if parameter.name not in ("help", "install_completion", "show_completion")
        ]
        if rows:
            parts.append(table(("name", "", "meaning"), rows))
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key, each in inner.items():
        yield from _commands(f"{name} {key}", each)


def _name(parameter: Any) -> str:
    """What is written: an option with the value that it takes, if that has a form of its own."""
    value = getattr(parameter, "metavar", None)
    names = ", ".join(parameter.opts)
    return f"`{names} {value}`" if value else f"`{names}`"


def _kind(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    kind = "option" if parameter.opts[0].startswith("-") else "argument"
    return f"{kind}, required" if parameter.required else kind


def _help(parameter: Any) -> str:
    return plain_text(getattr(parameter, "help", None) or "").replace("\n", " ")
