"""Strings as a call takes and returns them, and the table that each call has of them."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tkc
from tests.frontend.onnx_execution import parsed
from tkc.errors import InputError, InternalError, UnsupportedModelError, UsageError
from tkc.runtime.signature import Signature, TensorSpec
from tkc.runtime.text_table import KnownStrings, TextTable, current_table, using
from tkc.runtime.text_values import strings_of

GRAPH = """g (string[n] x, float[n] f) => (string[n,k] parts, string[n] y, float[n] z) <string end = {"!"}> {
parts, c = StringSplit<delimiter=" ">(x) y = StringConcat(x,end) z = Add(f,f) }"""


@pytest.fixture(scope="module")
def executable() -> tkc.Executable:
    """A model of strings and numbers."""
    return tkc.compile(parsed(GRAPH), target="cpu", kernels="none")


def test_a_call_takes_strings_in_many_forms(executable: tkc.Executable) -> None:
    """And returns arrays of ``str`` objects; numbers as the first input that is no strings, or as arrays."""
    f = np.ones(2, "float32")
    forms: list[Any] = [
        ["a b", "é"],
        ("a b", b"\xc3\xa9"),
        np.array(["a b", "é"]),
        np.array(["a b", "é"], object),
        np.array(["a b", "é"], np.dtypes.StringDType()),
        np.array([b"a b", "é".encode()]),
        np.array(["é", "-", "a b"], object)[::-2],
    ]
    for given in forms:
        parts, y, z = executable(given, f)
        assert parts.dtype == y.dtype == object and type(y[0]) is str
        assert parts.tolist() == [["a", "b"], ["é", ""]] and y.tolist() == ["a b!", "é!"]
        assert isinstance(z, np.ndarray) and z.tolist() == [2, 2]
    assert executable(f=torch.ones(2), x=["a", "b"])[1].tolist() == ["a!", "b!"]
    assert [each.shape for each in executable([], f[:0])] == [(0, 0), (0,), (0,)]
    assert [spec.dtype for spec in executable.signature.inputs] == ["string", "float32"]
    assert "x (string [n])" in repr(executable)


def test_numbers_are_of_the_kind_of_a_first_input_that_is_no_strings() -> None:
    """Strings are arrays beside them."""
    graph = "g (float[n] f, string[n] x) => (string[n] y, float[n] z) { y = Identity(x) z = Add(f,f) }"
    y, z = tkc.compile(parsed(graph), target="cpu", kernels="none")(torch.ones(1), ["s"])
    assert y.tolist() == ["s"] and isinstance(z, torch.Tensor)


WRONG: list[tuple[Any, str]] = [
    (torch.ones(2), r"'x' is a torch.Tensor of float32, expected strings; give a numpy array, or a list, of str"),
    (np.ones(2), "'x' has dtype float64, expected strings"),
    (3, "'x' is a int, expected strings"),
    (None, "'x' is a NoneType, expected strings"),
    (["a", None], r"'x' holds at \[1\] None, which is no string; convert it, and put '' for what is missing"),
    (["a", float("nan")], r"'x' holds at \[1\] nan, which is no string"),
    ([["a", "b"], ["c", 1]], r"'x' holds at \[1, 1\] 1, which is no string"),
    ([["a"], ["b", "c"]], "give lists of equal lengths"),
    ([b"\xff", "a"], r"'x' holds at \[0\] bytes that are no UTF-8"),
    ("a", r"'x' has shape \[\], expected 1 axes: string \[n\]"),
    (["a"], "axis 0 of input 'f' is 2, but 'n' is 1 in input 'x'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_no_strings_is_refused(executable: tkc.Executable, given: Any, message: str) -> None:
    """With the place and the cure, before anything runs."""
    with pytest.raises(InputError, match=message):
        executable(given, np.ones(2, "float32"))


def test_calls_have_tables_of_their_own(executable: tkc.Executable) -> None:
    """Of threads that call at once, each with other strings; none is left afterwards, and none is kept."""

    def call(number: int) -> bool:
        words = [f"{number} {i}" for i in range(50)]
        parts, y, _ = executable(words, np.zeros(50, "float32"))
        right = [[str(number), str(i)] for i in range(50)]
        return bool(parts.tolist() == right and y.tolist() == [f"{word}!" for word in words])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(60)))
    with pytest.raises(InternalError, match="outside of a call"):
        current_table()


def test_a_table_within_another_gives_way_to_it() -> None:
    """What a call does when another model is called within it, also where that fails."""
    outer, inner = (TextTable(KnownStrings(["", "known"])) for _ in range(2))
    with using(outer):
        with pytest.raises(ZeroDivisionError), using(inner):
            assert current_table() is inner
            raise ZeroDivisionError
        assert current_table() is outer
    codes = outer.encoded(["new", "known", "", "new"], [2, 2])
    assert codes.tolist() == [[2, 1], [0, 2]] and outer.decoded(codes).tolist() == [["new", "known"], ["", "new"]]
    for code in (-1, 3):
        with pytest.raises(InternalError, match="no string has"):
            outer.string(code)


def test_artifacts_and_copies_have_the_strings(executable: tkc.Executable, tmp_path: Path) -> None:
    """Those of the model; so codes that the code holds mean the same."""
    loaded = tkc.load(executable.save(tmp_path / "model.tkc"))
    assert loaded.signature == executable.signature and loaded.signature.strings == ("", "!")
    for other in (loaded, pickle.loads(pickle.dumps(executable)), copy.copy(executable)):
        assert other(["a"], np.ones(1, "float32"))[1].tolist() == ["a!"]


def test_a_profile_takes_strings(executable: tkc.Executable) -> None:
    """Functions of strings have their nodes and their time."""
    profile = executable.profile(["a b", "c"], np.ones(2, "float32"), repeat=2)
    assert {"StringSplit", "StringConcat"} <= {row.function for row in profile.rows}


def test_strings_are_for_the_cpu_alone(tmp_path: Path) -> None:
    """For a GPU the model is refused, and so are comparisons of its nodes."""
    for compile in (tkc.compile, tkc.explain):
        with pytest.raises(UnsupportedModelError, match=r"\(x, parts, y\), and string operators run on the CPU"):
            compile(parsed(GRAPH), target="cuda:sm_90a")
    with pytest.raises(UsageError, match="cannot be compared node by node"):
        tkc.debug(parsed(GRAPH))


def test_a_signature_of_strings_begins_with_the_empty_one() -> None:
    """Else a manifest is refused."""
    leaves = (TensorSpec("x", (), "string"),)
    assert Signature(leaves, (), {}, strings=("", "a")).inputs[0].held == "int64"
    for strings in (None, (), ("a",), ("", "a", "a")):
        with pytest.raises(ValueError, match="strings of the model"):
            Signature(leaves, (), {}, strings=strings)


def test_an_array_is_left_as_it_is() -> None:
    """Strings of a subclass become plain ones, in an array of their own."""
    given = np.array([np.str_("a"), "b"], object)
    found = strings_of(given, "x")
    assert type(found[0]) is str and type(given[0]) is np.str_ and found is not given
