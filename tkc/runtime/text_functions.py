"""Functions of strings, which generated code calls with tensors of codes (see :mod:`tkc.runtime.text_table`).

Generated code calls :data:`~tkc.contracts.CALL_TEXT` with a description of the call, in JSON, and with tensors on the
CPU. A description is ``{"function": "StringSplit", "delimiter": ",", ...}``: what is computed, and how, as the function
here that has its name in :data:`FUNCTIONS` says. The rest of what a model does with strings, such as to compare them or
to look them up, generated code does with codes as with any numbers.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tkc.errors import InputError
from tkc.runtime.input_checks import aligned
from tkc.runtime.text_table import TextTable, current_table
from tkc.runtime.unique import unique

Arrays = Sequence[np.ndarray]
_Function = Callable[[TextTable, Arrays], Arrays]

_START_OF_TEXT, _END_OF_TEXT = "\x02", "\x03"
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


def called(description: str, operands: Sequence[torch.Tensor]) -> Any:
    """What the described function makes of tensors: a tensor, or a list of several."""
    arrays = [operand.numpy() for operand in operands]
    results = [aligned(torch.from_numpy(result)) for result in _prepared(description)(current_table(), arrays)]
    return results[0] if len(results) == 1 else results


@functools.lru_cache(maxsize=4096)
def _prepared(description: str) -> _Function:
    """What makes the call that ``description`` describes."""
    attributes: dict[str, Any] = json.loads(description)
    function = FUNCTIONS[attributes.pop("function")]
    return functools.partial(function, **attributes)


def _each(table: TextTable, codes: np.ndarray, function: Callable[[str], Any], dtype: str) -> np.ndarray:
    """``function`` of each string, as numbers of ``dtype``; it is called once for equal ones."""
    values, places = np.unique(codes, return_inverse=True)
    made = np.array([function(table.string(code)) for code in values.tolist()], dtype)
    return np.asarray(made[places]).reshape(codes.shape)


def _lists(table: TextTable, codes: np.ndarray, function: Callable[[str], list[str]]) -> list[list[str]]:
    """``function`` of each string, in order; it is called once for equal ones."""
    values, places = np.unique(codes, return_inverse=True)
    made = [function(table.string(code)) for code in values.tolist()]
    return [made[place] for place in places.ravel().tolist()]


def _padded(table: TextTable, lists: list[list[str]], width: int, padding: str, shape: Sequence[int]) -> np.ndarray:
    """The lists, each with ``padding`` behind it up to ``width``, as codes of ``[*shape, width]``."""
    strings = itertools.chain.from_iterable([*each, *[padding] * (width - len(each))] for each in lists)
    return table.encoded(strings, [*shape, width])


def _concatenated(table: TextTable, arrays: Arrays) -> Arrays:
    """StringConcat: pairs of strings, which broadcast."""
    first, second = np.broadcast_arrays(*arrays)
    pairs = zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)
    return [table.encoded((table.string(one) + table.string(other) for one, other in pairs), first.shape)]


def _split(table: TextTable, arrays: Arrays, delimiter: str | None, most: int) -> Arrays:
    """StringSplit: the parts between delimiters, or between whitespace, along a new axis, and how many there are.

    Strings of fewer parts than another are followed by empty ones.
    """
    (codes,) = arrays
    lists = _lists(table, codes, lambda string: string.split(delimiter, most))
    counts = np.array([len(each) for each in lists], "int64").reshape(codes.shape)
    return [_padded(table, lists, int(counts.max(initial=0)), "", codes.shape), counts]


def _matches(table: TextTable, arrays: Arrays, pattern: str) -> Arrays:
    """RegexFullMatch: whether all of a string matches a pattern of Python's."""
    expression = re.compile(pattern)
    return [_each(table, arrays[0], lambda string: expression.fullmatch(string) is not None, "bool")]


def _lower(string: str) -> str:
    return _by_character(string, str.lower, {"İ": "i"}.get)


def _upper(string: str) -> str:
    return _by_character(string, str.upper, str.title)  # of letters with an iota below them, which is one title letter


def _by_character(string: str, convert: Callable[[str], str], otherwise: Callable[[str], str | None]) -> str:
    """A string in another case, as the C library has it: each character becomes one, or stays."""
    if string.isascii():
        return convert(string)
    made = []
    for old in string:
        new = convert(old)
        if len(new) != 1:
            new = otherwise(old) or old
        made.append(new if len(new) == 1 else old)
    return "".join(made)


_CASES: dict[str, Callable[[str], str]] = {"LOWER": _lower, "UPPER": _upper, "NONE": str}


def _normalized(table: TextTable, arrays: Arrays, case: str, stopwords: list[str], is_case_sensitive: bool) -> Arrays:
    """StringNormalizer: ``[C]`` or ``[1, C]`` strings without stop words, in one case; an empty one if none is left."""
    (codes,) = arrays
    if codes.ndim == 2 and codes.shape[0] != 1:
        raise InputError(f"StringNormalizer normalizes strings of shape {list(codes.shape)}; expected [C] or [1, C]")
    compared = str if is_case_sensitive else _CASES["UPPER" if case == "UPPER" else "LOWER"]
    dropped = {compared(word) for word in stopwords}
    strings = map(table.string, codes.ravel().tolist())
    kept = [_CASES[case](string) for string in strings if compared(string) not in dropped] or [""]
    return [table.encoded(kept, [*codes.shape[:-1], len(kept)])]


def _tokenized(
    table: TextTable,
    arrays: Arrays,
    expression: str | None,
    separators: list[str],
    is_greedy: bool,
    least: int,
    marks: bool,
    padding: str,
) -> Arrays:
    """ONNX Runtime's Tokenizer: tokens along a new axis, of ``least`` characters, between ``marks``, then ``padding``.

    Tokens are what matches ``expression``, what lies between matches of ``separators``, each in turn, or characters.
    Where the longest match counts, and that of Python's patterns is another one, ``is_greedy`` is false.
    """
    (codes,) = arrays
    compiled = [re.compile(each) for each in ([expression] if expression is not None else separators)]

    def tokens(string: str) -> list[str]:
        if expression is not None:
            found = [string[start:end] for start, end in _found(compiled[0], string, is_greedy)]
        elif compiled:
            found = [string]
            for each in compiled:
                found = [part for whole in found for part in _between(each, whole, is_greedy)]
        else:
            found = list(string)
        return [token for token in found if len(token) >= max(least, 1)]

    lists = _lists(table, codes, tokens)
    width = max(map(len, lists), default=0)
    if marks and width:
        lists = [[_START_OF_TEXT, *each, _END_OF_TEXT] for each in lists]
        width += 2
    return [_padded(table, lists, width, padding, codes.shape)]


def _found(expression: re.Pattern[str], string: str, is_greedy: bool) -> Iterator[tuple[int, int]]:
    """Where the longest matches that do not overlap begin and end, those of nothing left out."""
    start = 0
    while start <= len(string) and (found := expression.search(string, start)) is not None:
        begin, end = found.span()
        if not is_greedy:
            ends = range(len(string), end, -1)
            end = next((each for each in ends if expression.fullmatch(string, begin, each) is not None), end)
        if end > begin:
            yield begin, end
        start = max(end, begin + 1)


def _between(expression: re.Pattern[str], string: str, is_greedy: bool) -> Iterator[str]:
    start = 0
    for begin, end in _found(expression, string, is_greedy):
        yield string[start:begin]
        start = end
    yield string[start:]


def _written(table: TextTable, arrays: Arrays) -> Arrays:
    """Cast of numbers to strings, as NumPy writes them."""
    (numbers,) = arrays
    return [table.encoded(map(str, numbers.astype(np.str_).ravel().tolist()), numbers.shape)]


def _read(table: TextTable, arrays: Arrays, dtype: str, least: int, most: int, source: str) -> Arrays:
    """Cast of strings to numbers: to float64, bool, or int64 or uint64 from ``least`` to ``most``."""

    def number(string: str) -> float | int | bool:
        text = string.strip()
        if dtype == "float64":
            if _FLOAT.fullmatch(text):
                return float(text)
        elif _INTEGER.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        kind = "a number" if dtype == "float64" else f"a whole number from {least} to {most}"
        raise InputError(f"{source} casts the string {string[:100]!r}, which is not {kind}")

    return [_each(table, arrays[0], number, dtype)]


def _different(table: TextTable, arrays: Arrays, axis: int | None, in_order: bool) -> Arrays:
    """Unique: see :func:`tkc.runtime.unique.unique`; strings are in the order of their characters."""
    (codes,) = arrays
    strings = {code: table.string(code) for code in np.unique(codes).tolist()}
    ordered = np.array(sorted(strings, key=strings.__getitem__), "int64")
    ranks = dict(zip(ordered.tolist(), range(len(ordered)), strict=True))
    ranked = np.array([ranks[code] for code in codes.ravel().tolist()], "int64").reshape(codes.shape)
    values, *others = (result.numpy() for result in unique(torch.from_numpy(ranked), axis, in_order))
    return [ordered[values], *others]


def ranks_of(tokens: np.ndarray) -> int:
    """How many ranks tokens have: their places among sorted ``tokens``, and one that all others have."""
    return len(tokens) + 1


def _found_among(keys: np.ndarray, sought: np.ndarray) -> np.ndarray:
    """The places of numbers among sorted ``keys``, ``len(keys)`` for one that is none of them."""
    places = np.searchsorted(keys, sought)
    is_key = keys[np.minimum(places, len(keys) - 1)] == sought
    return np.where(is_key, places, len(keys))


def _grams_counted(table: TextTable, arrays: Arrays, lengths: list[int], skips: int, width: int) -> Arrays:
    """TfIdfVectorizer: how often the rows of codes ``[S]`` or ``[B, S]`` have each n-gram, ``float32 [..., width]``.

    Behind the codes come the sorted tokens of all n-grams. For each of ``lengths`` follow, for every token but the
    first, sorted keys: the place of what comes before it, times :func:`ranks_of` tokens, and its rank. Last come, by
    the places of the last keys, the columns that count, -1 for none.
    """
    codes, tokens, *rest = arrays
    rows = codes.reshape(-1, codes.shape[-1])
    ranks, left = _found_among(tokens, rows), iter(rest)
    starts = np.arange(len(rows))[:, None] * width
    total = np.zeros(len(rows) * width, "int64")
    for length in lengths:
        *levels, columns = (next(left) for _ in range(length))
        for step in range(1, (skips if length > 1 else 0) + 2):  # of single tokens, skipping leaves nothing else
            places = rows.shape[1] - (length - 1) * step
            if places <= 0:
                break
            found = ranks[:, :places]
            for position, keys in enumerate(levels, 1):
                behind = ranks[:, position * step : position * step + places]
                found = _found_among(keys, found * ranks_of(tokens) + behind)
            counted = columns[found]
            total += np.bincount((starts + counted)[counted >= 0], minlength=len(total))
    return [total.astype("float32").reshape(*codes.shape[:-1], width)]


FUNCTIONS: dict[str, Callable[..., Arrays]] = {
    "CastFromString": _read,
    "CastToString": _written,
    "RegexFullMatch": _matches,
    "StringConcat": _concatenated,
    "StringNormalizer": _normalized,
    "StringSplit": _split,
    "TfIdfVectorizer": _grams_counted,
    "Tokenizer": _tokenized,
    "Unique": _different,
}
"""The functions by name. Each takes the call's table and arrays of codes, or of numbers, and how it is to compute."""
