"""Strings as a call is given them and returns them: arrays or lists in, arrays of ``str`` objects out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tkc.errors import InputError
from tkc.runtime.signature import Signature
from tkc.runtime.text_table import KnownStrings, TextTable, using

_GIVE = "give a numpy array, or a list, of str"


class TextValues:
    """Which inputs and outputs of a model are strings, and the strings that it holds."""

    def __init__(self, strings: Sequence[str], signature: Signature) -> None:
        self._known = KnownStrings(strings)
        self._inputs = [(i, spec.name) for i, spec in enumerate(signature.inputs) if spec.is_text]
        self._outputs = [i for i, spec in enumerate(signature.outputs) if spec.is_text]

    @contextmanager
    def coded(self, values: Sequence[Any]) -> Iterator[tuple[list[Any], TextTable]]:
        """The inputs of a call with codes in place of strings, and its table, which it has until this ends.

        Raises :class:`InputError` for what is no strings.
        """
        table, given = TextTable(self._known), list(values)
        for position, name in self._inputs:
            array = strings_of(given[position], name)
            given[position] = torch.from_numpy(table.encoded(array.ravel().tolist(), array.shape))
        with using(table):
            yield given, table

    def returned(self, outputs: Sequence[torch.Tensor], table: TextTable) -> list[Any]:
        """The outputs of a call with strings in place of codes, arrays of ``str`` objects."""
        results: list[Any] = list(outputs)
        for position in self._outputs:
            results[position] = table.decoded(results[position].numpy())
        return results


def strings_of(value: Any, name: str) -> np.ndarray:
    """An input's strings as an array of ``str`` objects.

    That is an array of ``str``, or of ``bytes`` in UTF-8, as ONNX has strings, or nested lists of such, or one alone.
    Raises :class:`InputError` for anything else.
    """
    if isinstance(value, torch.Tensor):
        raise InputError(f"input '{name}' is a torch.Tensor of {_name(value.dtype)}, expected strings; {_GIVE}")
    if not isinstance(value, np.ndarray):
        value = _array_of(value, name)
    if value.dtype.kind not in "OUST":
        raise InputError(f"input '{name}' has dtype {value.dtype}, expected strings; {_GIVE}")
    array = np.empty(value.size, object)
    array[:] = [_string(element, place, value.shape, name) for place, element in enumerate(value.ravel().tolist())]
    return array.reshape(value.shape)


def _array_of(value: Any, name: str) -> np.ndarray:
    if isinstance(value, str | bytes):
        array = np.empty((), object)
        array[()] = value
        return array
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        raise InputError(f"input '{name}' is a {type(value).__name__}, expected strings; {_GIVE}")
    try:
        found: np.ndarray = np.asarray(value, dtype=object)
    except ValueError as error:
        raise InputError(f"input '{name}' is no array of strings ({error}); give lists of equal lengths") from None
    return found


def _string(element: Any, place: int, shape: Sequence[int], name: str) -> str:
    if isinstance(element, str):
        return str(element)
    if isinstance(element, bytes):
        try:
            return element.decode()
        except UnicodeDecodeError as error:
            problem = f"bytes that are no UTF-8 ({error.reason}); decode them"
    elif isinstance(element, list):
        problem = "a list; give lists of equal lengths"
    else:
        problem = f"{element!r}, which is no string; convert it, and put '' for what is missing"
    at = [int(axis) for axis in np.unravel_index(place, tuple(shape))] if shape else []
    raise InputError(f"input '{name}' holds at {at} {problem}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
