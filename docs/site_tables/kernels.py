"""The page of kernels, read off their specs and cases."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

from site_tables.markdown import first_sentence, plain_text, table


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
        table(head, rows),
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
    return _ATTENTION.get(kernel) or first_sentence(sys.modules[type(spec).__module__].__doc__)


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
    parts = [f"## {name} {{#{_anchor(name)}}}\n", plain_text(type(spec).__doc__) + "\n"]
    if spec.dispatch_size:
        parts.append(f"Each call chooses its configuration by `{spec.dispatch_size}`.\n")
    checked = _cases(name, "checked")
    if checked and (reason := spec.beneficial(checked[0].parameters, Target.parse("cpu"))):
        parts.append(f'On the CPU, `kernels="auto"` leaves it out: {reason}.\n')
    parts += [
        "**Parameters.** " + plain_text(spec.parameters_type.__doc__) + "\n",
        table(("name", "type", "default"), fields),
    ]
    example = checked[0].parameters if checked else _cases(name, "benchmarked")[0].parameters
    tensors = [
        (f"`{tensor.name}`", kind, "`[" + ", ".join(map(str, tensor.shape)) + "]`", tensor.dtype)
        for kind, types in (("input", spec.inputs(example)), ("output", spec.outputs(example)))
        for tensor in types
    ]
    parts += [f"**Tensors** of `{_short(example)}`:\n", table(("tensor", "", "shape", "dtype"), tensors)]
    measured = _cases(name, "benchmarked")
    if measured:
        told = cases_of(name).told
        sizes = list(dict.fromkeys(key for case in measured for key in case.sizes))
        rows: dict[tuple[str, ...], list[str]] = {}
        for case in measured:
            row = tuple(_value(getattr(case.parameters, key, "")) for key in told)
            rows.setdefault(row, []).append(" × ".join(_value(case.sizes.get(key, "")) for key in sizes))
        benchmarked = table(
            (*told, " × ".join(sizes)), ((*row, "; ".join(dict.fromkeys(at))) for row, at in rows.items())
        )
        parts += [f"**Benchmarked** by `tkc bench kernels {name}` at:\n", benchmarked]
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
