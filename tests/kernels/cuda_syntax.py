"""Parses the CUDA C++ that TileLang generates: a statement a line, blocks in braces, expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""(?P<float>0x[0-9a-fA-F.]+p[+-]?\d+f?|\d+\.\d*(?:e[+-]?\d+)?f?|\d+e[+-]?\d+f?)
      |(?P<int>0x[0-9a-fA-F]+|\d+)[uUlL]*
      |(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
      |(?P<op>&&|\|\||<<|>>|<=|>=|==|!=|\+=|-=|[-+*/%<>=!&|^~?:.,()\[\]{};])
      |(?P<text>"[^"]*")""",
    re.VERBOSE,
)
_SCALAR = (
    r"(?:unsigned |signed |const )?"
    r"(?:int|uint|float|double|bool|half|char|uchar|short|ushort|void|signed|unsigned|dim3|longlong|long)"
)
_TYPE = re.compile(
    rf"(?:{_SCALAR}|(?:u?int|u?short|float|double|u?char|half|longlong|ulonglong)[1-8]|\w+_t|__nv_\w+|fp8_\w+|CUtensorMap)$"
)
_TEMPLATED = re.compile(r"(?:tl::\w+|reinterpret_cast|static_cast)$")
_PRECEDENCE = {
    op: level
    for level, ops in enumerate(
        (
            ("||",),
            ("&&",),
            ("|",),
            ("^",),
            ("&",),
            ("==", "!="),
            ("<", "<=", ">", ">="),
            ("<<", ">>"),
            ("+", "-"),
            "*/%",
        )
    )
    for op in ops
}


@dataclass(frozen=True)
class Node:
    """An expression: ``kind`` and its parts.

    int (value), float (), name (name), unary (op, x), binary (op, x, y), choose (condition, x, y), cast (type, x),
    index (x, at), call (name, template arguments, arguments), method (x, name, arguments), member (x, name).
    """

    kind: str
    parts: tuple[Any, ...]


@dataclass
class Statement:
    """A line, or a block with what it holds. ``names`` are the variables that are mentioned in it."""

    kind: str  # "declare", "assign", "call", "for", "if", "block"
    line: int
    text: str
    target: Node | None = None  # what is assigned; None for declarations without a value
    value: Node | None = None  # or the condition of an if, or the number of a loop's turns
    name: str = ""  # of what is declared, or counts
    type: str = ""
    extent: int | None = None  # of an array that is declared
    start: Node | None = None
    body: list[Statement] = field(default_factory=list)
    otherwise: list[Statement] = field(default_factory=list)
    names: frozenset[str] = frozenset()

    def walk(self) -> Iterator[Statement]:
        """This statement and all within it."""
        yield self
        for inner in (*self.body, *self.otherwise):
            yield from inner.walk()


@dataclass(frozen=True)
class Function:
    """A ``__global__`` function: how many threads a block has, its parameters (name to type), and what it does."""

    name: str
    threads: int
    parameters: dict[str, str]
    body: list[Statement]


class Unparsed(Exception):
    """A form of CUDA C++ that has not been seen in generated code before."""


class _Tokens:
    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", "", text)
        self.tokens = [
            (match.lastgroup or "int", match.group().rstrip("uUlL") if match.lastgroup == "int" else match.group())
            for match in _TOKEN.finditer(text)
        ]
        self.at = 0
        self.text = text

    def peek(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.tokens[position][1] if position < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise Unparsed(f"unexpected end: {self.text}")
        token = self.tokens[self.at]
        if expected is not None and token[1] != expected:
            raise Unparsed(f"expected {expected}, found {token[1]} in: {self.text}")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def template(self) -> tuple[str, ...]:
        """The arguments between ``<`` and the ``>`` that belongs to it."""
        self.take("<")
        depth, arguments, current = 1, [], ""
        while depth:
            text = self.take()[1]
            closes = {">": 1, ">>": 2}.get(text, 0)
            if closes > depth:
                raise Unparsed(self.text)
            depth += (text == "<") - closes
            if (text == "," and depth == 1) or depth == 0:
                arguments.append(current + (">" if closes == 2 and depth == 0 else ""))
                current = ""
            else:
                current += text
        return tuple(arguments)

    def type_ahead(self) -> int:
        """How many tokens of a type come next; 0 if none does."""
        count = 0
        while self.peek(count) in ("const", "unsigned", "signed", "long") and self.peek(count + 1) not in (")", "*"):
            count += 1
        if not _TYPE.match(self.peek(count)) or self.tokens[self.at + count][0] != "name":
            return count if count and self.peek(count - 1) != "const" else 0
        count += 1
        while self.peek(count) in ("*", "__restrict__", "const"):
            count += 1
        return count

    def expression(self, level: int = -1) -> Node:
        if level < 0:
            condition = self.expression(0)
            if not self.accept("?"):
                return condition
            chosen = self.expression()
            self.take(":")
            return Node("choose", (condition, chosen, self.expression()))
        left = self.unary()
        while (op := self.peek()) in _PRECEDENCE and _PRECEDENCE[op] >= level:
            self.take()
            left = Node("binary", (op, left, self.expression(_PRECEDENCE[op] + 1)))
        return left

    def unary(self) -> Node:
        for op in "-!~*&+":
            if self.accept(op):
                return Node("unary", (op, self.unary()))
        if self.peek() == "(":
            self.take()
            length = self.type_ahead()
            if length and self.peek(length) == ")":
                name = " ".join(self.take()[1] for _ in range(length))
                self.take(")")
                return Node("cast", (name, self.unary()))
            inner = self.expression()
            self.take(")")
            return self.postfix(inner)
        kind, text = self.take()
        if kind == "int":
            return Node("int", (int(text, 0),))
        if kind in ("float", "text"):
            return Node("float", ())
        if kind != "name":
            raise Unparsed(f"{text} in: {self.text}")
        arguments: tuple[str, ...] = ()
        if _TEMPLATED.match(text) and self.peek() == "<":
            arguments = self.template()
            if self.accept(":"):  # a static function of a class template
                self.take(":")
                text += "::" + self.take()[1]
        if self.peek() == "(":
            if text in ("reinterpret_cast", "static_cast"):
                return self.postfix(Node("cast", (arguments[0], self.arguments()[0])))
            return self.postfix(Node("call", (text, arguments, self.arguments())))
        return self.postfix(Node("name", (text,)))

    def arguments(self) -> tuple[Node, ...]:
        self.take("(")
        found = []
        while not self.accept(")"):
            found.append(self.expression())
            self.accept(",")
        return tuple(found)

    def postfix(self, node: Node) -> Node:
        while True:
            if self.accept("["):
                node = Node("index", (node, self.expression()))
                self.take("]")
            elif self.accept("."):
                name = self.take()[1]
                node = (
                    Node("method", (node, name, self.arguments()))
                    if self.peek() == "("
                    else Node("member", (node, name))
                )
            else:
                return node


def parse_expression(text: str) -> Node:
    """Of one expression that is the whole text."""
    tokens = _Tokens(text)
    node = tokens.expression()
    if tokens.at != len(tokens.tokens):
        raise Unparsed(f"{tokens.peek()} is left of: {text}")
    return node


_FUNCTION = re.compile(r'^extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\((.*)\) \{$')
_LOOP = re.compile(r"for \((?:int|int64_t) (\w+) = (.+?); \1 < (.+); \+\+\1\) \{$")
_DECLARED = re.compile(
    r"^(extern )?(__shared__ )?(?:__align__\(\d+\) )?((?:const |unsigned |signed )?[\w:]+\*?) (\w+)"
    r"(?:\[(\d*)\])?(?: = (.+))?;$"
)


def parse(source: str) -> list[Function]:
    """The kernels of a generated file, in the order in which they stand there."""
    lines = source.splitlines()
    functions, at = [], 0
    while at < len(lines):
        match = _FUNCTION.match(lines[at])
        at += 1
        if match is None:
            continue
        parameters = {}
        for parameter in match[3].split(", "):
            declared, _, name = parameter.rpartition(" ")
            parameters[name] = declared
        body, at = _block(lines, at)
        functions.append(Function(match[2], int(match[1]), parameters, body))
    return functions


def _block(lines: list[str], at: int) -> tuple[list[Statement], int]:
    """The statements from line ``at`` to the brace that closes, and the number of the line with it, plus one."""
    found: list[Statement] = []
    while True:
        text = re.sub(r"/\*.*?\*/", "", lines[at].strip())
        if text.startswith("}"):
            return found, at + 1
        number, at = at + 1, at + 1
        if not text or text.startswith(("#", "//")):
            continue
        if text.endswith("{"):
            statement = _opening(text, number)
            statement.body, at = _block(lines, at)
            if lines[at - 1].strip() == "} else {":
                statement.otherwise, at = _block(lines, at)
            inner = frozenset().union(*(each.names for each in (*statement.body, *statement.otherwise)))
            statement.names = inner | frozenset(re.findall(r"[A-Za-z_]\w*", text))
        else:
            statement = _simple(text, number)
            statement.names = frozenset(re.findall(r"[A-Za-z_]\w*", text))
        found.append(statement)


def _opening(text: str, number: int) -> Statement:
    if text in ("{", "while (1) {"):  # in loops that data ends nothing may synchronize, and once stands for often
        return Statement("block", number, text)
    if match := _LOOP.match(text):
        start, end = parse_expression(match[2]), parse_expression(match[3])
        return Statement("for", number, text, name=match[1], start=start, value=end)
    if text.startswith("if ("):
        return Statement("if", number, text, value=parse_expression(text[3:-1]))
    raise Unparsed(text)


def _simple(text: str, number: int) -> Statement:
    if match := re.match(r"if \((.+)\) \{ break; \}$", text):
        return Statement("call", number, text, value=parse_expression(match[1]))
    if (match := _DECLARED.match(text)) and match[3] not in ("return", "else"):
        external, shared, declared, name, extent, value = match.groups()
        kind = f"{'shared ' if external or shared else ''}{declared}"
        expression = parse_expression(value) if value else None
        size = None if extent is None else int(extent or 0)
        return Statement("declare", number, text, value=expression, name=name, type=kind, extent=size)
    tokens = _Tokens(text.removesuffix(";"))
    target = tokens.expression()
    if tokens.accept("="):
        value_node = tokens.expression()
        if tokens.peek():
            raise Unparsed(text)
        return Statement("assign", number, text, target=target, value=value_node)
    if tokens.peek():
        raise Unparsed(f"{tokens.peek()} in: {text}")
    return Statement("call", number, text, value=target)
