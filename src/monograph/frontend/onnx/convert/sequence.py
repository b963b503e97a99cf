"""Sequences, optionals, strings and n-grams.

The import uses what it knows of a sequence: an element of a sequence built from values is that
value itself, without a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.frontend.onnx.node import Node, converter
from monograph.ir import (
    Graph,
    Input,
    Literal,
    OptionalType,
    SequenceType,
    TensorType,
    Value,
    constant,
    tensor,
    unpack,
)
from monograph.ir.dtype import boolean, f32, i64
from monograph.ops import sequence as sq
from monograph.ops import shape as sh
from monograph.ops import text
from monograph.ops.control import Loop
from monograph.ops.subgraph import close, inline, variant


def _elements(sequence: Value) -> tuple[Value, ...] | None:
    """Return the elements of a sequence that is built from values; None if they are not known."""
    return sequence.inputs if isinstance(sequence.op, sq.MakeSequence) else None


def _position(n: Node, index: int, default: int, low: int, high: int) -> int | None:
    """Return a known position within bounds; None leaves the others to run time."""
    if n.optional(index) is None:
        return default if low <= default <= high else None
    data = n.known(index)
    if data is None or data.size != 1 or data.dtype.kind not in "iu":
        return None
    if not low <= int(data.reshape(())) <= high:
        return None
    return int(data.reshape(()))


def _sequence(elements: list[Value], like: Value) -> Value:
    assert isinstance(like.type, SequenceType)
    return sq.MakeSequence(like.type.element if not elements else None)(*elements)


@converter("SequenceConstruct")
def sequence_construct(n: Node) -> Value:
    return sq.MakeSequence()(*n.required())


@converter("SequenceEmpty")
def sequence_empty(n: Node) -> Value:
    return sq.MakeSequence(TensorType(n.attr_dtype("dtype", f32), None))()


@converter("SequenceAt")
def sequence_at(n: Node) -> Value:
    elements = _elements(n.input(0))
    if elements is not None:
        place = _position(n, 1, 0, -len(elements), len(elements) - 1)
        if place is not None:
            return elements[place]
    return sq.SequenceAt()(n.input(0), n.input(1))


@converter("SequenceInsert")
def sequence_insert(n: Node) -> Value:
    sequence, x = n.input(0), n.input(1)
    elements = _elements(sequence)
    if elements is not None:
        place = _position(n, 2, len(elements), -len(elements), len(elements))
        if place is not None:
            listed = list(elements)
            listed.insert(place, x)
            return _sequence(listed, sequence)
    position = n.optional(2)
    return sq.SequenceInsert()(sequence, x, *(() if position is None else (position,)))


@converter("SequenceErase")
def sequence_erase(n: Node) -> Value:
    sequence = n.input(0)
    elements = _elements(sequence)
    if elements is not None:
        place = _position(n, 1, -1, -len(elements), len(elements) - 1)
        if place is not None:
            listed = list(elements)
            del listed[place]
            return _sequence(listed, sequence)
    position = n.optional(1)
    return sq.SequenceErase()(sequence, *(() if position is None else (position,)))


@converter("SequenceLength")
def sequence_length(n: Node) -> Value:
    elements = _elements(n.input(0))
    return sq.SequenceLength()(n.input(0)) if elements is None else constant(len(elements))


@converter("SplitToSequence")
def split_to_sequence(n: Node) -> Value:
    sizes = n.optional(1)
    op = sq.SplitToSequence(n.attr_int("axis", 0), n.attr_flag("keepdims", True))
    return op(n.input(0), *(() if sizes is None else (sizes,)))


@converter("ConcatFromSequence")
def concat_from_sequence(n: Node) -> Value:
    axis, new = n.attr_int("axis"), n.attr_flag("new_axis")
    elements = _elements(n.input(0))
    if not elements or any(v.tensor.shape is None for v in elements):
        return sq.ConcatFromSequence(axis, new)(n.input(0))
    if new:
        return sh.Concat(axis)(*(sh.Unsqueeze((axis,))(v) for v in elements))
    return sh.Concat(axis)(*elements)


@converter("SequenceMap")
def sequence_map(n: Node) -> tuple[Value, ...]:
    """Convert SequenceMap to a loop that appends to one sequence for each output of the body."""
    values = n.required()
    if not values or not isinstance(values[0].type, SequenceType):
        n.fail("the first input of SequenceMap must be a sequence")
    types = tuple(
        close(v.type.element, set()) if isinstance(v.type, SequenceType) else v.type for v in values
    )
    stem = f"{n.scope.depth}_map"
    body = n.subgraph("body", tuple(variant(t, f"{stem}{i}") for i, t in enumerate(types)))
    depth = n.scope.depth
    step, go = Input(f"step#{depth}", tensor(i64))(), Input(f"go#{depth}", tensor(boolean))()
    captured = tuple(
        Input(f"given{i}#{depth}", v.type)() for i, v in enumerate((*values, *body.captures))
    )
    arguments = tuple(
        sq.SequenceAt()(v, step) if isinstance(v.type, SequenceType) else v
        for v in captured[: len(values)]
    )
    results = inline(body.graph, (*arguments, *captured[len(values) :]))
    made = [
        variant(close(SequenceType(v.type), set()), f"{stem}r{i}") for i, v in enumerate(results)
    ]
    state = tuple(Input(f"made{i}#{depth}", t)() for i, t in enumerate(made))
    appended = tuple(sq.SequenceInsert()(s, v) for s, v in zip(state, results, strict=True))
    graph = Graph(
        (step, go, *state, *captured),
        (("go", go), *((f"y{i}", v) for i, v in enumerate(appended))),
        f"{n.label}.map",
    )
    empty = (sq.MakeSequence(TensorType(v.dtype, None))() for v in results)
    count = sq.SequenceLength()(values[0])
    looped = Loop(graph, len(state))(count, constant(True), *empty, *values, *body.captures)
    return unpack(looped)


@converter("Optional")
def optional(n: Node) -> Value:
    x = n.optional(0)
    if x is None:
        return sq.MakeOptional(n.attr_type("type"))()
    return sq.MakeOptional()(x)


@converter("OptionalHasElement")
def optional_has_element(n: Node) -> Value:
    """Convert OptionalHasElement: a plain value is present, a missing input is not."""
    x = n.optional(0)
    if x is None or not isinstance(x.type, OptionalType):
        return constant(x is not None)
    return constant(bool(x.inputs)) if _made(x) else sq.HasElement()(x)


@converter("OptionalGetElement")
def optional_get_element(n: Node) -> Value:
    x = n.input(0)
    if not isinstance(x.type, OptionalType):
        return x
    return x.inputs[0] if _made(x) and x.inputs else sq.GetElement()(x)


def _made(x: Value) -> bool:
    return isinstance(x.op, sq.MakeOptional)


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
