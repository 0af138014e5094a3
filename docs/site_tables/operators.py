"""The pages of operators that have a converter."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from site_tables.markdown import bullets, table


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
        parts.append(bullets(f"`{name}`{' *whole*' if _is_kept(name, KEPT) else ''}" for name in sorted(names)))
    return "\n".join(parts)


def _is_kept(name: str, kept: frozenset[str]) -> bool:
    return f"aten::{name.split('.')[1]}" in kept


def _file_of(module: str) -> str:
    return "/".join(module.split(".")) + ".py"


def onnx_operators() -> str:
    """The ONNX operators, and whose converter each has."""
    from tkc.frontend.onnx.converters import CONVERTERS
    from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, ML_DOMAIN, stock_converters
    from tkc.frontend.onnx.expansion import CONTROL_FLOW, expandable_operators
    from tkc.frontend.onnx.sequences import OPERATORS as SEQUENCES
    from tkc.frontend.onnx.text.labels import MAPS
    from tkc.frontend.onnx.text.operators import FUNCTIONS

    parts = [
        "# ONNX operators\n",
        "Generated from the importer's tables. *tkc* has a converter of its own; *TVM* is Apache TVM's converter; "
        "*function* is expanded into the operators of its definition in the standard. "
        "[A run of ONNX's backend tests](../conformance/onnx.md) says which of their cases are right. An operator "
        "that is not listed is refused by name. [Strings](../how-to/call-an-executable.md#strings) are for some of "
        "them.\n",
    ]
    functions = expandable_operators()
    for domain, title in (("", "ai.onnx"), (ML_DOMAIN, ML_DOMAIN), (MICROSOFT_DOMAIN, MICROSOFT_DOMAIN)):
        own = {name for other, name in CONVERTERS if other == domain}
        if domain == "":
            own |= CONTROL_FLOW | SEQUENCES
        own |= {name for other, name in (*FUNCTIONS, *MAPS) if other == domain}
        expanded = {name for other, name in functions if other == domain}
        known = own | expanded | set(stock_converters(domain))
        rows = [
            (f"`{name}`", "tkc" if name in own else "function" if name in expanded else "TVM") for name in sorted(known)
        ]
        parts += [f"## {title}\n", table(("operator", "converter"), rows)]
    return "\n".join(parts)
