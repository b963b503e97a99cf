"""Sequences and optionals of model files."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import monograph
from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph


def parse(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


def f32(*data: Any) -> np.ndarray:
    return np.array(data, np.float32)


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif theirs is not None:
        np.testing.assert_array_equal(ours, theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    else:
        assert ours is None


def agree(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    """Our outputs, which must be ONNX Runtime's."""
    ours = monograph.load(model).run(feeds)
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    same(ours, theirs)
    return ours


def ops(graph: Graph) -> list[str]:
    return [v.op.name for v in graph.values]


def test_what_is_known_of_a_sequence_needs_no_sequence() -> None:
    model = parse(
        """g (float[2] a, float[2] b) => (float[2] y, int64 n, float[4] z, float[2, 2] w) {
            s = SequenceConstruct (a, b)
            one = Constant <value_int = -1> ()
            t = SequenceInsert (s, a)
            u = SequenceErase (t)
            y = SequenceAt (u, one)
            n = SequenceLength (t)
            z = ConcatFromSequence <axis = 0> (s)
            w = ConcatFromSequence <axis = 1, new_axis = 1> (s)
        }"""
    )
    y, n, z, w = agree(model, a=f32(1, 2), b=f32(3, 4))
    assert y.tolist() == [3, 4]
    assert n == 3
    assert z.tolist() == [1, 2, 3, 4]
    assert w.tolist() == [[1, 3], [2, 4]]
    graph = monograph.load(model).graph
    assert set(ops(graph)) <= {"input", "constant", "concat", "unsqueeze"}


def test_positions_known_at_run_time_only() -> None:
    model = parse(
        """g (int64 i, float[2] a, float[3] b) => (float[N] y, seq(float[M]) s, seq(float[M]) e) {
            t = SequenceConstruct (a, b)
            y = SequenceAt (t, i)
            s = SequenceInsert (t, b, i)
            e = SequenceErase (t, i)
        }"""
    )
    for i in (0, 1, -1, -2):
        agree(model, i=np.array(i), a=f32(1, 2), b=f32(3, 4, 5))
    with pytest.raises(ExecutionError, match="outside of the sequence"):
        monograph.load(model).run({"i": np.array(2), "a": f32(1, 2), "b": f32(3, 4, 5)})


def test_a_known_position_outside_fails_at_run_time() -> None:
    model = parse(
        """g (float[2] a) => (float[2] y) {
            s = SequenceConstruct (a)
            i = Constant <value_int = 3> ()
            y = SequenceAt (s, i)
        }"""
    )
    session = monograph.load(model)
    with pytest.raises(ExecutionError, match="outside of the sequence"):
        session.run({"a": f32(1, 2)})


def test_an_empty_sequence() -> None:
    model = parse(
        """g (float[2] a) => (int64 n, seq(int64[N]) s, float[2] y) {
            s = SequenceEmpty <dtype = 7> ()
            n = SequenceLength (s)
            y = Identity (a)
        }"""
    )
    n, s, _ = agree(model, a=f32(1, 2))
    assert n == 0
    assert s == []


SPLIT = """g (float[N, 3] x, int64 k) => (seq(float[A, B]) s) {
    s = SplitToSequence <axis = 1, keepdims = KEEP> (INPUTS)
}"""


@pytest.mark.parametrize(("inputs", "keep"), [("x", "0"), ("x", "1"), ("x, k", "1")])
def test_split(inputs: str, keep: str) -> None:
    model = parse(SPLIT.replace("INPUTS", inputs).replace("KEEP", keep))
    agree(model, x=np.arange(6, dtype=np.float32).reshape(2, 3), k=np.array(2))


def test_pieces_of_a_given_size_keep_their_axis() -> None:
    model = parse(SPLIT.replace("INPUTS", "x, k").replace("KEEP", "0"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (pieces,) = monograph.load(model).run({"x": x, "k": np.array(1)})
    assert [p.tolist() for p in pieces] == [[[0], [3]], [[1], [4]], [[2], [5]]]


def test_a_loop_fills_a_sequence() -> None:
    """The empty sequence it starts from says nothing of ranks; the first iteration does."""
    model = parse(
        """g (int64 m, bool c, float[2] x) => (float[N, 2] y) {
            empty = SequenceEmpty ()
            s = Loop (m, c, empty) <body = b (int64 i, bool go, seq(float[N]) s_in)
                => (bool go_out, seq(float[N]) s_out) {
                go_out = Identity (go)
                n = Cast <to = 1> (i)
                row = Mul (x, n)
                s_out = SequenceInsert (s_in, row)
            }>
            y0 = ConcatFromSequence <axis = 0, new_axis = 1> (s)
            y = Transpose (y0)
        }"""
    )
    session = monograph.load(model)
    assert session.outputs[0].shape is not None
    feeds = {"m": np.array(3), "c": np.array(True), "x": f32(1, 2)}
    assert session.run(feeds)[0].tolist() == [[0, 1, 2], [0, 2, 4]]


MAP = """g (seq(float[N]) s, SECOND, float[1] k) => (seq(float[N]) y, seq(int64[1]) z) {
    y, z = SequenceMap <body = b (float[N] a, float[N] b) => (float[N] c, int64[1] d) {
        ab = Mul (a, b)
        c = Add (ab, k)
        d = Shape (a)
    }> (s, t)
}"""


@pytest.mark.parametrize("second", ["seq(float[N]) t", "float[1] t"])
def test_map(second: str) -> None:
    model = parse(MAP.replace("SECOND", second))
    t: Any = [f32(2), f32(3)] if second.startswith("seq") else f32(5)
    session = monograph.load(model)
    y, z = session.run({"s": [f32(1), f32(2, 3)], "t": t, "k": f32(0.5)})
    expected = [[2.5], [6.5, 9.5]] if second.startswith("seq") else [[5.5], [10.5, 15.5]]
    assert [x.tolist() for x in y] == expected
    assert [x.tolist() for x in z] == [[1], [2]]
    assert session.run({"s": [], "t": t, "k": f32(0.5)}) == [[], []]


def test_map_needs_a_sequence() -> None:
    with pytest.raises(InferError, match="first input of SequenceMap must be a sequence"):
        monograph.load(
            parse(MAP.replace("SECOND", "float t").replace("seq(float[N]) s", "float s"))
        )


OPTIONAL = """g (optional(float[N]) o, float[1] x) => (float[M] y, bool h) {
    h = OptionalHasElement (o)
    y = If (h) <
        then_branch = a () => (float[N] p) { p = OptionalGetElement (o) },
        else_branch = b () => (float[1] q) { q = Neg (x) }>
}"""


def test_optionals_as_inputs() -> None:
    session = monograph.load(parse(OPTIONAL))
    y, h = session.run({"o": f32(1, 2), "x": f32(3)})
    assert (y.tolist(), bool(h)) == ([1, 2], True)
    y, h = session.run({"o": None, "x": f32(3)})
    assert (y.tolist(), bool(h)) == ([-3], False)


def test_optionals_that_are_known() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y, bool h, bool e, bool t, float[2] z) {
            o = Optional (x)
            y = OptionalGetElement (o)
            h = OptionalHasElement (o)
            n = Optional <type = float[2]> ()
            e = OptionalHasElement (n)
            t = OptionalHasElement (x)
            z = OptionalGetElement (x)
        }"""
    )
    session = monograph.load(model)
    y, h, e, t, z = session.run({"x": f32(1, 2)})
    assert y.tolist() == z.tolist() == [1, 2]
    assert (bool(h), bool(e), bool(t)) == (True, False, True)
    assert set(ops(session.graph)) == {"input", "constant"}


def test_an_empty_optional_has_no_element() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) {
            n = Optional <type = float[2]> ()
            y = OptionalGetElement (n)
        }"""
    )
    session = monograph.load(model)
    with pytest.raises(ExecutionError, match="an empty optional has no element"):
        session.run({"x": f32(1, 2)})
