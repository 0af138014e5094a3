"""What is looked at in a saved PyTorch program before PyTorch reads it, whose loader evaluates and unpickles.

A file may come from anybody. Sizes are text that sympy evaluates as Python, names become the source of a function,
calls are looked up by their names, and what is pickled may name any function. Here each is compared with what
``torch.export.save`` writes, and nothing of it runs.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any

import torch
from torch.utils._sympy import functions as size_functions

from tkc.errors import UnsupportedModelError, UsageError
from tkc.runtime.structures import UnknownClassError, check_structure

MOST_JSON = 256 << 20
"""Bytes of the largest graph, as JSON, that is read; that of a model with thousands of nodes has some millions."""

_MOST_FORMULA = 4000  # characters
_MOST_FORMULA_DEPTH = 60
_MOST_BITS = 16_384  # of a number that a formula computes
_MOST_EXPONENT = 16
_MOST_UNBACKED = 100_000  # PyTorch counts up to the number in a size's name
_MOST_ELEMENTS = 1 << 36
_MOST_EXPANDED = 1 << 30  # bytes that a tensor may have beyond those that are stored of it
_LONGEST_TOLD = 120

_CHARACTERS = re.compile(r"[A-Za-z0-9_+\-*/%(),.<>=!&|~' ]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FUNCTIONS = frozenset(
    {
        *(name for name, value in vars(size_functions).items() if _NAME.fullmatch(name) and isinstance(value, type)),
        *(
            "Abs",
            "Add",
            "And",
            "Eq",
            "Equality",
            "Ge",
            "GreaterThan",
            "Gt",
            "Le",
            "LessThan",
            "Lt",
            "Max",
            "Min",
            "Mul",
        ),
        *("Ne", "Not", "Or", "Piecewise", "Pow", "StrictGreaterThan", "StrictLessThan", "Unequality", "Xor"),
        *("ExprCondPair", "Tuple", "ceiling", "floor", "sqrt", "exp", "log", "sin", "cos", "tan", "sign"),
        *("Float", "Integer", "Rational", "Symbol"),
    }
)
_MADE_FUNCTIONS = re.compile(r"(OpaqueUnaryFn|BitwiseFn)_[a-z0-9_]+", re.ASCII)
_NODES = (
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.Tuple),
    *(ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
_REFUSED_OPERATORS = (ast.BitXor, ast.MatMult, ast.LShift, ast.RShift, ast.In, ast.NotIn, ast.Is, ast.IsNot)

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

_GUARD_NODES = (
    *(ast.Subscript, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Name, ast.Constant),
    *(ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
_GUARD_ATTRIBUTES = frozenset({"size", "shape", "stride", "dim", "ndim", "numel", "storage_offset"})
_GUARD_CALLS = _GUARD_ATTRIBUTES | {
    "max",
    "min",
    "Max",
    "Min",
    "Mod",
    "FloorDiv",
    "PythonMod",
    "CleanDiv",
    "abs",
    "len",
}

_OLD_PROGRAM = "serialized_exported_program.json"
_OLD_PICKLES = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")
_PICKLES = re.compile(r"data/(sample_inputs/.*|(weights|constants)/[^/]*\.pt)")
_CONFIG = re.compile(r"data/(weights|constants)/.*_config\.json")
_ZIP = b"PK\3\4"


def check_members(path: Path) -> None:
    """Raise a :class:`tkc.Error` for an archive with a member that PyTorch could not read without running code of it,
    or that says what cannot be. :class:`UsageError` is for objects that a user may say are safe.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        try:
            for name in names:
                if name == _OLD_PROGRAM:
                    _check_program(name, archive.read(name))
                elif _OLD_PICKLES.fullmatch(name):
                    _check_pickle(name, archive.read(name))
        except RuntimeError as error:
            raise _wrong(f"its member {name[:_LONGEST_TOLD]!r} cannot be read ({error})") from error
    if _OLD_PROGRAM not in names or any(name.endswith("archive_format") for name in names):
        _check_new_layout(path, names)


def harmless_guards(guards: list[str]) -> list[str]:
    """Those of the conditions, which ``ExportedProgram.module`` runs as Python, that only compare sizes of inputs."""
    return [guard for guard in guards if _is_harmless(guard)]


def _check_new_layout(path: Path, names: list[str]) -> None:
    """Members are read by PyTorch's own reader, as they will be."""
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        records = reader.get_all_records()
    except RuntimeError as error:
        raise _wrong(str(error).partition("\n")[0]) from error
    folders = {name.partition("/")[0] for name in names}
    if len(folders) != 1 or sorted(f"{folder}/{record}" for folder in folders for record in records) != sorted(names):
        raise _wrong("it has several indices, or members outside of its folder")
    read: Callable[[str], bytes] = reader.get_record
    for record in records:
        if record.startswith("models/"):
            _check_program(record, read(record))
        elif _CONFIG.fullmatch(record):
            _check_payloads(record, read, reader.get_record_size, records)
        elif _PICKLES.fullmatch(record):
            _check_pickle(record, read(record))


def _check_payloads(name: str, read: Callable[[str], bytes], size_of: Callable[[str], int], records: list[str]) -> None:
    """The tensors of a configuration: none is larger than what is stored of it, or a pickle of anything."""
    folder = name.rpartition("/")[0]
    config = _json(name, read(name)).get("config")
    if not isinstance(config, dict):
        raise _wrong(f"its member {name!r} lists no tensors")
    for key, entry in config.items():
        told = f"the tensor {key[:_LONGEST_TOLD]!r} of its member {name!r}"
        try:
            path = entry["path_name"]
            if f"{folder}/{path}" not in records:
                raise _wrong(f"{told} stands in {str(path)[:_LONGEST_TOLD]!r}, which is not there")
            if not path.startswith(("weight_", "tensor_")):
                raise UsageError(
                    f"The archive holds {key[:_LONGEST_TOLD]!r} as {path!r}, an object of a class of its own, which "
                    "only its own code can read. Export the model without it."
                )
            if entry["use_pickle"]:
                _check_pickle(f"{folder}/{path}", read(f"{folder}/{path}"))
                continue
            meta = entry["tensor_meta"]
            sizes = [size["as_int"] for size in meta["sizes"]]
            whole = [*sizes, *(step["as_int"] for step in meta["strides"]), meta["storage_offset"]["as_int"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise _wrong(f"{told} is not described as tensors are ({error!r})") from None
        if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in whole):
            raise _wrong(f"{told} has a size, a stride or an offset that no tensor has")
        stored = size_of(f"{folder}/{path}")
        elements = math.prod(sizes)
        if elements > _MOST_ELEMENTS or (elements > stored + _MOST_EXPANDED) or (elements and not stored):
            raise _wrong(f"{told} has the shape {sizes}, and {stored} bytes are stored of it")


def _check_pickle(name: str, content: bytes) -> None:
    """A pickle that PyTorch's restricted unpickler reads to its end names nothing that runs."""
    if not content:
        return
    try:
        if not content.startswith(_ZIP):
            raise ValueError("no archive of torch.save")
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    except Exception as error:
        reason = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", reason)
        what = f"names {named[1]}" if named else f"holds more than tensors ({reason.strip().splitlines()[-1:]})"
        raise UsageError(
            f"The member {name!r} of the archive {what[:300]}, which may run code. If you trust it, say so with "
            "torch.serialization.add_safe_globals (on the command line: in a module that --import names); or export "
            "the model with example inputs and weights that are plain tensors."
        ) from error


def _json(name: str, content: bytes) -> dict[str, Any]:
    if len(content) > MOST_JSON:
        raise _wrong(f"its member {name[:_LONGEST_TOLD]!r} has {len(content)} bytes, and {MOST_JSON} are the most")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"its member {name[:_LONGEST_TOLD]!r} is no JSON ({str(error)[:_LONGEST_TOLD]})") from None
    if not isinstance(found, dict):
        raise _wrong(f"its member {name[:_LONGEST_TOLD]!r} is no JSON object")
    return found


def _check_program(name: str, content: bytes) -> None:
    program = _json(name, content)
    for each in _objects(program):
        _check_object(each)
    ranges = program.get("range_constraints", {})
    for size in ranges if isinstance(ranges, dict) else ():
        digits = re.fullmatch(r"z?uf?(\d+)", size, re.ASCII)
        if digits and (len(digits[1]) > 9 or int(digits[1]) > _MOST_UNBACKED):
            raise _wrong(f"it has a size named {size[:_LONGEST_TOLD]!r}, which is higher than PyTorch counts")


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
            raise _wrong(f"it names a value {_told(each[key])}")
    if "target" in each and "inputs" in each:
        _check_target(each["target"])
    if "in_spec" in each or "out_spec" in each:
        names = [*(each.get("forward_arg_names") or ()), *_keywords(each.get("in_spec"))]
        if strange := [name for name in names if not _is_identifier(name)]:
            raise _wrong(f"it names an argument {_told(strange[0])}")
        for spec in (each.get("in_spec"), each.get("out_spec")):
            _check_spec(spec)


def _check_spec(spec: Any) -> None:
    if spec is None or spec == "":
        return
    try:
        check_structure(spec if isinstance(spec, str) else repr(spec))
    except UnknownClassError as error:
        raise UnsupportedModelError(
            f"The program takes or returns a class that is not registered here ({str(error)[:_LONGEST_TOLD]}). Import "
            "the modules that register it first (on the command line: --import MODULE)."
        ) from None
    except ValueError as error:
        raise _wrong(f"a structure of its arguments or results is none ({str(error)[:_LONGEST_TOLD]})") from None


def _keywords(spec: Any) -> list[Any]:
    """The names of arguments by keyword, in the structure of all arguments."""
    try:
        return list(json.loads(json.loads(spec)[1]["children_spec"][1]["context"]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return []


def _check_target(target: Any) -> None:
    named = isinstance(target, str) and len(target) <= 300
    if not named or not (target in _FUNCTION_TARGETS or _OPERATOR.fullmatch(target) or _EXTENSION.fullmatch(target)):
        raise _wrong(f"it calls {_told(target)}, which is no operator of a program")


def _check_formula(text: Any) -> None:
    problem = _formula_problem(text)
    if problem is not None:
        raise _wrong(f"it has a size {_told(text)}, which {problem}")


def _formula_problem(text: Any) -> str | None:
    """Why sympy must not evaluate ``text``, as the rest of a sentence; ``None`` if it may."""
    if not isinstance(text, str) or len(text) > _MOST_FORMULA or not _CHARACTERS.fullmatch(text):
        return "is no formula"
    try:
        formula = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "is no formula"
    if _depth(formula) > _MOST_FORMULA_DEPTH:
        return "is nested too deeply"
    for part in ast.walk(formula):
        if not isinstance(part, _NODES) or isinstance(part, _REFUSED_OPERATORS):
            return f"has a {type(part).__name__}"
        if isinstance(part, ast.Name) and (part.id.startswith("_") or iskeyword(part.id)):
            return f"names {part.id[:40]!r}"
        if isinstance(part, ast.Call):
            name = part.func.id if isinstance(part.func, ast.Name) else ""
            if name not in _FUNCTIONS and not _MADE_FUNCTIONS.fullmatch(name):
                return f"calls {name[:40]!r}"
            if any(keyword.arg is None or not isinstance(keyword.value, ast.Constant) for keyword in part.keywords):
                return "passes what no formula does"
            if any(_is_text(argument) for argument in part.args) and not _is_named(part, name):
                return "holds a text"
    texts = sum(map(_is_text, ast.walk(formula)))
    calls = sum(
        any(map(_is_text, part.args)) + sum(_is_text(keyword.value) for keyword in part.keywords)
        for part in ast.walk(formula)
        if isinstance(part, ast.Call)
    )
    return "holds a text" if texts != calls else _size_problem(formula)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float)


def _is_named(call: ast.Call, name: str) -> bool:
    """Whether the call makes a symbol, or a number with a precision, of one text that is no more than that."""
    first, *others = call.args
    if any(map(_is_text, others)) or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    if name == "Symbol":
        return _NAME.fullmatch(first.value) is not None
    return name == "Float" and re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", first.value, re.ASCII) is not None


def _depth(root: ast.AST) -> int:
    level, depth = [root], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _size_problem(formula: ast.AST) -> str | None:
    """Whether a number in it, or one that it computes on the way, would take memory; its depth is bounded."""

    def bits(node: ast.AST) -> float:
        match node:
            case ast.Constant(value=value):
                return abs(value).bit_length() if isinstance(value, int) else 64
            case ast.UnaryOp(operand=operand):
                return bits(operand)
            case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
                return power(base, exponent)
            case ast.BinOp(left=left, right=right):
                return bits(left) + bits(right)
            case ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow"), args=[base, exponent]):
                return power(base, exponent)
            case ast.Call(func=ast.Name(id="LShift"), args=[value, ast.Constant(value=int(count))]):
                return bits(value) + abs(count)
            case ast.Call(func=ast.Name(id="LShift" | "exp")):
                return math.inf
            case ast.Call(args=arguments):
                return sum(map(bits, arguments))
            case ast.Name():
                return 1
        return sum(map(bits, ast.iter_child_nodes(node)))

    def power(base: ast.AST, exponent: ast.AST) -> float:
        match exponent:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(count))) | ast.Constant(value=int(count)):
                pass
            case ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int(count))]):
                pass
            case ast.Call(func=ast.Name(id="Integer"), args=[ast.UnaryOp(operand=ast.Constant(value=int(count)))]):
                pass
            case ast.Call(func=ast.Name(id="Rational")) | ast.Constant():
                count = 1
            case _:
                return math.inf
        return math.inf if abs(count) > _MOST_EXPONENT else max(1, abs(count)) * bits(base)

    return "computes too large a number" if bits(formula) > _MOST_BITS else None


def _is_harmless(guard: str) -> bool:
    try:
        condition = ast.parse(guard, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for part in ast.walk(condition):
        if not isinstance(part, _GUARD_NODES) or isinstance(part, (*_REFUSED_OPERATORS, ast.Pow)):
            return False
        if isinstance(part, ast.Attribute) and part.attr not in _GUARD_ATTRIBUTES:
            return False
        if isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            if name not in _GUARD_CALLS or part.keywords:
                return False
    return True


def _is_identifier(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= 1000 and name.isidentifier() and not iskeyword(name)


def _told(text: Any) -> str:
    whole = repr(text)
    return whole if len(whole) <= _LONGEST_TOLD else f"{whole[:_LONGEST_TOLD]}..."


def _wrong(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The archive is none that torch.export.save writes: {reason}. Export the model again."
    )
