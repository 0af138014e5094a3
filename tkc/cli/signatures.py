"""Command-line options made from the signatures and docstrings of ``tkc``'s functions.

An option's name, type and default are those of the parameter; its text is the first sentence that the docstring has for
it. What a command line writes in another form (a folder or none at all, names and sizes) has a :class:`Form` here, and
what makes no sense there stands in :data:`NOT_ON_THE_COMMAND_LINE` with the reason. A parameter that is neither, and of
a type unknown here, fails when the command is defined.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tkc import api
from tkc.errors import UsageError

NOT_ON_THE_COMMAND_LINE: Mapping[str, Mapping[str, str]] = {
    "compile": {
        "dynamic_shapes": "a file says itself which of its sizes are symbolic",
        "copy_weights": "the artifact has weights of its own",
        "max_concurrency": "an artifact does not keep it; tkc.load takes it",
        "observer": "the command shows the stages",
        "kernel_progress": "the command shows the kernels",
        "builder": "it limits processes of a program that embeds tkc",
    },
    "explain": {
        "dynamic_shapes": "a file says itself which of its sizes are symbolic",
        "observer": "the command shows the stages",
    },
    "tune": {
        "dynamic_shapes": "a file says itself which of its sizes are symbolic",
        "observer": "the command shows the job",
        "started": "the minutes count from the command's start",
    },
    "debug": {"dynamic_shapes": "a file says itself which of its sizes are symbolic"},
}
"""Options of a function that its command does not have, and why."""


@dataclass(frozen=True)
class Form:
    """How a parameter is written on the command line.

    ``parameters`` are the command's, ``value`` makes the function's argument of what was given for them.
    """

    parameters: tuple[inspect.Parameter, ...]
    value: Callable[..., Any]


def with_options_of(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for a command that takes ``**options``: those of ``function``, as the function wants them.

    They stand behind what the command itself requires, and before its own options.
    """
    forms = {name: option_form(function, name) for name in command_line_options(function)}
    added = {parameter.name: parameter for form in forms.values() for parameter in form.parameters}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        required = [each for each in own if each.default is each.empty]
        ordered = [*required, *added.values(), *(each for each in own if each.default is not each.empty)]

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            options = {
                name: form.value(*(given.pop(parameter.name) for parameter in form.parameters))
                for name, form in forms.items()
            }
            return command(**given, **options)

        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ordered]
        run.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]  # inspect reads it
        run.__annotations__ = {each.name: each.annotation for each in keyword}
        del run.__wrapped__
        return run

    return decorate


def command_line_options(function: Callable[..., Any]) -> list[str]:
    """The options of ``function`` that its command has."""
    left_out = NOT_ON_THE_COMMAND_LINE.get(function.__name__, {})
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in left_out]


def option(function: Callable[..., Any], name: str) -> Any:
    """The annotation of one option of ``function``, for a command that takes it and passes it on by itself."""
    (parameter,) = option_form(function, name).parameters
    return parameter.annotation


def option_form(function: Callable[..., Any], name: str) -> Form:
    """How the option ``name`` of ``function`` is written. Raises :class:`TypeError` for a type that has no form."""
    parameter = inspect.signature(function).parameters[name]
    text = option_text(function, name)
    if name in _FORMS:
        return _FORMS[name](text)
    if parameter.annotation == "Database":
        return _database(text)
    kind = _TYPES.get(str(parameter.annotation))
    if kind is None:
        raise TypeError(
            f"{function.__name__}'s option {name} is of the type {parameter.annotation}, which has no form on the "
            "command line; give it one, or a place in NOT_ON_THE_COMMAND_LINE"
        )
    metavar = _METAVARS.get(name)
    flag = name.replace("_", "-")
    both = f"--{flag}/--no-{flag}" if parameter.default is True else None
    made = _parameter(name, kind, parameter.default, text, both, metavar)
    return Form((made,), lambda value: value)


def option_text(function: Callable[..., Any], name: str) -> str:
    """The first sentence on an option in the docstring of ``function``, or of ``tkc.compile``, as plain text."""
    texts = {**_argument_texts(api.compile), **_argument_texts(function)}
    plain = re.sub(r":\w+:`~?(?:tkc\.)?([^`]*)`", r"\1", texts[name])
    plain = re.sub(r'``"?(.*?)"?``', r"\1", plain)
    sentence = re.match(r".*?[.](?=\s|$)", plain)
    return sentence.group() if sentence else plain


@functools.cache
def _argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    _, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if found := re.match(r"    (\w+): (.*)", line):
            name, text = found.groups()
            texts[name] = text
        elif line.startswith("        "):
            texts[name] += f" {line.strip()}"
        else:
            break
    return texts


_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "bool | None": bool | None,
    "int": int,
    "int | None": int | None,
    "float | None": float | None,
    "str | None": str | None,
    "str | Path | None": Path | None,
    "str | os.PathLike[str] | None": Path | None,
    "str | Target": str,
    "MeasureKernels": str,  # the function refuses what means nothing
    "Kernels": str,  # the function refuses what means nothing
}
"""The command line's types, by how a signature writes them."""
_METAVARS: Mapping[str, str] = {
    "target": "TARGET",
    "kernels": "auto|all|none",
    "measure_kernels": "new|again|none",
    "rpc": "HOST:PORT",
    "device_key": "KEY",
}
"""What stands behind an option, if its type does not say it."""


def _parameter(
    name: str,
    kind: Any,
    default: Any,
    text: str,
    flags: str | tuple[str, ...] | None = None,
    metavar: str | None = None,
) -> inspect.Parameter:
    flags = flags or f"--{name.replace('_', '-')}"
    names = (flags,) if isinstance(flags, str) else flags
    annotation = Annotated[kind, typer.Option(*names, help=text, metavar=metavar)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _database(text: str) -> Form:
    without = "Schedule by rules alone, without your tuning records or tkc's."

    def value(database: Path | None, no_database: bool) -> Path | bool | None:
        if database is not None and no_database:
            raise typer.BadParameter("--database and --no-database contradict each other; give one of them")
        return False if no_database else database

    return Form(
        (_parameter("database", Path | None, None, text), _parameter("no_database", bool, False, without)), value
    )


def _size_names(text: str) -> Form:
    text = f"{text} Such as x_0=batch; once for each size."
    made = _parameter("size_names", list[str] | None, None, text, "--size-name", "SIZE=NAME")
    return Form((made,), parse_size_names)


def _entries(text: str) -> Form:
    text = f"{text} Such as prefill=prefill.pt2; once for each entry, in place of MODEL."
    made = _parameter("entries", list[str] | None, None, text, ("--entries", "--entry"), "NAME=FILE")
    return Form((made,), parse_entries)


def _constants(text: str) -> Form:
    text = f"{text} Such as axes=axes.npy; once for each input."
    made = _parameter("constants", list[str] | None, None, text, "--constant", "NAME=FILE.npy")
    return Form((made,), parse_constants)


def _sizes(text: str) -> Form:
    text = f"{text} Such as height=64; once for each."
    return Form((_parameter("sizes", list[str] | None, None, text, "--size", "NAME=N"),), parse_sizes)


def _shapes(text: str) -> Form:
    text = f"{text} Such as seq=128,2048; once for each name."
    return Form((_parameter("shapes", list[str] | None, None, text, metavar="NAME=N,N"),), parse_shapes)


def _until_gain(text: str) -> Form:
    def value(percent: str | None) -> float | None:
        return None if percent is None else parse_percent("--until-gain", percent)

    text = f"{text} Such as 2%."
    return Form((_parameter("until_gain", str | None, None, text, metavar="PERCENT"),), value)


_FORMS: Mapping[str, Callable[[str], Form]] = {
    "entries": _entries,
    "constants": _constants,
    "size_names": _size_names,
    "shapes": _shapes,
    "sizes": _sizes,
    "until_gain": _until_gain,
}
"""What is written on the command line in a form of its own, by the option's name."""


def parse_size_names(options: list[str] | None) -> dict[str, str]:
    """``["x_0=batch"]`` as ``{"x_0": "batch"}``; :class:`tkc.UsageError` for another form, or a size twice."""
    names: dict[str, str] = {}
    for option in options or []:
        size, _, name = option.partition("=")
        if not size or not name or size in names:
            raise UsageError(f"--size-name {option}: give each size one name, as in x_0=batch")
        names[size] = name
    return names


def parse_entries(options: list[str] | None) -> dict[str, Path] | None:
    """``["decode=d.pt2"]`` as ``{"decode": Path("d.pt2")}``; :class:`tkc.UsageError` for another form, or one twice."""
    entries: dict[str, Path] = {}
    for option in options or []:
        name, _, file = option.partition("=")
        if not name or not file or name in entries:
            raise UsageError(f"--entry {option}: give each entry one file, as in decode=decode.pt2")
        entries[name] = Path(file)
    return entries or None


def parse_constants(options: list[str] | None) -> dict[str, np.ndarray]:
    """``["axes=axes.npy"]`` as arrays by name; :class:`tkc.UsageError` for another form, a name twice, or no array."""
    arrays: dict[str, np.ndarray] = {}
    for option in options or []:
        name, _, file = option.partition("=")
        if not name or not file or name in arrays:
            raise UsageError(f"--constant {option}: give each input one file, as in axes=axes.npy")
        try:
            arrays[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"--constant {option}: {file} cannot be read as .npy: {error}") from None
        if not isinstance(arrays[name], np.ndarray):
            raise UsageError(f"--constant {option}: {file} holds several arrays; give a .npy file for each")
    return arrays


def parse_sizes(options: Sequence[str] | None) -> dict[str, int]:
    """``["height=64"]`` as ``{"height": 64}``; :class:`tkc.UsageError` for another form, or a name twice."""
    sizes: dict[str, int] = {}
    for option in options or []:
        name, _, value = option.partition("=")
        if not name or not (value.isascii() and value.isdigit()):
            raise UsageError(f"--size {option}: give each size a number, as in height=64")
        if name in sizes:
            raise UsageError(f"--size names {name} twice")
        sizes[name] = int(value)
    return sizes


def parse_shapes(options: list[str] | None) -> dict[str, list[int]]:
    """``["seq=128,2048"]`` as ``{"seq": [128, 2048]}``; :class:`tkc.UsageError` for another form, or a name twice."""
    sizes: dict[str, list[int]] = {}
    for option in options or []:
        name, _, values = option.partition("=")
        parts = values.split(",")
        if not name or not all(part.strip().isdigit() for part in parts):
            raise UsageError(f"--shapes {option}: expected a size's name and its values, such as seq=128,2048")
        if name in sizes:
            raise UsageError(f"--shapes names {name} twice; give all its values at once, such as {name}=1,8")
        sizes[name] = [int(part) for part in parts]
    return sizes


def parse_percent(option: str, text: str) -> float:
    """``2%`` as 0.02; :class:`tkc.UsageError` for anything but a percentage."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not math.isfinite(percent):
        raise UsageError(f"{option} {text}: expected a percentage such as 2%")
    return percent / 100
