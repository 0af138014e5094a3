"""Regular expressions in RE2's syntax, which ONNX has, as Python's that match the same strings.

Of what both have, some means another thing: ``$`` in Python is also before a last line break, ``\\d`` any digit of
Unicode, ``\\s`` a vertical tab as well, ``a{,2}`` a repeat and ``a++`` a possessive one. So each part is written anew,
of what cannot be read otherwise: sets of characters, groups and repeats. What is read here is the syntax of
https://github.com/google/re2/wiki/Syntax without the classes of Unicode (``\\pN``), whose tables differ by version.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

_Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF
_DIGITS: _Ranges = [(48, 57)]
_UPPER: _Ranges = [(65, 90)]
_LOWER: _Ranges = [(97, 122)]
_WORD: _Ranges = [*_DIGITS, *_UPPER, (95, 95), *_LOWER]
_PERL = {"d": _DIGITS, "s": [(9, 10), (12, 13), (32, 32)], "w": _WORD}
_POSIX = {
    "alnum": [*_DIGITS, *_UPPER, *_LOWER],
    "alpha": [*_UPPER, *_LOWER],
    "ascii": [(0, 127)],
    "blank": [(9, 9), (32, 32)],
    "cntrl": [(0, 31), (127, 127)],
    "digit": _DIGITS,
    "graph": [(33, 126)],
    "lower": _LOWER,
    "print": [(32, 126)],
    "punct": [(33, 47), (58, 64), (91, 96), (123, 126)],
    "space": [(9, 13), (32, 32)],
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": [*_DIGITS, (65, 70), (97, 102)],
}
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_FOLDED_ALONE = {ord("k"): 0x212A, ord("s"): 0x17F}
"""Letters that are equal to one beyond ASCII where case does not count: the sign of Kelvin, and the long s."""

_BOUNDARY = "(?:(?<![0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?![0-9A-Za-z_]))"
_NO_BOUNDARY = "(?:(?<![0-9A-Za-z_])(?![0-9A-Za-z_])|(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_]))"
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII)
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])", re.ASCII)
_NAMED = re.compile(r"\(\?P?<(\w+)>", re.ASCII)
_MOST_REPEATS = 1000
_MOST_DEPTH = 50


class PatternError(ValueError):
    """What a pattern has that is no RE2, or has no counterpart, as a clause that follows "the pattern"."""


@dataclass(frozen=True)
class Translated:
    """A pattern of Python's. Of ``is_greedy`` ones, the first match at a place is also the longest one.

    Those with ``anchors`` ask for more than the characters that they match.
    """

    pattern: str
    is_greedy: bool
    anchors: bool


def translated(pattern: str) -> Translated:
    """The pattern of Python's that matches the strings that RE2 matches. Raises :class:`PatternError` without one."""
    reader = _Reader(pattern)
    text = reader.group(_Flags(), 0)
    if reader.at < len(pattern):
        raise PatternError("has a ')' that closes nothing")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"cannot be compiled by Python ({error})") from error
    return Translated(text, reader.is_greedy and reader.variable <= 1, reader.anchors)


@dataclass(frozen=True)
class _Flags:
    """Whether case counts not, ``^`` and ``$`` are at lines, ``.`` is any character, and repeats take little."""

    i: bool = False
    m: bool = False
    s: bool = False
    U: bool = False


class _Reader:
    """Reads a pattern from :attr:`at` on, and writes it for Python."""

    def __init__(self, pattern: str) -> None:
        self.at = 0
        self.is_greedy = True
        self.anchors = False
        self.variable = 0
        """How many repeats there are whose number is open."""
        self._pattern = pattern

    def group(self, flags: _Flags, depth: int) -> str:
        """What stands before the end, or the ``)`` that closes the group."""
        if depth > _MOST_DEPTH:
            raise PatternError(f"has groups nested more than {_MOST_DEPTH} deep")
        parts = []
        while self.at < len(self._pattern) and self._pattern[self.at] != ")":
            if self._pattern[self.at] == "|":
                self.at += 1
                self.is_greedy = False
                parts.append("|")
            elif (set_flags := _FLAGS.match(self._pattern, self.at)) and set_flags[3] == ")":
                flags = self._changed(flags, set_flags)
            else:
                text, kind = self._atom(flags, depth)
                parts.append(text + self._repeat(flags, kind))
        return "".join(parts)

    def _changed(self, flags: _Flags, found: re.Match[str]) -> _Flags:
        self.at = found.end()
        names = (found[1], found[2] or "")
        if unknown := set("".join(names)) - set("imsU"):
            raise PatternError(f"sets the flag {sorted(unknown)[0]!r}, which RE2 has not")
        on, off = (dict.fromkeys(each, value) for each, value in zip(names, (True, False), strict=True))
        return _Flags(**{**vars(flags), **on, **off})

    def _atom(self, flags: _Flags, depth: int) -> tuple[str, str]:
        """The next part, without its repeat, and what it is: a ``character``, a ``group`` or an ``anchor``."""
        character = self._pattern[self.at]
        if character == "(":
            inner = self._opened(flags)
            text = self.group(inner, depth + 1)
            if self.at >= len(self._pattern):
                raise PatternError("has a '(' that nothing closes")
            self.at += 1
            return f"(?:{text})", "group"
        if character == "[":
            return self._set(flags), "character"
        if character == "\\":
            return self._escaped(flags)
        self.at += 1
        if character in "*+?" or _REPEAT.match(self._pattern, self.at - 1):
            raise PatternError(f"repeats nothing with {character!r}")
        if character == ".":
            return "(?s:.)" if flags.s else r"[^\n]", "character"
        if character in "^$":
            self.anchors = True
            whole, line = {"^": (r"\A", "(?m:^)"), "$": (r"\Z", "(?m:$)")}[character]
            return line if flags.m else whole, "anchor"
        return _written([(ord(character), ord(character))], flags), "character"

    def _opened(self, flags: _Flags) -> _Flags:
        """The flags within the group that begins here."""
        if named := _NAMED.match(self._pattern, self.at):
            self.at = named.end()
            return flags
        if found := _FLAGS.match(self._pattern, self.at):
            return self._changed(flags, found)
        if self._pattern.startswith("(?", self.at):
            raise PatternError(f"has {self._pattern[self.at : self.at + 3]!r}, which is not RE2's")
        self.at += 1
        return flags

    def _repeat(self, flags: _Flags, kind: str) -> str:
        if self.at >= len(self._pattern):
            return ""
        found = _REPEAT.match(self._pattern, self.at)
        if found is None and self._pattern[self.at] not in "*+?":
            return ""
        if kind == "anchor":
            raise PatternError("repeats an anchor")
        text = self._pattern[self.at] if found is None else found[0]
        if found is not None:
            numbers = [int(found[1]), int(found[3] or found[1])]
            if max(numbers) > _MOST_REPEATS or numbers[0] > numbers[1]:
                raise PatternError(f"has the repeat {text}, which RE2 refuses")
        self.at += len(text)
        takes_little = self._pattern.startswith("?", self.at)
        self.at += takes_little
        if self.at < len(self._pattern) and (
            self._pattern[self.at] in "*+?" or _REPEAT.match(self._pattern, self.at) is not None
        ):
            raise PatternError("repeats a repeat")
        takes_little ^= flags.U
        is_open = found is None or (found[2] is not None and found[1] != found[3])
        self.variable += is_open
        self.is_greedy &= not is_open or (kind == "character" and not takes_little)
        return text + ("?" if takes_little else "")

    def _escaped(self, flags: _Flags) -> tuple[str, str]:
        if self.at + 1 >= len(self._pattern):
            raise PatternError("ends with a '\\'")
        name = self._pattern[self.at + 1]
        if name == "Q":
            end = self._pattern.find(r"\E", self.at + 2)
            quoted = self._pattern[self.at + 2 : end if end >= 0 else len(self._pattern)]
            self.at = len(self._pattern) if end < 0 else end + 2
            if len(quoted) != 1:  # a repeat behind it is of its last character
                if self.at < len(self._pattern) and self._pattern[self.at] in "*+?{":
                    raise PatternError(r"repeats \Q...\E; repeat a group")
                return "".join(_written([(ord(each), ord(each))], flags) for each in quoted), "group"
            return _written([(ord(quoted), ord(quoted))], flags), "character"
        anchors = {"A": r"\A", "z": r"\Z", "b": _BOUNDARY, "B": _NO_BOUNDARY}
        if name in anchors:
            self.at += 2
            self.anchors = True
            return anchors[name], "anchor"
        if name.lower() in _PERL:
            return _text(self._class(flags)), "character"
        code = self._code()
        return _written([(code, code)], flags), "character"

    def _class(self, flags: _Flags) -> _Ranges:
        r"""The characters of ``\d``, ``\D`` and the like."""
        name = self._pattern[self.at + 1]
        self.at += 2
        inside = _folded(_PERL[name.lower()], flags)
        return _others(inside) if name.isupper() else inside

    def _code(self) -> int:
        """The number of the character that is escaped here."""
        name = self._pattern[self.at + 1]
        if name in _CONTROLS:
            self.at += 2
            return _CONTROLS[name]
        if name == "x":
            found = re.compile(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})").match(self._pattern, self.at)
            code = int(found[1] or found[2], 16) if found else _LAST + 1
            if found is None or code > _LAST:
                raise PatternError(r"has a '\x' without the number of a character")
            self.at = found.end()
            return code
        if name not in string.punctuation or name == "_":
            raise PatternError(f"has {self._pattern[self.at : self.at + 2]!r}, which TKC does not translate")
        self.at += 2
        return ord(name)

    def _set(self, flags: _Flags) -> str:
        self.at += 1
        negated = self._pattern.startswith("^", self.at)
        self.at += negated
        ranges: _Ranges = []
        first = True
        while first or not self._pattern.startswith("]", self.at):
            if self.at >= len(self._pattern):
                raise PatternError("has a '[' that nothing closes")
            named = re.compile(r"\[:(\^?)(\w+):\]").match(self._pattern, self.at)
            if named is not None:
                if named[2] not in _POSIX:
                    raise PatternError(f"has {named[0]}, which is no class of characters")
                inside = _folded(_POSIX[named[2]], flags)
                ranges += _others(inside) if named[1] else inside
                self.at = named.end()
            elif self._pattern[self.at] == "\\" and self._pattern[self.at + 1 : self.at + 2].lower() in _PERL:
                ranges += self._class(flags)
            else:
                ranges += _folded([self._range(is_first=first)], flags)
            first = False
        self.at += 1
        found = _others(ranges) if negated else ranges
        return _text(found)

    def _range(self, *, is_first: bool) -> tuple[int, int]:
        begins = self.at
        low = high = self._member()
        follows = self._pattern[self.at : self.at + 2]
        if low == ord("-") and self._pattern[begins] == "-" and not (is_first or follows[:1] == "]"):
            raise PatternError("has a '-' in a set that is neither its first nor its last character; escape it")
        if follows[:1] == "-" and follows[1:] not in ("", "]"):
            self.at += 1
            if self._pattern[self.at] == "\\" and self._pattern[self.at + 1 : self.at + 2].lower() in _PERL:
                raise PatternError("has a range in a set that ends with a class of characters")
            high = self._member()
        if high < low:
            raise PatternError("has a range in a set that ends before it begins")
        return low, high

    def _member(self) -> int:
        character = self._pattern[self.at]
        if character == "\\":
            if self.at + 1 >= len(self._pattern):
                raise PatternError("ends with a '\\'")
            return self._code()
        self.at += 1
        return ord(character)


def _written(ranges: _Ranges, flags: _Flags) -> str:
    return _text(_folded(ranges, flags))


def _folded(ranges: Sequence[tuple[int, int]], flags: _Flags) -> _Ranges:
    """The characters, and those that differ from them in case alone, if case does not count."""
    if not flags.i:
        return list(ranges)
    found = list(ranges)
    for low, high in ranges:
        if high > 127:
            only = chr(low) if low == high else ""
            if only.lower() != only.upper() or not only:
                raise PatternError("has characters beyond ASCII where case does not count, (?i); list both cases")
        for lower in range(max(low, 65), min(high, 122) + 1):
            if chr(lower).isalpha():
                letter = ord(chr(lower).lower())
                found += [(letter, letter), (letter - 32, letter - 32)]
                if letter in _FOLDED_ALONE:
                    found.append((_FOLDED_ALONE[letter], _FOLDED_ALONE[letter]))
    return found


def _others(ranges: Sequence[tuple[int, int]]) -> _Ranges:
    """All other characters."""
    found, next_one = [], 0
    for low, high in sorted(ranges):
        if low > next_one:
            found.append((next_one, low - 1))
        next_one = max(next_one, high + 1)
    return [*found, (next_one, _LAST)] if next_one <= _LAST else found


def _text(ranges: Sequence[tuple[int, int]]) -> str:
    """A set of characters in Python's syntax."""
    if not ranges:
        return "(?!)"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return re.escape(chr(ranges[0][0]))
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in dict.fromkeys(ranges)) + "]"
