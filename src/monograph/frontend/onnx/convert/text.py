"""Strings and n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Literal, Value, unpack
from monograph.ops import text


@converter("StringConcat", since=20)
def string_concat(n: Node) -> Value:
    return text.StringConcat()(n.input(0), n.input(1))


@converter("StringSplit", since=20)
def string_split(n: Node) -> Sequence[Value]:
    return unpack(
        text.StringSplit(n.attr_string("delimiter", ""), n.attr_int("maxsplit", -1))(n.input(0))
    )


@converter("StringNormalizer", since=10)
def string_normalizer(n: Node) -> Value:
    """Convert StringNormalizer. The locale is ignored: cases are those of Unicode."""
    case = n.attr_string("case_change_action", "NONE")
    if case.lower() not in text.CASES:
        n.fail("unknown case_change_action", expected="LOWER, UPPER or NONE", given=case)
    stopwords = n.attr_strings("stopwords", ())
    # Without stop words, case sensitivity changes nothing; one form for both.
    sensitive = n.attr_flag("is_case_sensitive") or not stopwords
    return text.StringFilter(stopwords, case.lower(), sensitive)(n.input(0))


@converter("RegexFullMatch", since=20)
def regex_full_match(n: Node) -> Value:
    return text.RegexMatch(n.attr_string("pattern", ""))(n.input(0))


@converter("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(n: Node) -> Value:
    mode = n.attr_string("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        n.fail("unknown mode", expected="TF, IDF or TFIDF", given=mode)
    if n.has("pool_strings") == n.has("pool_int64s"):
        n.fail("exactly one of pool_strings and pool_int64s is needed")
    strings = n.attr_strings("pool_strings", None)
    pool = np.array(n.attr_ints("pool_int64s", ()), np.int64)
    if strings is not None:
        pool = text.object_array(list(strings), (len(strings),))
    weights = n.attr_floats("weights", None) if mode != "TF" else None
    return text.Ngrams(
        Literal(pool),
        starts=n.attr_ints("ngram_counts"),
        columns=n.attr_ints("ngram_indexes"),
        shortest=n.attr_int("min_gram_length"),
        longest=n.attr_int("max_gram_length"),
        skips=n.attr_int("max_skip_count"),
        once=mode == "IDF",
        weights=weights,
    )(n.input(0))
