"""Strings in ONNX models: as ONNX's reference has them, or as ONNX Runtime where that has no reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tkc
from tests.frontend.onnx_execution import parsed
from tkc.errors import InputError, UnsupportedModelError, UsageError
from tkc.frontend.onnx.importer import import_onnx
from tkc.frontend.onnx.text.re2 import PatternError, translated

ML = ', "ai.onnx.ml": 1'
ML3 = ', "ai.onnx.ml": 3'
MICROSOFT = ', "com.microsoft": 1'


def strings(*values: Any) -> np.ndarray:
    """An array of strings, of nested lists."""
    return np.array(values, dtype=object)


WORDS = strings("b", "a", "é", "a")
TABLE = strings(["a", "b"], ["c", "a"], ["é", "b"])


def compiled(graph: str | onnx.ModelProto, **options: Any) -> tkc.Executable:
    """A model from ONNX's text form, compiled for the CPU."""
    proto = parsed(graph) if isinstance(graph, str) else graph
    return tkc.compile(proto, target="cpu", kernels="none", **options)


def listed(value: Any) -> Any:
    """Results as lists, which compare as a whole."""
    if isinstance(value, list | tuple):
        return [listed(each) for each in value]
    array = np.asarray(value)
    return (list(array.shape), [str(each) if isinstance(each, str) else repr(each) for each in array.ravel().tolist()])


def check(proto: onnx.ModelProto, inputs: Sequence[Any], **options: Any) -> None:
    """Compare the compiled model with ONNX's reference, for the inputs and for these again."""
    executable = compiled(proto, **options)
    feeds = dict(zip([value.name for value in proto.graph.input], inputs, strict=True))
    expected = ReferenceEvaluator(proto).run(None, feeds)
    for _ in range(2):
        found = executable(*inputs)
        assert listed(found if len(expected) > 1 else [found]) == listed(expected)


MOVES = {
    "shapes": (
        """g (string[n,2] x) => (string[2,n] t, string[a,b] c, string[n,4] d, string[p,q] e, string[1,n,2] u,
        int64[2] s, int64 z, string[m] f, string[2,n,2] w) {
        t = Transpose<perm=[1,0]>(x) c = Concat<axis=0>(x,x) r = Constant<value_ints=[1,2]>() d = Tile(x,r)
        one = Constant<value_ints=[1]>() three = Constant<value_ints=[3]>() e = Slice(x,one,three)
        zero = Constant<value_ints=[0]>() u = Unsqueeze(x,zero) s = Shape(x) z = Size(x)
        all = Constant<value_ints=[-1]>() f = Reshape(x,all)
        two = Constant<value_ints=[2,1,1]>() w = Expand(x,two) }""",
        [TABLE],
    ),
    "places": (
        """g (string[n,2] x, int64[k] i, bool[n] c, int64[k,2] at) => (string[k,2] y, string[m,2] z, string[k] g,
        string[n,2] w, bool[n,2] e, string[n,2] s) <string other = {"a"}> {
        y = Gather(x,i) z = Compress<axis=0>(x,c) g = GatherND(x,at) e = Equal(x,other) w = Where(e,x,other)
        one = Constant<value_ints=[1]>() rows = Unsqueeze(i,one) s = ScatterND(x,rows,y) }""",
        [TABLE, np.array([2, 0]), np.array([True, False, True]), np.array([[0, 1], [2, 0]])],
    ),
    "parts": (
        """g (string[4] x) => (string[2] a, string[2] b, seq(string[2]) s, string[4] r) {
        a, b = Split<num_outputs=2>(x) k = Constant<value_ints=[2,2]>() s = SplitToSequence(x,k)
        n = Constant<value_int=1>() last = SequenceAt(s,n) q = SequenceConstruct(last,a)
        r = ConcatFromSequence<axis=0>(q) }""",
        [WORDS],
    ),
    "no elements": ("g (string[n,2] x) => (string[n] y) { i = Constant<value_int=1>() y = Gather<axis=1>(x,i) }",
                    [np.zeros((0, 2), object)]),
    "differences": (
        """g (string[n] x) => (string[k] y, int64[k] i, int64[n] v, int64[k] c, string[k] o, int64[k] p) {
        y, i, v, c = Unique(x) o, p = Unique<sorted=0>(x) }""",
        [strings("zeta", "b", "", "b", "Ä", "a")],
    ),
    "branches": (
        """g (bool c, string[n] x) => (string[n] y) { y = If(c)<
        then_branch = t () => (string[n] a) { k = Constant<value_string="!">() a = StringConcat(x,k) },
        else_branch = e () => (string[n] b) { b = Identity(x) }> }""",
        [np.array(True), WORDS],
    ),
    "loops": (
        """g (int64 t, string[n] x) => (string[n] y, string[k,n] s) { c = Constant<value=bool {1}>()
        y, s = Loop(t,c,x)<body = b (int64 i, bool k, string[n] a) => (bool k2, string[n] a2, string[n] s) {
        k2 = Identity(k) w = Cast<to=8>(i) a2 = StringConcat(a,w) s = Identity(a2) }> }""",
        [np.array(3), WORDS],
    ),
    "scans": (
        """g (string[2] s0, string[n,2] x) => (string[2] s, string[n,2] y) {
        s, y = Scan<num_scan_inputs=1, body = b (string[2] s, string[2] r) => (string[2] t, string[2] o) {
        t = StringConcat(s,r) o = Identity(t) }>(s0,x) }""",
        [strings("", ">"), TABLE],
    ),
}  # fmt: skip


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MOVES)
def test_strings_are_moved(name: str) -> None:
    """As numbers are, in graphs within graphs, too."""
    graph, inputs = MOVES[name]
    check(parsed(graph), inputs)


def test_strings_are_in_sequences() -> None:
    """Those of a call, of a model's functions, and of a sequence that is made in it."""
    graph = """g (seq(string[n]) q, string[m] x) => (seq(string[n]) s, string[a] last, seq(string[m]) t, int64 l) {
    s = SequenceMap(q)<body = b (string[n] a) => (string[n] o) { o = f.twice(a) }>
    e = SequenceEmpty<dtype=8>() t = SequenceInsert(e,x) i = Constant<value_int=-1>() last = SequenceAt(q,i)
    l = SequenceLength(q) }"""
    function = '<domain: "f", opset_import: ["": 21]> twice (a) => (b) { b = StringConcat(a, a) }'
    proto, given = parsed(graph, functions=function, imports=', "f": 1'), [WORDS, strings("x")]
    found = compiled(proto, example_args=[given])(given, WORDS)
    assert listed(found) == listed(
        ([strings("bb", "aa", "éé", "aa"), strings("xx")], strings("x"), [WORDS], np.array(2))
    )


def test_what_tensors_are_filled_with_is_the_empty_string() -> None:
    """ONNX's reference has the number 0 there."""
    graph = """g (string[n] x, int64[k] i) => (string[m] a, string[m] b, string[k,3] c) <string one = {"#"}> {
    p = Constant<value_ints=[1,2]>() a = Pad(x,p) b = Pad(x,p,one) d = Constant<value_int=3>()
    v = Constant<value_strings=["off","on"]>() c = OneHot(i,d,v) }"""
    found = compiled(graph)(["x"], np.array([2, 0]))
    assert listed(found) == listed(
        [
            strings("", "x", "", ""),
            strings("#", "x", "#", "#"),
            strings(["off", "off", "on"], ["on", "off", "off"]),
        ]
    )


FUNCTIONS = {
    "StringConcat": (
        """g (string[n,1] x, string[2] y, string s) => (string[n,2] z, string[n,1] w, string t) {
        z = StringConcat(x,y) w = StringConcat(x,s) t = StringConcat(s,s) }""",
        [strings(["a"], ["é"]), strings("", "ü"), strings("s").reshape(())],
    ),
    "StringSplit": (
        """g (string[n] x) => (string[n,a] p, int64[n] c, string[n,b] q, int64[n] d, string[n,e] r, int64[n] f) {
        p, c = StringSplit(x) q, d = StringSplit<delimiter=", ">(x)
        r, f = StringSplit<delimiter=",", maxsplit=1>(x) }""",
        [strings("a, b, c", " x\ty  z\n", "", ",,", "no", "\xa0é\u2003")],
    ),
    "StringSplit of nothing": (
        "g (string[n,2] x) => (string[n,2,a] p, int64[n,2] c) { p, c = StringSplit<delimiter=\",\">(x) }",
        [np.zeros((0, 2), object)],
    ),
    "StringNormalizer": (
        """g (string[n] x, string[1,n] r) => (string[a] p, string[b] q, string[1,c] s) {
        p = StringNormalizer<case_change_action="UPPER", is_case_sensitive=1, stopwords=["a"]>(x)
        q = StringNormalizer<case_change_action="LOWER", stopwords=["a"]>(x)
        s = StringNormalizer<is_case_sensitive=1, stopwords=["a","A","b","C"]>(r) }""",
        [strings("a", "A", "b", "C"), strings(["a", "A", "b", "C"])],
    ),
    "RegexFullMatch": (
        """g (string[n] x, string[m] y) => (bool[n] a, bool[m] b) {
        a = RegexFullMatch<pattern="(\\\\w+)@[a-z]+\\\\.(com|org)">(x) b = RegexFullMatch<pattern="">(y) }""",
        [strings("me@here.org", "me@here.orgs", ""), np.zeros(0, object)],
    ),
    "Cast to strings": (
        """g (float[n] x, double[n] d, float16[n] h, int64[n] i, uint64[n] u, bool[n] b) =>
        (string[n] a, string[n] c, string[n] e, string[n] f, string[n] k, string[n] l, string[1] m)
        <string like = {""}> {
        a = Cast<to=8>(x) c = Cast<to=8>(d) e = Cast<to=8>(h) f = CastLike(i,like) k = Cast<to=8>(u) l = Cast<to=8>(b)
        s = Shape(x) m = Cast<to=8>(s) }""",
        [
            np.array([0.1, 1, -0.0, 1e20, np.inf, np.nan], "float32"),
            np.array([0.1, 1, 1e300, -np.pi, 2**53, 0]),
            np.array([0.1, 1, 60000, -2, 6e-8, 0], "float16"),
            np.array([0, -5, 2**62, 1, 2, 3]),
            np.array([2**64 - 1, 0, 1, 2, 3, 4], "uint64"),
            np.array([True, False] * 3),
        ],
    ),
    "Cast from strings": (
        """g (string[n] x, string[n] i, string[n] u, double[1] like) =>
        (float[n] a, double[n] b, float16[n] c, int64[n] d, uint8[n] e, uint64[n] f, string[n] s) {
        a = Cast<to=1>(x) b = CastLike(x,like) c = Cast<to=10>(x) d = Cast<to=7>(i) e = Cast<to=2>(u) f = Cast<to=13>(u)
        s = Cast<to=8>(x) }""",
        [strings("1e3", "-.5", "+INF", "nan"), strings("-5", "9223372036854775807", "0", "+7"),
         strings("0", "255", "7", "1"), np.zeros(1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strings_are_computed(name: str) -> None:
    """Functions of strings, and casts from and to numbers."""
    graph, inputs = FUNCTIONS[name]
    check(parsed(graph), inputs)


def test_strings_of_numbers_that_numpy_lacks() -> None:
    """Rounded once, and brought into the range of the type, as by a Cast of float64."""
    graph = """g (string[n] x, string[n] i) => (bfloat16[n] a, float8e4m3fn[n] b, bool[n] c, int4[n] d) {
    a = Cast<to=16>(x) b = Cast<to=17>(x) c = Cast<to=9>(i) d = Cast<to=22>(i) }"""
    found = compiled(graph)(["0.1", "1000"], ["0", "1"])
    assert [each.astype("float32").tolist() for each in found] == [
        [0.10009765625, 1000],
        [0.1015625, 448],
        [0, 1],
        [0, 1],
    ]


ENCODERS = {
    "LabelEncoder": (
        """g (string[n] x, int64[n] i) => (int64[n] a, string[n] b, float[n] c, string[n] d, int64[n] e) {
        a = ai.onnx.ml.LabelEncoder<keys_strings=["a","b"],values_int64s=[5,6],default_int64=-7>(x)
        b = ai.onnx.ml.LabelEncoder<keys_int64s=[5],values_strings=["five"],default_string="other">(i)
        c = ai.onnx.ml.LabelEncoder<keys_strings=["b"],values_floats=[2.5]>(x)
        d = ai.onnx.ml.LabelEncoder<keys_strings=["a"],values_strings=["A"]>(x)
        e = ai.onnx.ml.LabelEncoder<keys_strings=["never"],values_int64s=[1]>(x) }""",
        ML3,
        [WORDS, np.array([5, 1, 5, 0])],
        [[6, 5, -7, 5], ["five", "other", "five", "other"], [2.5, -0.0, -0.0, -0.0],
         ["_Unused", "A", "_Unused", "A"], [-1, -1, -1, -1]],
    ),
    "CategoryMapper and the first LabelEncoder": (
        """g (string[n] x, int64[n] i) => (int64[n] a, string[n] b, int64[n] c, string[n] d) {
        a = ai.onnx.ml.CategoryMapper<cats_strings=["a","b"],cats_int64s=[5,6],default_int64=9>(x)
        b = ai.onnx.ml.CategoryMapper<cats_strings=["a","b"],cats_int64s=[5,6]>(i)
        c = ai.onnx.ml.LabelEncoder<classes_strings=["a","b"],default_int64=9>(x)
        d = ai.onnx.ml.LabelEncoder<classes_strings=["a","b"],default_string="?">(i) }""",
        ML,
        [WORDS, np.array([5, 1, 6, 0])],
        [[6, 5, 9, 5], ["a", "_Unused", "b", "_Unused"], [1, 0, 9, 0], ["?", "b", "?", "a"]],
    ),
    "features": (
        """g (string[n,2] x) => (float[n,2,2] a, string[n,1] b, float[n,3] c) {
        a = ai.onnx.ml.OneHotEncoder<cats_strings=["a","c"]>(x) i = Constant<value_ints=[1]>()
        b = ai.onnx.ml.ArrayFeatureExtractor(x,i)
        c = TfIdfVectorizer<mode="TF",min_gram_length=1,max_gram_length=2,max_skip_count=0,ngram_counts=[0,2],
        ngram_indexes=[0,1,2],pool_strings=["a","b","c","a"]>(x) }""",
        ML,
        [TABLE],
        [[[[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 0]]], [["b"], ["a"], ["b"]],
         [[1, 1, 0], [1, 0, 1], [0, 1, 0]]],
    ),
    "n-grams": (
        """g (string[n] x) => (float[6] a, float[2] b) {
        a = TfIdfVectorizer<mode="TFIDF",min_gram_length=2,max_gram_length=3,max_skip_count=1,ngram_counts=[0,1,7],
        ngram_indexes=[0,5,1,3,2,4],pool_strings=["a","a","b","b","a","c","é","a","b","é","b","a","é"]>(x)
        b = TfIdfVectorizer<mode="IDF",min_gram_length=1,max_gram_length=1,max_skip_count=0,ngram_counts=[0],
        ngram_indexes=[0,1,1],pool_strings=["a","b","b"]>(x) }""",
        "",
        [strings("a", "b", "é", "a", "b")],
        [[0, 1, 1, 0, 0, 2], [1, 1]],
    ),
    "a tensor of keys": (
        """g (string[n] x) => (double[n] a) { a = ai.onnx.ml.LabelEncoder<keys_tensor=string[2] {"a","é"},
        values_tensor=double[2] {0.1,0.2}, default_tensor=double[1] {0.5}>(x) }""",
        ', "ai.onnx.ml": 4',
        [WORDS],
        [[0.5, 0.1, 0.2, 0.1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODERS)
def test_strings_are_encoded(name: str) -> None:
    """Keys, values and defaults may all be strings; of equal ones the first counts, as in ONNX Runtime."""
    graph, imports, inputs, expected = ENCODERS[name]
    found = compiled(parsed(graph, imports=imports))(*inputs)
    assert [each.tolist() for each in (found if len(expected) > 1 else [found])] == expected


CLASSIFIERS = {
    "linear": """LinearClassifier<classlabels_strings=["no","yes"], coefficients=[1.0,0.0,0.0,1.0],
    intercepts=[0.0,0.5], post_transform="SOFTMAX">(x)""",
    "tree": """TreeEnsembleClassifier<classlabels_strings=["no","yes"], nodes_treeids=[0,0,0], nodes_nodeids=[0,1,2],
    nodes_featureids=[1,0,0], nodes_values=[0.0,0.0,0.0], nodes_modes=["BRANCH_GT","LEAF","LEAF"],
    nodes_truenodeids=[1,0,0], nodes_falsenodeids=[2,0,0], class_treeids=[0,0], class_nodeids=[1,2], class_ids=[0,0],
    class_weights=[1.0,0.0], post_transform="NONE">(x)""",
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_have_names(name: str) -> None:
    """Labels are strings."""
    graph = f"g (float[n,2] x) => (string[n] y, float[n,2] z) {{ y, z = ai.onnx.ml.{CLASSIFIERS[name]} }}"
    executable = compiled(parsed(graph, imports=ML))
    assert executable(np.array([[1, 0], [0, 1]], "float32"))[0].tolist() == ["no", "yes"]


TOKENS: list[tuple[str, list[Any], Any]] = [
    ("mark=0, mincharnum=1, pad_value=\"#\", separators=[\" \"]", ["ab cd,e", "  ", "x"],
     [["ab", "cd,e"], ["#", "#"], ["x", "#"]]),
    ("mark=1, mincharnum=2, pad_value=\"\", separators=[\" \",\",\"]", ["ab c,de", "", "xy"],
     [["\x02", "ab", "de", "\x03"], ["\x02", "\x03", "", ""], ["\x02", "xy", "\x03", ""]]),
    ("mark=0, mincharnum=1, pad_value=\"#\", tokenexp=\"[a-z]+|é\"", [["a1b", "é"], ["É", "ab"]],
     [[["a", "b"], ["é", "#"]], [["#", "#"], ["ab", "#"]]]),
    ("mark=0, mincharnum=1, pad_value=\"#\", tokenexp=\"a|ab\"", ["ab a"], [["ab", "a"]]),
    ("mark=0, mincharnum=1, pad_value=\"#\", separators=[\"\"]", ["éa", "b"], [["é", "a"], ["b", "#"]]),
    ("mark=1, mincharnum=1, pad_value=\"#\", separators=[\" \"]", ["", " "], [[], []]),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "given", "expected"), TOKENS)
def test_tokenizer_is_onnx_runtimes(attributes: str, given: list[Any], expected: Any) -> None:
    """Expected is what ONNX Runtime 1.32 gives."""
    rank = np.array(given).ndim
    sizes = ",".join("nm"[:rank])
    graph = f"g (string[{sizes}] x) => (string[{sizes},t] y) {{ y = com.microsoft.Tokenizer<{attributes}>(x) }}"
    assert compiled(parsed(graph, imports=MICROSOFT))(given).tolist() == expected


def test_stop_words_are_whole_strings_in_any_case() -> None:
    """ONNX's reference looks for words in strings, drops empty ones, and compares in one case if it changes it."""
    graph = """g (string[n] x) => (string[a] p, string[b] q) { p = StringNormalizer<stopwords=["B","a"]>(x)
    q = StringNormalizer<stopwords=["a","","b","c d"]>(x) }"""
    some, none = compiled(graph)(["A", "a b", "b", "", "C D"])
    assert some.tolist() == ["a b", "", "C D"] and none.tolist() == ["a b"]
    assert compiled(graph)(["a", "B"])[1].tolist() == [""]


def test_cases_of_letters_are_those_of_the_c_library() -> None:
    """Each character becomes one, as in ONNX Runtime."""
    graph = """g (string[n] x) => (string[a] p, string[b] q) { p = StringNormalizer<case_change_action="UPPER">(x)
    q = StringNormalizer<case_change_action="LOWER">(x) }"""
    upper, lower = compiled(graph)(["Straße", "ÉCOLE", "ΣίσυφΟΣ", "İI", "ᾳ", "ŉ"])
    assert upper.tolist() == ["STRAßE", "ÉCOLE", "ΣΊΣΥΦΟΣ", "İI", "ᾼ", "ŉ"]
    assert lower.tolist() == ["straße", "école", "σίσυφοσ", "ii", "ᾳ", "ŉ"]


REFUSED = {
    "(string[n] x) => (string[n] y) { y = Add(x,x) }": r"'y' \(Add\) reads strings.*compute it outside",
    "(string[n] x) => (bool[n] y) { y = Less(x,x) }": r"\(Less\) reads strings",
    "(string[n,2] x) => (string[n,2] y) { y = Trilu(x) }": r"\(Trilu\) reads strings",
    "(string[n] x, int64[n] i) => (bool[n] y) { y = Equal(x,i) }": r"\(Equal\) reads numbers from 'i', expected str",
    "(string[n] x, string[n] i) => (string[n] y) { y = Gather(x,i) }": r"\(Gather\) reads strings from 'i'",
    "(string[n] x, int64[k] i) => (string[n] y) { y = ScatterElements<reduction=\"max\">(x,i,x) }": "reduces strings",
    "(int64[n] x) => (string[n] y) { y = Identity(x) }": "'y' is declared as strings, and is computed as numbers",
    "(string[n] x) => (int64[n] y) { y = Identity(x) }": "'y' is declared as numbers, and is computed as strings",
    "(int64[n] x) => (string[n,a] y, int64[n] c) { y, c = StringSplit(x) }": r"\(StringSplit\) reads numbers from 'x'",
    "(string[n] x) => (float[3] y) { y = TfIdfVectorizer<mode=\"TF\",min_gram_length=1,max_gram_length=1,"
    "max_skip_count=0,ngram_counts=[0],ngram_indexes=[0],pool_int64s=[1]>(x) }": r"\(TfIdfVectorizer\) reads strings",
    "(bool c, string[n] x, int64[n] i) => (string[n] y) { y = If(c)<then_branch = t () => (string[n] a) "
    "{ a = Identity(x) }, else_branch = e () => (int64[n] b) { b = Identity(i) }> }": r"\(If\) has 'y' as strings",
    "(string[n] x) => (string[n] y) { t = Constant<value=int64 {2}>() c = Constant<value=bool {1}>() y = Loop(t,c,x)"
    "<body = b (int64 i, bool k, string[n] a) => (bool l, int64[n] o) { l = Identity(k) o = Cast<to=7>(a) }> }":
        r"\(Loop\) has 'y' as strings in one",
    "(string[n] x) => (bool[n] y) { y = RegexFullMatch<pattern=\"a(?=b)\">(x) }": r"the pattern 'a\(\?=b\)', which has",
    "(string[n] x) => (string[m] y) { y = StringNormalizer<locale=\"tr_TR\",case_change_action=\"UPPER\">(x) }":
        "locale 'tr_TR'",
    "(string[2,n] x) => (string[2,m] y) { y = StringNormalizer(x) }": r"expected \[C\] or \[1, C\]",
    "(bfloat16[n] x) => (string[n] y) { y = Cast<to=8>(x) }": "cast it to float32 first",
    "(string[n] x) => (int64[n] y) { y = ai.onnx.ml.LabelEncoder<keys_strings=[\"a\"],values_int64s=[1,2]>(x) }":
        "1 keys and 2 values",
}  # fmt: skip


@pytest.mark.parametrize("graph", REFUSED)
def test_what_would_compute_with_codes_is_refused(graph: str) -> None:
    """By the node, the reason and the cure."""
    with pytest.raises(UnsupportedModelError, match=REFUSED[graph]):
        import_onnx(parsed(f"g {graph}", imports=ML3))


def test_strings_that_are_no_numbers_fail_the_call() -> None:
    """Python reads more than ONNX says."""
    executable = compiled("g (string[n] x) => (int8[n] y, float[n] z) { y = Cast<to=3>(x) z = Cast<to=1>(x) }")
    for wrong in ("128", "2.5", "", "1_0", "0x10", "two"):
        with pytest.raises(
            InputError, match=rf"\(Cast\) casts the string '{wrong}', which is not a whole number from -128"
        ):
            executable(["1", wrong])
    assert executable([" 7", "-128"])[0].tolist() == [7, -128]


def test_inputs_may_be_bound_to_strings() -> None:
    """By ``constants``, in the forms that a call takes."""
    graph = parsed("g (string[n] x, string[k] y) => (string[m] z) { z = Concat<axis=0>(x,y) }")
    assert compiled(graph, constants={"y": ["k", b"\xc3\xa9"]})(WORDS[:1]).tolist() == ["b", "k", "é"]
    with pytest.raises(UsageError, match=r"constants\['y'\] has dtype int64, expected strings"):
        import_onnx(graph, constants={"y": np.arange(2)})


@pytest.mark.parametrize("exchangeable", [False, True])
def test_many_strings_of_the_model_are_no_weights(exchangeable: bool) -> None:
    """Another value would need another table of strings."""
    words = [f"word {i}" for i in range(300)]
    graph = parsed("g (int64[n] i) => (string[n] y) { y = Gather(words, i) }")
    graph.graph.initializer.append(onnx.helper.make_tensor("words", onnx.TensorProto.STRING, [300], words))
    executable = compiled(graph, exchangeable_weights=exchangeable)
    assert executable(np.array([299, 0])).tolist() == ["word 299", "word 0"]
    assert not executable.parameters
    with pytest.raises(InputError, match="holds the index 300"):
        executable(np.array([300]))


def test_a_model_without_strings_stays_as_it_is() -> None:
    """Of a Cast it is looked at whether it has any."""
    graph = parsed("g (float[n] x) => (int64[n] y) { y = Cast<to=7>(x) }")
    assert import_onnx(graph).signature.strings is None


# Of what RE2 and Python have both, and mean another thing by; of RE2 1.32's results in ONNX Runtime.
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    (r"a$\n", [], ["a\n", "a"]),
    (r"a$", ["a"], ["a\n"]),
    (r"\d+", ["12"], ["٣"]),
    (r"\s", ["\t", " "], ["\v", "\xa0", "\x1c"]),
    (r"[[:space:]]", ["\v", " "], ["\xa0"]),
    (r"\w\W", ["a-", "_é"], ["é-", "ab"]),
    (r"a{,2}", ["a{,2}"], ["a", "aa", ""]),
    (r"(?i)k", ["k", "K", "\u212a"], ["x"]),
    (r"(?i)[^s]", ["x"], ["s", "S", "ſ"]),
    (r"(?i:a)b", ["Ab"], ["AB"]),
    (r"(?i)i", ["i", "I"], ["İ", "ı"]),
    (r"(?s).(?-s).", ["\na"], ["a\n", "\n\n"]),
    (r"[]a-]+", ["]a-"], ["b"]),
    (r"\Qa.b\E+", [], []),
    (r"(?P<n>a|b)(?:c){2}", ["acc", "bcc"], ["ac"]),
    (r"\x41\x{e9}\.", ["Aé."], ["Aéx"]),
    (r"\bé\B", [], ["é"]),
    (r"[\d\-x]{1,2}?", ["1-", "x"], ["٣", "1-x"]),
    (r"(?U)a+", ["aa"], [""]),
    (r"(?m)^a$\n^b$", ["a\nb"], ["a\nb\n"]),
    (r"|a", ["", "a"], ["b"]),
]


@pytest.mark.parametrize(("pattern", "matched", "others"), PATTERNS)
def test_patterns_match_what_re2_matches(pattern: str, matched: list[str], others: list[str]) -> None:
    """Python's own patterns would match others."""
    if not (matched or others):
        with pytest.raises(PatternError):
            translated(pattern)
        return
    expression = re.compile(translated(pattern).pattern)
    assert [each for each in (*matched, *others) if expression.fullmatch(each)] == matched


@pytest.mark.parametrize(
    "pattern",
    [r"a(?=b)", r"(?<=a)b", r"(a)\1", r"a++", r"a**", r"*a", r"{2}", r"(?m){2}", r"a{1001}", r"a{2,1}", r"^*", r"\pL",
     r"\C", r"\Z", r"(?x)a", r"(a", r"a)", r"[a", r"[b-a]", r"[a-\d]", r"[[:foo:]]", r"\_", r"\1", "a\\", r"(?i)é",
     r"(?#c)", r"(?>a)", r"(" * 60 + ")" * 60],
)  # fmt: skip
def test_patterns_that_are_no_re2_are_refused(pattern: str) -> None:
    """RE2 refuses most of them; a few are not translated."""
    with pytest.raises(PatternError):
        translated(pattern)
