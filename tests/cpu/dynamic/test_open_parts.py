"""Loops and parts of programs whose sizes data decide: compiled once, right for every size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest

import monograph
import monograph.errors

HEAD = '<ir_version: 9, opset_import: ["": 20]>'
Feeds = Mapping[str, Any]


def check(text: str, cases: list[Feeds], compilations: int | None) -> monograph.Session:
    """Run a model on feeds in checked mode, and compare with the reference.

    compilations: the programs for sizes that data decide, after all runs; None for any number.
    """
    model = onnx.parser.parse_model(HEAD + text)
    session = monograph.load(model, target="cpu", threads=2, cache_bytes=0, checked=True)
    reference = monograph.load(model, target="reference")
    for feeds in (*cases, *reversed(cases)):
        for found, wanted in zip(session.run(feeds), reference.run(feeds), strict=True):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape, feeds
            if found.dtype == object:
                assert found.tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert compilations in (None, session.stats["specialisations"])
    return session


def floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def some(count: int, of: int = 8) -> Any:
    """A mask with some elements set."""
    return np.arange(of) * 3 % of < count


def test_state_grows_in_each_turn_and_turns_are_collected() -> None:
    text = """
    g (int64 n, float[2, 3] x) => (float[k, 3] y, float[n, 3] sums) {
        yes = Constant<value = bool {1}>()
        y, sums = Loop(n, yes, x) <body = b (int64 i, bool c, float[p, 3] s)
            => (bool c1, float[q, 3] s1, float[3] t) {
            c1 = Identity(c)
            axes = Constant<value = int64[1] {0}>()
            t = ReduceMean<keepdims = 0>(s, axes)
            u = Unsqueeze(t, axes)
            s1 = Concat<axis = 0>(s, u)
        }>
    }"""
    cases = [{"n": np.array(n), "x": floats(2, 3)} for n in (900, 0, 1, 2, 901)]
    check(text, cases, 1)


def test_a_state_that_grows_from_one_row_up_to_a_size_is_compiled_once() -> None:
    """The first turn, the last one, and a batch of 1 take no code of their own."""
    text = """
    g (float[N, 2] x) => (float[k, N, 2] y) {
        a = Constant<value = int64[1] {0}>()
        most = Constant<value = int64 {100}>()
        yes = Constant<value = bool {1}>()
        start = Unsqueeze(x, a)
        y = Loop(most, yes, start) <body = b (int64 i, bool c, float[p, N, 2] s)
            => (bool c1, float[q, N, 2] s1) {
            axes = Constant<value = int64[1] {0}>()
            limit = Constant<value = int64[1] {7}>()
            row = ReduceMean(s, axes)
            s1 = Concat<axis = 0>(s, row)
            shape = Shape<start = 0, end = 1>(s1)
            short = Less(shape, limit)
            part = Squeeze(short)
            total = ReduceSum<keepdims = 0>(row)
            finite = Equal(total, total)
            c1 = And(part, finite)
        }>
    }"""
    session = check(text, [{"x": floats(n, 2)} for n in (3, 1, 2)], 1)
    nan = {"x": np.full((2, 2), np.nan, np.float32)}
    assert session.run(nan)[0].shape == (2, 2, 2)
    assert session.stats["specialisations"] == 1


@pytest.mark.parametrize("element", ["float16", "int64", "bool", "string"])
def test_states_of_every_type_grow_at_rates_of_their_own(element: str) -> None:
    """One starts empty: its sizes 0 and 1 have code of their own."""
    text = """
    g (int64 n, T[1] x, T[0] e) => (T[k] y, T[m] z) {
        yes = Constant<value = bool {1}>()
        y, z = Loop(n, yes, x, e) <body = b (int64 i, bool c, T[p] s, T[q] r)
            => (bool c1, T[p1] s1, T[q1] r1) {
            c1 = Identity(c)
            s1 = Concat<axis = 0>(s, s)
            r1 = Concat<axis = 0>(r, x)
        }>
    }""".replace("T[", f"{element}[")
    kind = {"float16": np.float16, "int64": np.int64, "bool": bool, "string": object}[element]
    one = np.array([3.5 if element == "float16" else 1], kind)
    one = np.array(["é"], object) if element == "string" else one
    cases = [{"n": np.array(n), "x": one, "e": np.empty(0, kind)} for n in (6, 3, 0, 9)]
    check(text, cases, None if element == "string" else 3)  # text is work of the host


def test_a_loop_ends_early_and_its_result_flows_on() -> None:
    text = """
    g (float[1] x, float limit) => (float[k] y, float[j, j] z) {
        yes = Constant<value = bool {1}>()
        y = Loop(, yes, x) <body = b (int64 i, bool c, float[p] s) => (bool c1, float[q] s1) {
            axes = Constant<value = int64[1] {0}>()
            t = ReduceSum<keepdims = 0>(s, axes)
            c1 = Less(t, limit)
            s1 = Concat<axis = 0>(s, x)
        }>
        a = Constant<value = int64[1] {0}>()
        column = Unsqueeze(y, a)
        row = Transpose(column)
        z = Mul(row, column)
    }"""
    cases = [{"x": np.ones(1, np.float32), "limit": np.float32(n)} for n in (7, 1, 40, 0, 7)]
    check(text, cases, 2)  # a state of one element, of more, and what follows


def test_sizes_that_data_find_flow_through_a_loop() -> None:
    """The rows of a mask are gathered, captured by a loop, and read backwards from its state."""
    text = """
    g (bool[8] m, float[8, 3] x, int64 n) => (float[k, 3] y, float[j, 3] last) {
        p = NonZero(m)
        a = Constant<value = int64[1] {0}>()
        at = Squeeze(p, a)
        rows = Gather<axis = 0>(x, at)
        yes = Constant<value = bool {1}>()
        y = Loop(n, yes, rows) <body = b (int64 i, bool c, float[p, 3] s)
            => (bool c1, float[q, 3] s1) {
            c1 = Identity(c)
            t = Add(rows, rows)
            s1 = Concat<axis = 0>(s, t)
        }>
        back = Constant<value = int64[1] {-1}>()
        least = Constant<value = int64[1] {-9000}>()
        step = Constant<value = int64[1] {-2}>()
        last = Slice(y, back, least, a, step)
    }"""
    cases = [
        {"m": some(k), "x": floats(8, 3), "n": np.array(n)}
        for k, n in ((5, 4), (2, 1), (7, 6), (8, 0), (3, 30))
    ]
    check(text, cases, 3)
    check(text, [{"m": some(k), "x": floats(8, 3), "n": np.array(3)} for k in (0, 1)], None)


def test_nested_loops_grow() -> None:
    text = """
    g (int64 n, float[2] x) => (float[k] y) {
        yes = Constant<value = bool {1}>()
        y = Loop(n, yes, x) <body = outer (int64 i, bool c, float[p] s) => (bool c1, float[q] s2) {
            c1 = Identity(c)
            s1 = Loop(i, c, s) <body = inner (int64 j, bool d, float[u] r)
                => (bool d1, float[v] r1) {
                d1 = Identity(d)
                r1 = Concat<axis = 0>(r, x)
            }>
            s2 = Neg(s1)
        }>
    }"""
    cases = [{"n": np.array(n), "x": floats(2)} for n in (5, 0, 1, 7)]
    session = check(text, cases, None)
    compiled = session.stats["specialisations"]
    for n in (6, 8, 11):
        session.run({"n": np.array(n), "x": floats(2)})
    assert session.stats["specialisations"] == compiled


def test_a_branch_in_a_loop_decides_whether_its_state_grows() -> None:
    text = """
    g (int64 n, float[3] x, bool[8] m) => (float[k] y) {
        yes = Constant<value = bool {1}>()
        y = Loop(n, yes, x) <body = b (int64 i, bool c, float[p] s) => (bool c1, float[q] s1) {
            c1 = Identity(c)
            go = Gather<axis = 0>(m, i)
            s1 = If(go) <
                then_branch = t () => (float[r] a) { a = Concat<axis = 0>(s, x) },
                else_branch = e () => (float[o] b) { b = Neg(s) }
            >
        }>
    }"""
    cases = [{"n": np.array(n), "x": floats(3), "m": some(k)} for n, k in ((8, 4), (3, 8), (8, 0))]
    check(text, cases, 3)


def test_a_sequence_grows_and_is_joined() -> None:
    text = """
    g (int64 n, float[2] x) => (float[k] y) {
        yes = Constant<value = bool {1}>()
        empty = SequenceEmpty()
        all = Loop(n, yes, empty) <body = b (int64 i, bool c, seq(float[2]) s)
            => (bool c1, seq(float[2]) s1) {
            c1 = Identity(c)
            f = Cast<to = 1>(i)
            t = Mul(x, f)
            s1 = SequenceInsert(s, t)
        }>
        joined = ConcatFromSequence<axis = 0>(all)
        y = Exp(joined)
    }"""
    check(text, [{"n": np.array(n), "x": floats(2) / 4} for n in (3, 1, 6, 9)], None)


def test_a_trip_count_that_data_decide_is_a_native_loop() -> None:
    """The collected rows are as many as the turns; nothing is compiled for another count."""
    text = """
    g (bool[8] m, float[2, 3] x) => (float[2, 3] y, float[k, 2, 3] all) {
        axes = Constant<value = int64[1] {0}>()
        ones = Cast<to = 7>(m)
        n = ReduceSum<keepdims = 0>(ones, axes)
        yes = Constant<value = bool {1}>()
        y, all = Loop(n, yes, x) <body = b (int64 i, bool c, float[2, 3] s)
            => (bool c1, float[2, 3] s1, float[2, 3] t) {
            c1 = Identity(c)
            f = Cast<to = 1>(i)
            t = Mul(x, f)
            s1 = Add(s, t)
        }>
    }"""
    cases = [{"m": some(k), "x": floats(2, 3)} for k in (4, 7, 2, 8)]
    session = check(text, cases, 1)
    assert session.stats["launches_per_run"] == 2
    check(text, [{"m": some(k), "x": floats(2, 3)} for k in (0, 1, 5)], 3)


@pytest.mark.parametrize(
    ("starts", "stops", "step", "compilations"),
    [
        ([2, 3, 5, 7], [6, 4, 9, 9000], 1, 2),
        ([-3, -5, 2, 0], [9, -1, 5, 1], 1, 4),
        ([8, 7, 5, -1], [2, 3, 2, -9000], -2, 2),
    ],
)
def test_computed_bounds_of_slices(
    starts: list[int], stops: list[int], step: int, compilations: int
) -> None:
    """Bounds that are negative, or beyond the end, have code of their own."""
    text = f"""
    g (float[9, 2] x, int64[1] a, int64[1] b) => (float[k, 2] y, float[1, 2] z) {{
        zero = Constant<value = int64[1] {{0}}>()
        one = Constant<value = int64[1] {{1}}>()
        step = Constant<value = int64[1] {{{step}}}>()
        start = Mul(a, one)
        part = Slice(x, start, b, zero, step)
        y = Exp(part)
        z = ReduceSum(part, zero)
    }}"""
    cases = [
        {"x": floats(9, 2), "a": np.array([a]), "b": np.array([b])}
        for a, b in zip(starts, stops, strict=True)
    ]
    check(text, cases, compilations)


def test_a_shape_of_an_open_size_and_one_that_data_decide() -> None:
    """A part reads an open size of the program from a vector whose other elements data decide."""
    text = """
    g (float[N, 3] x, bool[8] m) => (float[n, k] y) {
        rows = Shape<start = 0, end = 1>(x)
        places = NonZero(m)
        found = Shape<start = 1, end = 2>(places)
        shape = Concat<axis = 0>(rows, found)
        one = Constant<value = float {1.5}>()
        y = Expand(one, shape)
    }"""
    cases = [{"x": floats(rows, 3), "m": some(count)} for rows, count in ((4, 3), (7, 3), (9, 5))]
    session = check(text, cases, None)
    assert session.stats["exact_reason"] == ""


def test_a_range_up_to_an_open_size_is_one_launch() -> None:
    text = """
    g (float[N, 3] x) => (float[N, 3] y) {
        size = Shape<start = 0, end = 1>(x)
        n = Squeeze(size)
        zero = Constant<value = int64 {0}>()
        step = Constant<value = int64 {1}>()
        places = Range(zero, n, step)
        y = Gather<axis = 0>(x, places)
    }"""
    session = check(text, [{"x": floats(n, 3)} for n in (4, 7, 5)], 0)
    assert session.stats["fallbacks"] == {}
    assert session.stats["variants"] == 1


@pytest.mark.parametrize("specialise", ["off", "auto"])
def test_a_program_in_parts_is_code_for_any_shape(specialise: str) -> None:
    """Open dimensions of inputs flow through two splits and a growing loop."""
    text = """
    g (float[N, 3] x, bool[M] m, int64 n) => (float[k, 3] y, float[N, 3] z, int64[1, q] at) {
        p = NonZero(m)
        a = Constant<value = int64[1] {0}>()
        places = Squeeze(p, a)
        rows = Gather<axis = 0>(x, places)
        total = ReduceSum(x, a)
        scaled = Add(rows, total)
        yes = Constant<value = bool {1}>()
        y = Loop(n, yes, scaled) <body = b (int64 i, bool c, float[p, 3] s)
            => (bool c1, float[q, 3] s1) {
            c1 = Identity(c)
            s1 = Concat<axis = 0>(s, x)
        }>
        kept = Greater(y, total)
        at2 = NonZero(kept)
        one = Constant<value = int64[1] {1}>()
        at = Slice(at2, a, one, a)
        z = Neg(x)
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    session = monograph.load(
        model, target="cpu", threads=2, specialise=specialise, cache_bytes=0, checked=True
    )
    reference = monograph.load(model, target="reference")

    def run(rows: int, length: int, count: int, turns: int) -> None:
        mask = some(count, length)
        feeds = {"x": floats(rows, 3), "m": mask, "n": np.array(turns)}
        for found, wanted in zip(session.run(feeds), reference.run(feeds), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

    run(9, 8, 5, 3)
    before = session.stats
    assert before["exact_reason"] == ""
    for case in ((12, 11, 4, 2), (20, 8, 8, 6), (10, 10, 3, 7), (9, 8, 1, 3), (1, 1, 1, 2)):
        run(*case)
    after = session.stats
    assert after["variants"] == before["variants"] == 1
    assert after["specialisations"] == before["specialisations"]
    for case in ((1, 1, 1, 1), (1, 1, 0, 0), (5, 3, 0, 2), (8, 2, 1, 0)):
        run(*case)
    session.close()


def test_turns_append_to_a_state_in_place() -> None:
    """One turn appends two parts; a state that is read after it has grown is not split."""
    text = """
    g (int64 n, float[2, 3] x) => (float[k, 3] y, float[m, 3] z, float[n, 3] sums) {
        yes = Constant<value = bool {1}>()
        y, z, sums = Loop(n, yes, x, x) <body = b (int64 i, bool c, float[p, 3] s, float[u, 3] r)
            => (bool c1, float[q, 3] s1, float[v, 3] r1, float[3] t) {
            c1 = Identity(c)
            last = Constant<value = int64[1] {-1}>()
            end = Constant<value = int64[1] {9000}>()
            axes = Constant<value = int64[1] {0}>()
            row = Slice(s, last, end, axes)
            s1 = Concat<axis = 0>(s, row, x)
            r1 = Concat<axis = 0>(r, x)
            t = ReduceMax<keepdims = 0>(r1, axes)
        }>
    }"""
    check(text, [{"n": np.array(n), "x": floats(2, 3)} for n in (40, 3, 0, 41)], 1)


def test_rows_of_another_size_do_not_append() -> None:
    text = """
    g (int64 n, float[1, W] x) => (float[k, l] y) {
        yes = Constant<value = bool {1}>()
        y = Loop(n, yes, x) <body = b (int64 i, bool c, float[p, l] s)
            => (bool c1, float[q, l] s1) {
            c1 = Identity(c)
            one = Constant<value = int64 {1}>()
            width = Add(i, one)
            axes = Constant<value = int64[1] {0}>()
            size = Unsqueeze(width, axes)
            two = Constant<value = int64[1] {1}>()
            shape = Concat<axis = 0>(two, size)
            row = Expand(one, shape)
            f = Cast<to = 1>(row)
            s1 = Concat<axis = 0>(s, f)
        }>
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    session = monograph.load(model, target="cpu", cache_bytes=0)
    feeds = {"n": np.array(1), "x": floats(1, 1)}
    assert session.run(feeds)[0].shape == (2, 1)
    with pytest.raises(monograph.errors.MonographError):
        session.run(feeds | {"n": np.array(3)})


def test_a_size_that_a_part_cannot_take_changes_nothing_for_others() -> None:
    text = """
    g (float[n] x) => (int64[a, b] y) <int64[2] shape = {2, -1}> {
        t = NonZero(x)
        y = Reshape(t, shape)
    }"""
    session = check(text, [{"x": np.ones(4, np.float32)}], 1)
    for count in (5, 6, 7, 8):
        feeds = {"x": np.ones(count, np.float32)}
        if count % 2:
            with pytest.raises(monograph.errors.ExecutionError, match="sizes do not divide"):
                session.run(feeds)
        else:
            assert session.run(feeds)[0].tolist() == [
                [*range(count // 2)],
                [*range(count // 2, count)],
            ]
    assert session.stats["specialisations"] == 1
