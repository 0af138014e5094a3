"""Attributes of ``ai.onnx.ml`` that hold strings: labels, categories, n-grams, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.domains import ML_DOMAIN, TEXT_DOMAIN, describe
from tkc.frontend.onnx.initializers import read_tensor
from tkc.frontend.onnx.text.strings import ModelStrings, decoded, replace_attributes, strings_in

_UNUSED = "_Unused"
_OF_STRINGS = ("values_strings", "values_tensor", "default_string", "default_tensor", "classes_strings",
               "cats_strings", "cats_int64s")  # fmt: skip

_Attributes = Mapping[str, onnx.AttributeProto]


def searched(node: onnx.NodeProto, strings: ModelStrings, name: str, numbers: str) -> bool:
    """Have a node look for codes, in its attribute ``numbers``, in place of strings; whether it has any."""
    found = strings_in(node, name)
    if found is None:
        return False
    replace_attributes(node, {name: None, numbers: strings.coded(found)})
    return True


def encoder(node: onnx.NodeProto, strings: ModelStrings, is_text: bool) -> tuple[bool, bool]:
    """Have a LabelEncoder read and give codes; whether its keys, and whether its values, are strings.

    ``is_text`` says whether it reads strings, which its first version does not say itself.
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if (classes := strings_in(node, "classes_strings")) is not None:
        if is_text:
            _look_up(node, strings, classes, np.arange(len(classes)), _integer(attributes, "default_int64"))
        else:
            _name(node, strings, attributes, np.arange(len(classes)), classes)
        return is_text, not is_text
    keys, values = (strings_in(node, f"{part}_strings", f"{part}_tensor") for part in ("keys", "values"))
    if keys is None:
        if values is not None:
            _name(node, strings, attributes, None, values)
    elif values is not None:
        default = strings.code(_default(node, attributes))
        _look_up(node, strings, keys, strings.coded(values), default)
    else:
        _look_up(node, strings, keys, *_numbers(node, attributes))
    return keys is not None, values is not None


def mapper(node: onnx.NodeProto, strings: ModelStrings, is_text: bool) -> tuple[bool, bool]:
    """The same of a CategoryMapper, of which what it reads says in which direction it maps."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    names = strings_in(node, "cats_strings") or []
    numbers = np.array(attributes["cats_int64s"].ints if "cats_int64s" in attributes else [], "int64")
    if is_text:
        _look_up(node, strings, names, numbers, _integer(attributes, "default_int64"))
    else:
        _name(node, strings, attributes, numbers, names)
    return is_text, not is_text


MAPS: Mapping[tuple[str, str], Callable[[onnx.NodeProto, ModelStrings, bool], tuple[bool, bool]]] = {
    (ML_DOMAIN, "CategoryMapper"): mapper,
    (ML_DOMAIN, "LabelEncoder"): encoder,
}
"""What has operators that map values to others do so with codes."""


def _name(
    node: onnx.NodeProto, strings: ModelStrings, attributes: _Attributes, keys: np.ndarray | None, values: Sequence[str]
) -> None:
    """Have a node look numbers up that name strings: those of its own keys, or of these."""
    if not values:
        raise UnsupportedModelError(f"{describe(node)} has no values; correct the model.")
    changes: dict[str, Any] = dict.fromkeys(_OF_STRINGS)
    if keys is not None:
        _check_lengths(node, keys, values)
        changes["keys_int64s"] = keys
    default = strings.code(_default(node, attributes))
    replace_attributes(node, {**changes, "values_int64s": strings.coded(values), "default_int64": default})
    node.domain = TEXT_DOMAIN


def _look_up(
    node: onnx.NodeProto, strings: ModelStrings, keys: Sequence[str], values: np.ndarray, default: float
) -> None:
    """Have a node look strings up: values by code, and behind them one for all other codes."""
    _check_lengths(node, keys, values)
    codes = strings.coded(keys)
    table = np.full(int(codes.max(initial=-1)) + 2, default, values.dtype)
    table[codes[::-1]] = values[::-1]  # of equal keys the first counts, as in ONNX Runtime
    replace_attributes(node, {attribute.name: None for attribute in node.attribute})
    replace_attributes(node, {"table": onnx.numpy_helper.from_array(table)})
    node.domain = TEXT_DOMAIN


def _check_lengths(node: onnx.NodeProto, keys: Sequence[Any] | np.ndarray, values: Sequence[Any] | np.ndarray) -> None:
    if len(keys) != len(values):
        raise UnsupportedModelError(
            f"{describe(node)} has {len(keys)} keys and {len(values)} values; correct the model."
        )


def _numbers(node: onnx.NodeProto, attributes: _Attributes) -> tuple[np.ndarray, float]:
    """The values of a LabelEncoder that are numbers, and the default."""
    values = np.zeros(0, "int64")
    for name, dtype in (("values_int64s", "int64"), ("values_floats", "float32")):
        if name in attributes:
            values = np.array(onnx.helper.get_attribute_value(attributes[name]), dtype)
    if "values_tensor" in attributes:
        values = read_tensor(attributes["values_tensor"].t, None).ravel()
    if "default_tensor" in attributes:
        default = read_tensor(attributes["default_tensor"].t, None).ravel()
        if default.size != 1 or default.dtype != values.dtype:
            raise UnsupportedModelError(
                f"{describe(node)} has {default.size} defaults of {default.dtype} for values of {values.dtype}; "
                "correct the model."
            )
        return values, default[0]
    if values.dtype.kind in "iu":
        return values, _integer(attributes, "default_int64")
    return values, attributes["default_float"].f if "default_float" in attributes else -0.0


def _integer(attributes: _Attributes, name: str) -> int:
    return int(attributes[name].i) if name in attributes else -1


def _default(node: onnx.NodeProto, attributes: _Attributes) -> str:
    if "default_tensor" in attributes:
        found = strings_in(node, "", "default_tensor")
        return found[0] if found else _UNUSED
    return decoded(attributes["default_string"].s, node) if "default_string" in attributes else _UNUSED
