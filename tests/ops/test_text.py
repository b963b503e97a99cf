"""The automaton behind the regular expressions, and string ops on data."""

from __future__ import annotations

import re

import numpy as np
import pytest

from monograph.errors import InferError
from monograph.ir import Input, TensorType, tensor
from monograph.ir.dtype import dtype
from monograph.ops import text
from monograph.ops.regex import MAX_STATES, CompiledRegex, compile_pattern
from monograph.ops.regex_syntax import MAX_NESTING
from tests.effort import at_most

STRING = dtype("str")


def test_agrees_with_python_on_random_patterns() -> None:
    rng = np.random.default_rng(11)
    letters = ["a", "b", "ab", "(a|b)", "[ab]", "(ba?)", ".", "[^a]"]
    marks = ["", "", "*", "+", "?", "{2}", "{1,2}", "{2,}"]
    texts = ["".join(rng.choice(["a", "b", "c"], n)) for n in rng.integers(0, 7, 60)]
    for _ in range(150):
        parts = [rng.choice(letters) + rng.choice(marks) for _ in range(rng.integers(1, 4))]
        pattern = "".join(parts) if rng.random() < 0.7 else "|".join(parts)
        compiled, known = CompiledRegex(pattern), re.compile(pattern)
        for t in texts:
            assert compiled.matches(t) == (known.fullmatch(t) is not None), (pattern, t)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+", "(a?){50}a{50}", "(.*)*(.*)*x", "(a+)+$"])
def test_no_pattern_backtracks(pattern: str) -> None:
    with at_most(100_000):
        compile_pattern(pattern).matches("a" * 3000 + "!")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(" * (MAX_NESTING + 5) + ")" * (MAX_NESTING + 5), "nested deeper"),
        ("(((a{99}){99}){99}){99}", f"more than {MAX_STATES} states"),
        ("a{1001}", "more than 1000"),
        (r"\p{Greek}", "unsupported Unicode class"),
        (r"\C", "unknown escape"),
        ("(?<=a)b", "'>' is missing"),
        ("(?<=a>)b", "not the name of a group"),
        ("(?=a)b", "unknown group"),
        ("[[:what:]]", "unknown class"),
        (r"\x{110000}", "not a character"),
    ],
)
def test_what_is_not_taken_says_so(pattern: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        CompiledRegex(pattern)


def test_ops_on_strings_refuse_numbers() -> None:
    x = Input("x", tensor(dtype("f32"), 2))()
    for op in (text.StringSplit(), text.StringFilter(), text.RegexMatch("a")):
        with pytest.raises(InferError, match="element type"):
            op(x)
    with pytest.raises(InferError, match="element type"):
        text.StringConcat()(x, x)


@pytest.mark.parametrize("case", ["none", "lower", "upper"])
@pytest.mark.parametrize("stopwords", [(), ("abc", "É")])
def test_text_of_fixed_width_agrees_with_objects(case: str, stopwords: tuple[str, ...]) -> None:
    op = text.StringFilter(stopwords, case)
    plain = np.array([["AbC", "", "z@[`{Z", "aA", "abc", "~"]])
    for x in (plain, plain[:, ::2], plain[:, :0], np.array([["É", "straße", "abc"]])):
        found = op.reference(x)
        assert found.dtype == object
        assert found.tolist() == op.reference(x.astype(object)).tolist()


def test_types_keep_symbols() -> None:
    x = Input("x", TensorType(STRING, ("N", 3)))()
    assert str(text.RegexMatch("a")(x).type) == "bool[N, 3]"
    assert str(text.StringConcat()(x, x).type) == "str[N, 3]"
    pieces, counts = text.StringSplit()(x).type.items  # type: ignore[union-attr]
    assert str(counts) == "i64[N, 3]"
    assert str(pieces).startswith("str[N, 3, ~")


def test_unknown_rank_goes_through() -> None:
    x = Input("x", TensorType(STRING, None))()
    assert str(text.StringFilter(("a",))(x).type) == "str[*]"
    assert str(text.RegexMatch("a")(x).type) == "bool[*]"
