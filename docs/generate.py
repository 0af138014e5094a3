"""A hook of MkDocs: writes the tables that are read off the code, and takes the root's pages into the site.

Nothing that it writes is committed. ``make docs`` runs it; ``mkdocs.yml`` names it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:  # the tests make the pages without MkDocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_FROM_ROOT = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
"""Pages at the root of the repository, and where the site has them."""


def generated_pages() -> dict[str, str]:
    """The pages that the code is read for, and those of the root, by their place in the site."""
    sys.path.insert(0, str(ROOT))
    from_root = {path: _from_root(source) for source, path in _FROM_ROOT.items() if path != "index.md"}
    return {
        "reference/command-line.md": command_line(),
        "reference/kernels.md": kernels(),
        "reference/pytorch-operators.md": pytorch_operators(),
        "reference/onnx-operators.md": onnx_operators(),
        "reference/models.md": models(),
        "reference/devices.md": devices(),
        **from_root,
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The site's files, with the generated pages among them."""
    from mkdocs.structure.files import File

    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """``markdown`` with links to the root's pages leading to the site's."""

    def link(found: re.Match[str]) -> str:
        return f"]({'../' * page.file.src_uri.count('/')}{_FROM_ROOT[found[1]]}"

    return re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, _FROM_ROOT))})", link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """``html`` with Sphinx's roles, in which docstrings name other objects, as plain code."""
    html = re.sub(r":(?:class|meth|func|attr|data|mod|exc):<code>~([^<]*\.)?([^<]+)</code>", r"<code>\2</code>", html)
    return re.sub(r":(?:class|meth|func|attr|data|mod|exc):<code>", "<code>", html)


def _from_root(name: str) -> str:
    """A page of the root as a page of the site: links into ``docs/`` lose that folder."""
    text = (ROOT / name).read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(rf"\]\(({'|'.join(map(re.escape, _FROM_ROOT))})", lambda found: f"]({_FROM_ROOT[found[1]]}", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    head = list(head)
    return "\n".join([line(head), line("---" for _ in head), *map(line, rows)]) + "\n"


def _text(docstring: str | None) -> str:
    """A docstring as Markdown."""
    text = inspect.cleandoc(docstring or "").replace("``", "`")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)


def _first_sentence(docstring: str | None) -> str:
    return _text(docstring).split("\n\n")[0].replace("\n", " ")


# Kernels.


def kernels() -> str:
    """The table of kernels, and a section for each."""
    from tkc.kernels.registry import SPECS

    rows = [
        (f"[`{name}`](#{_anchor(name)})", _title(name, spec), ", ".join(_rules(name)), *_support(name))
        for name, spec in SPECS.items()
    ]
    head = ("kernel", "computes", "rules that use it", "CPU", "CUDA")
    parts = [
        "# Kernels\n",
        "Generated from each family's spec and cases. A kernel whose CPU column says *on request* exists there, and "
        '`kernels="auto"` leaves its work to generated code, for the reason in its section; `kernels="all"` uses it.\n',
        _table(head, rows),
        *(_kernel_section(name, spec) for name, spec in SPECS.items()),
    ]
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "", name)


_ATTENTION = {
    "attention.prefill": "Scaled dot-product attention of many queries (prefill).",
    "attention.decode": "Scaled dot-product attention of one query over a long KV cache (decode).",
}
"""Two specs that stand in one module, whose text is of both."""


def _title(kernel: str, spec: Any) -> str:
    """The first line of what the module of a spec says, which names the operator."""
    return _ATTENTION.get(kernel) or _first_sentence(sys.modules[type(spec).__module__].__doc__)


def _rules(kernel: str) -> list[str]:
    from tkc.passes.rules.table import PRODUCT_RULES, RULES

    return [rule.name for rule in (*RULES, *PRODUCT_RULES) if rule.kernel == kernel]


def _cases(kernel: str, kind: str) -> list[Any]:
    from tkc.kernels.all_cases import cases_of

    return [case for case in getattr(cases_of(kernel), kind) if case.kernel == kernel]


def _support(kernel: str) -> tuple[str, str]:
    """Whether the kernel's cases exist on the CPU and on CUDA."""
    from tkc.kernels import SPECS, Target
    from tkc.kernels.devices import ARCHITECTURES

    spec = SPECS[kernel]
    all_cases = [*_cases(kernel, "benchmarked"), *_cases(kernel, "checked")]

    def some(target: str, ask: Callable[[Any, Target], str | None]) -> bool:
        return any(ask(case.parameters, Target.parse(target)) is None for case in all_cases)

    cpu = "no"
    if some("cpu", spec.unsupported):
        cpu = "yes" if some("cpu", spec.beneficial) else "on request"
    archs = [arch for arch in ARCHITECTURES if some(f"cuda:{arch}", spec.unsupported)]
    cuda = "all architectures" if len(archs) == len(ARCHITECTURES) else ", ".join(archs) or "no"
    return cpu, cuda


def _kernel_section(name: str, spec: Any) -> str:
    from tkc.kernels import Target
    from tkc.kernels.all_cases import cases_of

    hints = get_type_hints(spec.parameters_type)
    fields = [
        (f"`{field.name}`", f"`{_type_name(hints[field.name])}`", _default(field))
        for field in dataclasses.fields(spec.parameters_type)
    ]
    parts = [f"## {name} {{#{_anchor(name)}}}\n", _text(type(spec).__doc__) + "\n"]
    if spec.dispatch_size:
        parts.append(f"Each call chooses its configuration by `{spec.dispatch_size}`.\n")
    checked = _cases(name, "checked")
    if checked and (reason := spec.beneficial(checked[0].parameters, Target.parse("cpu"))):
        parts.append(f'On the CPU, `kernels="auto"` leaves it out: {reason}.\n')
    parts += [
        "**Parameters.** " + _text(spec.parameters_type.__doc__) + "\n",
        _table(("name", "type", "default"), fields),
    ]
    example = checked[0].parameters if checked else _cases(name, "benchmarked")[0].parameters
    tensors = [
        (f"`{tensor.name}`", kind, "`[" + ", ".join(map(str, tensor.shape)) + "]`", tensor.dtype)
        for kind, types in (("input", spec.inputs(example)), ("output", spec.outputs(example)))
        for tensor in types
    ]
    parts += [f"**Tensors** of `{_short(example)}`:\n", _table(("tensor", "", "shape", "dtype"), tensors)]
    measured = _cases(name, "benchmarked")
    if measured:
        told = cases_of(name).told
        sizes = list(dict.fromkeys(key for case in measured for key in case.sizes))
        rows: dict[tuple[str, ...], list[str]] = {}
        for case in measured:
            row = tuple(_value(getattr(case.parameters, key, "")) for key in told)
            rows.setdefault(row, []).append(" × ".join(_value(case.sizes.get(key, "")) for key in sizes))
        table = _table((*told, " × ".join(sizes)), ((*row, "; ".join(dict.fromkeys(at))) for row, at in rows.items()))
        parts += [f"**Benchmarked** by `tkc bench kernels {name}` at:\n", table]
    return "\n".join(parts)


def _type_name(hint: Any) -> str:
    return re.sub(
        r"\b(typing|types)\.",
        "",
        hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint),
    )


def _default(field: dataclasses.Field[Any]) -> str:
    return "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return " + ".join(map(_value, value))
    return "" if value is None else str(value)


def _short(parameters: Any) -> str:
    """Parameters without those that have their default."""
    given = (
        f"{field.name}={getattr(parameters, field.name)!r}"
        for field in dataclasses.fields(parameters)
        if getattr(parameters, field.name) != field.default
    )
    return f"{type(parameters).__name__}({', '.join(given)})"


# Operators.


def pytorch_operators() -> str:
    """The ATen operators that have a converter, by the file that it stands in."""
    from tkc.frontend.torch.converters import CONVERTERS, KEPT

    by_file: dict[str, list[str]] = {}
    for name, converter in CONVERTERS.items():
        unwrapped = inspect.unwrap(converter)
        while hasattr(unwrapped, "func"):  # functools.partial
            unwrapped = unwrapped.func
        module = sys.modules[unwrapped.__module__]
        by_file.setdefault(_file_of(module.__name__), []).append(name)
    parts = [
        "# PyTorch operators\n",
        f"Generated from the converters' tables: {len(CONVERTERS)} overloads of ATen operators. `torch.export` "
        "decomposes most others into these, so that many more of `torch`'s functions compile; "
        "[a run of PyTorch's operator database](../conformance/operators-cpu.md) says which. Marked *whole* are those "
        "that are kept from decomposition because a rule or a converter wants to see them.\n",
    ]
    for file, names in sorted(by_file.items()):
        parts += [f"## {Path(file).stem}\n", f"`{file}`\n"]
        parts.append(_columns(f"`{name}`{' *whole*' if _is_kept(name, KEPT) else ''}" for name in sorted(names)))
    return "\n".join(parts)


def _is_kept(name: str, kept: frozenset[str]) -> bool:
    return f"aten::{name.split('.')[1]}" in kept


def _file_of(module: str) -> str:
    return "/".join(module.split(".")) + ".py"


def _columns(names: Iterable[str]) -> str:
    return "\n".join(f"- {name}" for name in names) + "\n"


def onnx_operators() -> str:
    """The ONNX operators, and whose converter each has."""
    from tkc.frontend.onnx.converters import CONVERTERS
    from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, ML_DOMAIN, stock_converters
    from tkc.frontend.onnx.expansion import CONTROL_FLOW, expandable_operators
    from tkc.frontend.onnx.sequences import OPERATORS as SEQUENCES

    parts = [
        "# ONNX operators\n",
        "Generated from the importer's tables. *tkc* has a converter of its own; *TVM* is Apache TVM's converter; "
        "*function* is expanded into the operators of its definition in the standard. "
        "[A run of ONNX's backend tests](../conformance/onnx.md) says which of their cases are right. An operator "
        "that is not listed is refused by name.\n",
    ]
    functions = expandable_operators()
    for domain, title in (("", "ai.onnx"), (ML_DOMAIN, ML_DOMAIN), (MICROSOFT_DOMAIN, MICROSOFT_DOMAIN)):
        own = {name for other, name in CONVERTERS if other == domain}
        if domain == "":
            own |= CONTROL_FLOW | SEQUENCES
        expanded = {name for other, name in functions if other == domain}
        known = own | expanded | set(stock_converters(domain))
        rows = [
            (f"`{name}`", "tkc" if name in own else "function" if name in expanded else "TVM") for name in sorted(known)
        ]
        parts += [f"## {title}\n", _table(("operator", "converter"), rows)]
    return "\n".join(parts)


# Models and devices.


def models() -> str:
    """The models that tests and benchmarks compile."""
    import importlib.util

    from tkc.bench.architectures import ARCHITECTURES
    from tkc.bench.decoding import DECODE_STEPS
    from tkc.bench.models import MODELS

    at = importlib.util.spec_from_file_location("tested_models", ROOT / "tests" / "frontend" / "models.py")
    assert at is not None and at.loader is not None
    tested = importlib.util.module_from_spec(at)
    sys.modules[at.name] = tested
    at.loader.exec_module(tested)
    cases = [case.name for case in vars(tested).values() if isinstance(case, tested.Case)]
    record = json.loads((ROOT / "docs" / "benchmarks" / "h200" / "architectures.json").read_text())
    measured = {row["name"].split(",")[0].rpartition(" ")[2] for row in record["rows"]}
    rows = [
        (f"`{name}`", architecture.family, "yes" if name in measured else "", "yes" if name in cases else "")
        for name, architecture in ARCHITECTURES.items()
    ]
    return "\n".join(
        [
            "# Models\n",
            "Generated from the tables that tests and benchmarks read. Any model that `torch.export` exports compiles "
            "if all its operators have a converter; these are the ones that are tried.\n",
            "## Architectures of transformers\n",
            "`tkc bench architectures` compiles each with two layers and random weights, and compares it with PyTorch. "
            "*Measured* ones stand in the [record of the H200](../benchmarks/architectures.md); *tested* ones are "
            "compiled and compared by the tests, with sizes that stay symbolic.\n",
            _table(("model type", "kind", "measured", "tested"), rows),
            "## Benchmarked models\n",
            "`tkc bench model NAME`:\n",
            _columns(f"`{name}`" for name in (*MODELS, *DECODE_STEPS)),
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
            _table(head, rows),
            f"For {', '.join(f'`{arch}`' for arch in _UNLISTED)} there is no row: kernels use the instructions of 8.0 "
            "and the least shared memory of all rows, and the report says so. Nothing was measured on them.\n",
        ]
    )


# The command line.


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
        parts += [f"## {name}\n", _text(command.help) + "\n"]
        rows = [
            (", ".join(f"`{option}`" for option in parameter.opts), _kind(parameter), _help(parameter))
            for parameter in command.params
            if parameter.name not in ("help", "install_completion", "show_completion")
        ]
        if rows:
            parts.append(_table(("name", "", "meaning"), rows))
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key, each in inner.items():
        yield from _commands(f"{name} {key}", each)


def _kind(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    kind = "option" if parameter.opts[0].startswith("-") else "argument"
    return f"{kind}, required" if parameter.required else kind


def _help(parameter: Any) -> str:
    return _text(getattr(parameter, "help", None) or "").replace("\n", " ")
