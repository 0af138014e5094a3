"""The JSON of a saved program: its names, calls, sizes and structures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.untrusted.formulas import formula_problem
from tkc.frontend.torch.untrusted.refusals import LONGEST_TOLD, told, wrong
from tkc.runtime.structures import UnknownClassError, check_structure

MOST_JSON = 256 << 20
"""Bytes of the largest graph, as JSON, that is read; that of a model with thousands of nodes has some millions."""
_MOST_UNBACKED = 100_000  # PyTorch counts up to the number in a size's name

_OPERATOR = re.compile(
    r"torch\.ops\.(?!load_library\b|loaded_libraries\b|import_module\b)[A-Za-z]\w*"
    r"(\.((?!__)\w+|__i?(and|or|xor|lshift|rshift)__)){1,2}",
    re.ASCII,
)
_FUNCTION_TARGETS = frozenset(
    {
        *(f"_operator.{name}" for name in (
            "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod", "pow", "truediv",
            "and_", "or_", "xor", "not_", "invert", "lshift", "rshift", "abs", "getitem",
        )),
        *(f"math.{name}" for name in ("trunc", "floor", "ceil", "sqrt", "pow")),
        *(f"torch.{name}" for name in (
            "sym_not", "sym_int", "sym_float", "sym_ite", "sym_max", "sym_min", "sym_sqrt", "sym_sum", "_sym_sqrt",
            "_sym_log2", "_sym_cos", "_sym_sin", "_sym_tan", "_sym_exp",
        )),
    }
)  # fmt: skip
_EXTENSION = re.compile(r"#\w+:[\w.:]+", re.ASCII)  # of a handler that some imported package registered


def json_object(name: str, content: bytes) -> dict[str, Any]:
    """The object that the member ``name`` holds."""
    if len(content) > MOST_JSON:
        raise wrong(f"its member {name[:LONGEST_TOLD]!r} has {len(content)} bytes, and {MOST_JSON} are the most")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise wrong(f"its member {name[:LONGEST_TOLD]!r} is no JSON ({str(error)[:LONGEST_TOLD]})") from None
    if not isinstance(found, dict):
        raise wrong(f"its member {name[:LONGEST_TOLD]!r} is no JSON object")
    return found


def check_program(name: str, content: bytes) -> None:
    """Raise a :class:`tkc.Error` for a graph that PyTorch's loader would run code of, or take much memory for."""
    program = json_object(name, content)
    for each in _objects(program):
        _check_object(each)
    ranges = program.get("range_constraints", {})
    for size in ranges if isinstance(ranges, dict) else ():
        digits = re.fullmatch(r"z?uf?(\d+)", size, re.ASCII)
        if digits and (len(digits[1]) > 9 or int(digits[1]) > _MOST_UNBACKED):
            raise wrong(f"it has a size named {size[:LONGEST_TOLD]!r}, which is higher than PyTorch counts")


def _objects(root: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object, without recursion."""
    stack = [root]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            yield each
            stack += each.values()
        elif isinstance(each, list):
            stack += each


def _check_object(each: Mapping[str, Any]) -> None:
    if "expr_str" in each:
        _check_formula(each["expr_str"])
    for key in ("name", "as_name"):
        # These become names in the source of a function.
        if key in each and each[key] is not None and each[key] != "" and not _is_identifier(each[key]):
            raise wrong(f"it names a value {told(each[key])}")
    if "target" in each and "inputs" in each:
        _check_target(each["target"])
    if "in_spec" in each or "out_spec" in each:
        names = [*(each.get("forward_arg_names") or ()), *_keywords(each.get("in_spec"))]
        if strange := [name for name in names if not _is_identifier(name)]:
            raise wrong(f"it names an argument {told(strange[0])}")
        for spec in (each.get("in_spec"), each.get("out_spec")):
            _check_spec(spec)


def _check_spec(spec: Any) -> None:
    if spec is None or spec == "":
        return
    try:
        check_structure(spec if isinstance(spec, str) else repr(spec))
    except UnknownClassError as error:
        raise UnsupportedModelError(
            f"The program takes or returns a class that is not registered here ({str(error)[:LONGEST_TOLD]}). Import "
            "the modules that register it first (on the command line: --import MODULE)."
        ) from None
    except ValueError as error:
        raise wrong(f"a structure of its arguments or results is none ({str(error)[:LONGEST_TOLD]})") from None


def _keywords(spec: Any) -> list[Any]:
    """The names of arguments by keyword, in the structure of all arguments."""
    try:
        return list(json.loads(json.loads(spec)[1]["children_spec"][1]["context"]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return []


def _check_target(target: Any) -> None:
    named = isinstance(target, str) and len(target) <= 300
    if not named or not (target in _FUNCTION_TARGETS or _OPERATOR.fullmatch(target) or _EXTENSION.fullmatch(target)):
        raise wrong(f"it calls {told(target)}, which is no operator of a program")


def _check_formula(text: Any) -> None:
    problem = formula_problem(text)
    if problem is not None:
        raise wrong(f"it has a size {told(text)}, which {problem}")


def _is_identifier(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= 1000 and name.isidentifier() and not iskeyword(name)
