"""String and n-gram ops as ONNX writes them, and strings through the general ops."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import node_model, run_node, runtime_node


def strings(*items: str) -> np.ndarray:
    return np.array(items, object)


def agrees(op: str, *inputs: np.ndarray, **options) -> list[np.ndarray]:
    ours = run_node(op, *inputs, **options)
    theirs = runtime_node(op, *inputs, **options)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.tolist() == b.tolist()
    return ours


def test_concat_broadcasts() -> None:
    x = np.array([["a"], ["b"]], object)
    (y,) = agrees("StringConcat", x, strings("1", "2", ""))
    assert y.tolist() == [["a1", "a2", "a"], ["b1", "b2", "b"]]


def test_split_at_a_delimiter() -> None:
    pieces, counts = agrees("StringSplit", strings("a,b,c", ",", "", "x"), outputs=2, delimiter=",")
    assert pieces.tolist()[:2] == [["a", "b", "c"], ["", "", ""]]
    assert counts.tolist() == [3, 2, 0, 1]


def test_split_at_spaces_up_to_a_limit() -> None:
    pieces, counts = agrees("StringSplit", strings(" a  b c ", "d"), outputs=2, maxsplit=1)
    assert pieces[1].tolist() == ["d", ""]
    assert counts.tolist() == [2, 1]


def test_split_of_a_symbolic_shape() -> None:
    x = np.array([["a b", "c"]], object)
    session = monograph.load(node_model("StringSplit", [x], outputs=2, symbolic=True))
    assert session.run({"x0": x})[0].shape == (1, 2, 2)
    assert session.run({"x0": x[:, :0]})[0].shape == (1, 0, 0)


@pytest.mark.parametrize("case", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalizer_drops_stop_words(case: str, sensitive: int) -> None:
    x = strings("Monday", "tuesday", "MONDAY", "Friday")
    (y,) = run_node(
        "StringNormalizer", x, case_change_action=case, is_case_sensitive=sensitive,
        stopwords=["monday", "Friday"],
    )  # fmt: skip
    kept = ["Monday", "tuesday", "MONDAY"] if sensitive else ["tuesday"]
    change = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}[case]
    assert y.tolist() == [change(t) for t in kept]


def test_normalizer_of_a_row_with_nothing_left() -> None:
    x = np.array([["a", "A"]], object)
    (y,) = run_node("StringNormalizer", x, stopwords=["a"])
    assert y.shape == (1, 1)
    assert y.tolist() == [[""]]


def test_normalizer_refuses_rows_and_cases() -> None:
    two_rows = np.array([["a"], ["b"]], object)
    with pytest.raises(ModelError, match="one row"):
        run_node("StringNormalizer", two_rows, stopwords=["a"])
    with pytest.raises(ModelError, match="unknown case_change_action"):
        run_node("StringNormalizer", strings("a"), case_change_action="TITLE")


TEXTS = strings(
    "", "a", "abc", "a\nc", "12", "٣", "AB", "aa", "é", "foo", "a\n", "a-b", "]", "foo bar", "{2}",
    "a{", "K", "\u212a",
)  # fmt: skip
PATTERNS = [
    r"a.c", r"(?s)a.c", r"\d+", r"\D*", r"(?i)ab", r"(?i:A)b?", r"a{2,3}", r"a{0}", r"^a$",
    r"(?m)^a$\n^",
    r"[[:alpha:]]+", r"[^[:alpha:]]+", r"\pL+", r"\p{Nd}+", r"\P{L}*", r"\bfoo\b.*", r"\Bfoo",
    r"a|b|abc|", r"(a|b)*c?", r"(?P<x>a)+", r"(?:a)+?", r"[]a]+", r"[a\-]+b", r"[a-]+b?",
    r"\Qa-\Eb",
    r"\x61", r"\x{e9}", r"\141", r"a{", r"\{2\}", r"a\z", r"\Aa\n", r"(a*)*", r"(a+)+c?",
    r"[\d\w]+", r"[^\s]+ \w+", r"()", r"(?i)k",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_full_match_is_that_of_re2(pattern: str) -> None:
    agrees("RegexFullMatch", TEXTS, pattern=pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a**", "(a", "a)", "*a", "[b", r"\1", r"(?=a)", "a{2000}", "[z-a]", r"\p{Foo}", "\\"],
)
def test_patterns_that_re2_refuses_are_refused(pattern: str) -> None:
    with pytest.raises(ModelError, match="the pattern is not accepted"):
        run_node("RegexFullMatch", TEXTS, pattern=pattern)
    with pytest.raises(Exception, match=r"re_\.ok\(\)"):
        runtime_node("RegexFullMatch", TEXTS, pattern=pattern)


GRAMS = {
    "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 2],
    "ngram_indexes": [3, 1, 0, 2],
}  # fmt: skip


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("change", [{}, {"min_gram_length": 2}, {"max_skip_count": 3}])
def test_n_grams(mode: str, change: dict) -> None:
    x = np.array([[5, 6, 7, 5, 6], [6, 6, 6, 7, 1]])
    options = GRAMS | change | {"weights": [10.0, 20.0, 30.0, 40.0], "mode": mode}
    agrees("TfIdfVectorizer", x, pool_int64s=[5, 6, 5, 6, 6, 7], **options)
    agrees("TfIdfVectorizer", x[0].astype(np.int32), pool_int64s=[5, 6, 5, 6, 6, 7], **options)
    words = np.array([["", "a", "b", "c", "d", "e", "f", "g"][i] for i in x[0]], object)
    agrees("TfIdfVectorizer", words, pool_strings=["e", "f", "e", "f", "f", "g"], **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_int64s": [5, 6, 5]}, "ends within a gram"),
        ({"ngram_counts": [0, 9]}, "do not ascend"),
        ({"ngram_counts": [0, -1]}, "do not ascend"),
        ({"ngram_indexes": [0, 1]}, "each gram needs a column"),
        ({"ngram_indexes": [0, 1, 2, -3]}, "each gram needs a column"),
        ({"weights": [1.0]}, "each gram needs a weight"),
        ({"max_gram_length": 3}, "do not fit the pool"),
        ({"max_skip_count": -1}, "do not fit the pool"),
        ({"mode": "BM25"}, "unknown mode"),
        ({"pool_strings": ["a"]}, "exactly one"),
    ],
)
def test_malformed_n_grams_are_refused(change: dict, message: str) -> None:
    options = GRAMS | {"pool_int64s": [5, 6, 5, 6, 6, 7], "mode": "IDF"} | change
    with pytest.raises(ModelError, match=message):
        run_node("TfIdfVectorizer", np.array([5, 6, 7]), **options)


def test_a_huge_number_of_skips_takes_no_time() -> None:
    options = GRAMS | {"max_skip_count": 1 << 60, "mode": "TF"}
    (y,) = run_node(
        "TfIdfVectorizer", np.array([5, 1, 6]), pool_int64s=[5, 6, 5, 6, 6, 7], **options
    )
    assert y.tolist() == [1, 1, 0, 1]


# Strings through ops for any element type


def test_equal() -> None:
    x = np.array([["a"], ["b"]], object)
    assert agrees("Equal", x, strings("a", "b"))[0].tolist() == [[True, False], [False, True]]


def test_rearranging() -> None:
    x = np.array([["a", "b"], ["c", "d"]], object)
    agrees("Concat", x, x, axis=1)
    agrees("Gather", x, np.array([1, 0]), axis=1)
    agrees("Reshape", x, np.array([4]), constant=[1])
    agrees("Transpose", x, perm=[1, 0])
    agrees("Where", np.array([True, False]), x, np.array("z", object))
    agrees("Slice", x, np.array([1]), np.array([2]), constant=[1, 2])
    agrees("Expand", x, np.array([2, 1, 1]), constant=[1])


def test_casting() -> None:
    import onnx

    x = strings("1", "-2")
    assert agrees("Cast", x, to=onnx.TensorProto.INT64)[0].tolist() == [1, -2]
    assert agrees("Cast", strings("1.5", "-inf"), to=onnx.TensorProto.FLOAT)[0].dtype == np.float32
    assert agrees("Cast", np.array([3, -4]), to=onnx.TensorProto.STRING)[0].tolist() == ["3", "-4"]
