"""Functions of strings, which are codes here, as calls of the runtime (``tkc/runtime/text_functions.py``)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from tvm import relax, tirx

from tkc.contracts import CALL_TEXT
from tkc.frontend.identifiers import identifier
from tkc.frontend.onnx.converters.casts import cast_to
from tkc.frontend.onnx.converters.features import ML_CONVERTERS
from tkc.frontend.onnx.converters.grams import grams_of, tf_idf, weighted
from tkc.frontend.onnx.converters.shared import Converted, Converter
from tkc.frontend.onnx.converters.unique import unique_of
from tkc.frontend.onnx.domains import describe
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.signature import DTYPES, WIDENED
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.text.re2 import PatternError, Translated, translated
from tkc.frontend.onnx.values import ConversionError
from tkc.runtime.signature import CODES
from tkc.runtime.text_functions import ranks_of

_CASES = ("LOWER", "UPPER", "NONE")
_OWN_CASES = ("tr", "az", "lt", "crh")
"""Languages whose letters have cases of their own, such as the Turkish i."""

_FLOATS = ("float16", "float32", "float64")


def _called(node: Node, function: str, tensors: Sequence[relax.Expr], info: relax.StructInfo, **how: Any) -> relax.Expr:
    """What a function of the runtime makes of codes, or of numbers."""
    text = relax.StringImm(json.dumps({"function": function, **how}))
    return node.builder.emit(relax.call_pure_packed(CALL_TEXT, text, *tensors, sinfo_args=[info]))


def _of_open_size(node: Node, tensor: relax.Expr, sizes: Sequence[Size], what: str) -> tuple[relax.Expr, tirx.Var]:
    """A tensor of codes with one more axis than ``sizes``, behind them, which data decides."""
    count = tirx.Var(identifier(f"{node.proto.output[0]}_{what}", ()), "int64")
    node.algebra.declare(count, minimum=0)
    return node.builder.match_cast(tensor, relax.TensorStructInfo([*sizes, count], CODES)), count


def _concat(node: Node) -> Converted:
    shapes = [node.shape(position)[::-1] for position in range(2)]
    rank = max(map(len, shapes))
    padded = [[*shape, *[1] * (rank - len(shape))] for shape in shapes]
    sizes = [node.algebra.broadcast(pair) for pair in zip(*padded, strict=True)][::-1]
    return _called(node, "StringConcat", [node.tensor(0), node.tensor(1)], relax.TensorStructInfo(sizes, CODES))


def _split(node: Node) -> Converted:
    sizes, most = node.shape(0), node.attribute("maxsplit", -1)
    infos = [relax.TensorStructInfo(dtype=CODES, ndim=len(sizes) + 1), relax.TensorStructInfo(sizes, "int64")]
    delimiter = node.attribute("delimiter", "") or None
    result = _called(
        node, "StringSplit", [node.tensor(0)], relax.TupleStructInfo(infos), delimiter=delimiter, most=max(most, -1)
    )
    parts, counts = (node.emit(relax.TupleGetItem(result, i)) for i in range(2))
    return relax.Tuple([_of_open_size(node, parts, sizes, "parts")[0], counts])


def _pattern(given: str, what: str) -> Translated:
    try:
        return translated(given)
    except PatternError as error:
        raise ConversionError(
            f"has the {what} {given[:100]!r}, which {error}; write it with other parts of RE2's syntax"
        ) from None


def _full_match(node: Node) -> Converted:
    given = node.attribute("pattern")
    if given is None:
        raise ConversionError("has no pattern; correct the model")
    pattern = _pattern(given, "pattern").pattern
    info = relax.TensorStructInfo(node.shape(0), "bool")
    return _called(node, "RegexFullMatch", [node.tensor(0)], info, pattern=pattern)


def _normalizer(node: Node) -> Converted:
    case, language = node.attribute("case_change_action", "NONE"), node.attribute("locale", "")
    if case not in _CASES:
        raise ConversionError(f"has case_change_action {case!r}; expected one of {', '.join(_CASES)}")
    if language.lower().startswith(_OWN_CASES):
        raise ConversionError(
            f"has the locale {language!r}, whose cases are its own; change cases outside of the model"
        )
    sizes = node.shape(0)
    if len(sizes) not in (1, 2) or (len(sizes) == 2 and isinstance(sizes[0], int) and sizes[0] != 1):
        raise ConversionError(f"has an input of shape {[*map(str, sizes)]}; expected [C] or [1, C]: reshape it")
    result = _called(
        node,
        "StringNormalizer",
        [node.tensor(0)],
        relax.TensorStructInfo(dtype=CODES, ndim=len(sizes)),
        case=case,
        stopwords=[word.decode() for word in node.attribute("stopwords", ())],
        is_case_sensitive=bool(node.attribute("is_case_sensitive", 0)),
    )
    return _of_open_size(node, result, [1] * (len(sizes) - 1), "kept")[0]


def _tokenizer(node: Node) -> Converted:
    sizes, expression = node.shape(0), node.attribute("tokenexp", "")
    separators = [each.decode() for each in node.attribute("separators", ())]
    least = node.attribute("mincharnum", 1)
    if len(sizes) not in (1, 2):
        raise ConversionError(f"has an input of {len(sizes)} dimensions; expected [C] or [N, C]: reshape it")
    if bool(expression) == bool(separators):
        raise ConversionError("has both or none of tokenexp and separators; correct the model")
    if separators == [""] and least > 1:
        raise ConversionError(f"makes tokens of one character, and of at least {least}; correct the model")
    if "" in separators and len(separators) > 1:
        raise ConversionError("has an empty separator beside others; correct the model")
    patterns = [_longest(each) for each in ([expression] if expression else [each for each in separators if each])]
    if separators and any(each.anchors or re.fullmatch(each.pattern, "") for each in patterns):
        raise ConversionError("has separators that are of no characters; write them without anchors, '?' and '*'")
    result = _called(
        node,
        "Tokenizer",
        [node.tensor(0)],
        relax.TensorStructInfo(dtype=CODES, ndim=len(sizes) + 1),
        expression=patterns[0].pattern if expression else None,
        separators=[] if expression else [each.pattern for each in patterns],
        is_greedy=all(each.is_greedy for each in patterns),
        least=least,
        marks=bool(node.attribute("mark", 0)),
        padding=node.attribute("pad_value", ""),
    )
    return _of_open_size(node, result, sizes, "tokens")[0]


def _longest(given: str) -> Translated:
    """A pattern of which the longest match counts. Python's is the first one, and of anchors there is one attempt."""
    found = _pattern(given, "pattern")
    if found.anchors and not found.is_greedy:
        raise ConversionError(
            f"has the pattern {given[:100]!r}, of whose matches the longest counts; write it without anchors, or "
            "without '|', groups that repeat, and more than one open repeat"
        )
    return found


def _cast(node: Node) -> Converted:
    to = node.attribute("to")
    if to == onnx.TensorProto.STRING:
        return _written(node)
    return _read(node, node.declared_dtype(1) if to is None else str(onnx.helper.tensor_dtype_to_np_dtype(to)))


def _written(node: Node) -> Converted:
    if "float" in node.declared_dtype(0) and node.declared_dtype(0) not in _FLOATS:
        raise ConversionError(
            f"casts {node.declared_dtype(0)} to strings, which NumPy cannot; cast it to float32 first"
        )
    return _called(node, "CastToString", [node.tensor(0)], relax.TensorStructInfo(node.shape(0), CODES))


def _read(node: Node, target: str) -> Converted:
    """Numbers in a type that holds all of those that strings may have, of which the target's are made."""
    if target not in DTYPES and target not in WIDENED:
        raise ConversionError(f"casts to {target}, which compiled models cannot hold; cast to another type")
    wide, least, most = "float64", 0, 0
    if target == "bool":
        wide, most = "int64", 1
    elif "int" in target:
        bounds: Any = ml_dtypes.iinfo(target) if target in WIDENED else np.iinfo(target)
        wide, least, most = ("uint64" if target == "uint64" else "int64"), int(bounds.min), int(bounds.max)
    info = relax.TensorStructInfo(node.shape(0), wide)
    how = {"dtype": wide, "least": least, "most": most, "source": describe(node.proto)}
    numbers = _called(node, "CastFromString", [node.tensor(0)], info, **how)
    return numbers if target == wide else cast_to(node, numbers, target)


def _tf_idf(node: Node) -> Converted:
    """Counts of n-grams, each looked up by its tokens: a pool of strings is a vocabulary, of many thousand of them."""
    groups = list(grams_of(node))
    if not groups or any(len(np.unique(grams, axis=0)) != len(grams) for _, grams, _ in groups):
        return tf_idf(node)
    tokens = np.unique(np.concatenate([grams.ravel() for _, grams, _ in groups]))
    arrays = [tokens]
    for length, grams, places in groups:
        ranks, kinds = np.searchsorted(tokens, grams), ranks_of(tokens)
        found, levels = ranks[:, 0], []
        for position in range(1, length):
            keys = found * kinds + ranks[:, position]
            levels.append(np.unique(keys))
            found = np.searchsorted(levels[-1], keys)
        columns = np.full(len(levels[-1] if levels else tokens) + 1, -1)
        columns[found] = places
        arrays += [*levels, columns]
    rank, width = node.rank(0), max(node.attribute("ngram_indexes")) + 1
    sizes = node.shape(0)[: rank - 1]
    counts = _called(
        node,
        "TfIdfVectorizer",
        [node.tensor(0), *(relax.const(array, "int64") for array in arrays)],
        relax.TensorStructInfo([*sizes, width], "float32"),
        lengths=[length for length, _, _ in groups],
        skips=node.attribute("max_skip_count"),
        width=width,
    )
    return weighted(node, counts)


def _unique(node: Node) -> Converted:
    def call(x: relax.Expr, axis: int | None, in_order: bool, info: relax.StructInfo) -> relax.Expr:
        return _called(node, "Unique", [x], info, axis=axis, in_order=in_order)

    return unique_of(node, call)


def _looked_up(node: Node) -> Converted:
    """Values by code; behind those of the model's own strings comes one for all other codes."""
    table = node.attribute("table")
    if table is None:
        return ML_CONVERTERS["LabelEncoder"](node)
    values = onnx.numpy_helper.to_array(table)
    return relax.op.take(relax.const(values, str(values.dtype)), node.tensor(0), 0, mode="clip")


TEXT_CONVERTERS: dict[str, Converter] = {
    "Cast": _cast,
    "CastLike": _cast,
    "CategoryMapper": _looked_up,
    "LabelEncoder": _looked_up,
    "RegexFullMatch": _full_match,
    "StringConcat": _concat,
    "StringNormalizer": _normalizer,
    "StringSplit": _split,
    "TfIdfVectorizer": _tf_idf,
    "Tokenizer": _tokenizer,
    "Unique": _unique,
}
