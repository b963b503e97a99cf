"""Recurrent cells: steps computed by hand, and laws that relate their options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, TensorType, parse_type
from monograph.ir.dtype import f32
from monograph.ir.sizes import SizeScope
from monograph.ops.recurrent import DEFAULTS, Gru, Lstm, Rnn

ONE = np.ones((1, 1))


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def operands(kind: type, time: int = 4, batch: int = 3, seed: int = 0) -> list[np.ndarray]:
    """x, weights, biases and state of a cell with 2 features and 5 hidden."""
    gates = {Rnn: 1, Gru: 3, Lstm: 4}[kind]
    shapes: list[tuple[int, ...]] = [(time, batch, 2), (gates * 5, 2), (gates * 5, 5)]
    shapes += {Rnn: [(5,)], Gru: [(15,), (15,)], Lstm: [(20,), (15,)]}[kind]
    shapes += [(batch, 5)] * (2 if kind is Lstm else 1)
    generator = np.random.default_rng(seed)
    return [generator.uniform(-1, 1, s) for s in shapes]


def test_rnn_by_hand() -> None:
    x = np.array([1.0, 2.0]).reshape(2, 1, 1)
    steps, last = Rnn().reference(x, 0.5 * ONE, 0.25 * ONE, np.array([0.1]), 0.2 * ONE)
    first = np.tanh(0.5 * 1 + 0.25 * 0.2 + 0.1)
    second = np.tanh(0.5 * 2 + 0.25 * first + 0.1)
    np.testing.assert_allclose(steps.ravel(), [first, second], rtol=1e-15)
    assert last == second


@pytest.mark.parametrize("late", [False, True])
def test_gru_by_hand(late: bool) -> None:
    w, r = np.array([[0.1], [0.2], [0.3]]), np.array([[0.4], [0.5], [0.6]])
    bw, br = np.array([0.01, 0.02, 0.03]), np.array([0.04, 0.05, 0.06])
    x, h = 2.0, 0.7
    z = sigmoid(0.1 * x + 0.4 * h + 0.05)
    s = sigmoid(0.2 * x + 0.5 * h + 0.07)
    inner = s * (0.6 * h + 0.06) if late else 0.6 * (s * h) + 0.06
    expected = (1 - z) * np.tanh(0.3 * x + 0.03 + inner) + z * h
    given = np.full((1, 1, 1), x)
    _, last = Gru(late_reset=late).reference(given, w, r, bw, br, np.full((1, 1), h))
    np.testing.assert_allclose(last.ravel(), expected, rtol=1e-15)


@pytest.mark.parametrize("coupled", [False, True])
def test_lstm_by_hand(coupled: bool) -> None:
    w, r = np.array([[0.1], [0.2], [0.3], [0.4]]), np.array([[0.5], [0.6], [0.7], [0.8]])
    b, p = np.array([0.01, 0.02, 0.03, 0.04]), np.array([0.9, 1.1, 1.2])
    x, h, c = 2.0, 0.7, -0.3
    i = sigmoid(0.1 * x + 0.5 * h + 0.01 + 0.9 * c)
    f = 1 - i if coupled else sigmoid(0.3 * x + 0.7 * h + 0.03 + 1.2 * c)
    new = f * c + i * np.tanh(0.4 * x + 0.8 * h + 0.04)
    o = sigmoid(0.2 * x + 0.6 * h + 0.02 + 1.1 * new)
    state = (np.full((1, 1), h), np.full((1, 1), c))
    op = Lstm(coupled=coupled)
    steps, last_h, last_c = op.reference(np.full((1, 1, 1), x), w, r, b, p, *state)
    np.testing.assert_allclose(last_c.ravel(), new, rtol=1e-15)
    np.testing.assert_allclose(last_h.ravel(), o * np.tanh(new), rtol=1e-15)
    assert (steps[0] == last_h).all()


@pytest.mark.parametrize("kind", [Rnn, Gru, Lstm])
def test_backward_is_forward_on_reversed_time(kind: type) -> None:
    x, *rest = operands(kind)
    steps, *last = kind(backward=True).reference(x, *rest)
    again, *same = kind().reference(x[::-1], *rest)
    np.testing.assert_array_equal(steps, again[::-1])
    for a, b in zip(last, same, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", [Rnn, Gru, Lstm])
def test_lengths_run_each_element_alone(kind: type, backward: bool) -> None:
    given = operands(kind)
    lengths = np.array([4, 2, 0])
    op = kind(backward=backward)
    steps, *last = op.reference(*given, lengths)
    states = 2 if kind is Lstm else 1
    for b, length in enumerate(lengths):
        x = given[0][:length, b : b + 1]
        weights, state = given[1:-states], [s[b : b + 1] for s in given[-states:]]
        alone, *end = op.reference(x, *weights, *state)
        np.testing.assert_allclose(steps[:length, b], alone[:, 0], rtol=1e-12)
        assert (steps[length:, b] == 0).all()
        for a, e in zip(last, end, strict=True):
            np.testing.assert_allclose(a[b], e[0], rtol=1e-12)


@pytest.mark.parametrize("kind", [Rnn, Gru, Lstm])
def test_one_state_serves_the_batch(kind: type) -> None:
    given = operands(kind)
    count = 2 if kind is Lstm else 1
    shared = [np.ascontiguousarray(s[:1]) for s in given[-count:]]
    repeated = [np.repeat(s, 3, axis=0) for s in shared]
    a = kind().reference(*given[:-count], *shared)
    b = kind().reference(*given[:-count], *repeated)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("name", "alpha", "beta", "x", "expected"),
    [
        ("relu", 0, 0, [-1, 2], [0, 2]),
        ("tanh", 0, 0, [0.5], [np.tanh(0.5)]),
        ("sigmoid", 0, 0, [0.5, -800, 800], [sigmoid(0.5), 0, 1]),
        ("affine", 2, 3, [-1, 2], [1, 7]),
        ("leaky_relu", 0.1, 0, [-1, 2], [-0.1, 2]),
        ("thresholded_relu", 1.5, 0, [1, 1.5, 2], [0, 0, 2]),
        ("scaled_tanh", 2, 0.5, [1], [2 * np.tanh(0.5)]),
        ("hard_sigmoid", 0.2, 0.5, [-9, 1, 9], [0, 0.7, 1]),
        ("elu", 2, 0, [-1, 1, 900], [2 * (np.exp(-1) - 1), 1, 900]),
        ("softsign", 0, 0, [-3, 1], [-0.75, 0.5]),
        ("softplus", 0, 0, [0, 900], [np.log(2), 900]),
    ],
)
def test_activations(
    name: str, alpha: float, beta: float, x: list[float], expected: list[float]
) -> None:
    op = Rnn(activations=((name, float(alpha), float(beta)),))
    given = np.array(x, np.float64).reshape(1, -1, 1)
    _, last = op.reference(given, ONE, 0 * ONE, np.zeros(1), np.zeros((1, 1)))
    np.testing.assert_allclose(last.ravel(), expected, rtol=1e-14, atol=1e-300)


def test_every_activation_has_the_defaults_that_onnx_names() -> None:
    """At -2 and 2, with the alpha and beta of a model that gives none."""
    expected = {
        "relu": [0, 2],
        "tanh": [np.tanh(-2), np.tanh(2)],
        "sigmoid": [sigmoid(-2), sigmoid(2)],
        "affine": [-2, 2],
        "leaky_relu": [-0.02, 2],
        "thresholded_relu": [0, 2],
        "scaled_tanh": [np.tanh(-2), np.tanh(2)],
        "hard_sigmoid": [0.1, 0.9],
        "elu": [np.exp(-2) - 1, 2],
        "softsign": [-2 / 3, 2 / 3],
        "softplus": [np.log1p(np.exp(-2)), np.log1p(np.exp(2))],
    }
    assert DEFAULTS.keys() == expected.keys()
    x = np.array([-2.0, 2.0]).reshape(1, 2, 1)
    for name, (alpha, beta) in DEFAULTS.items():
        op = Rnn(activations=((name, alpha or 0.0, beta or 0.0),))
        _, last = op.reference(x, ONE, 0 * ONE, np.zeros(1), np.zeros((1, 1)))
        np.testing.assert_allclose(last.ravel(), expected[name], rtol=1e-12, atol=1e-15)


def test_clip_bounds_what_goes_into_a_gate() -> None:
    op = Rnn(activations=(("affine", 1.0, 0.0),), clip=0.5)
    given = np.array([-3.0, 0.25, 3.0]).reshape(1, 3, 1)
    _, last = op.reference(given, ONE, ONE, np.zeros(1), np.zeros((1, 1)))
    assert last.ravel().tolist() == [-0.5, 0.25, 0.5]


def test_clip_leaves_the_cell_of_an_lstm() -> None:
    zero = np.zeros((4, 1))
    b = np.array([9.0, 9.0, 9.0, 0.0])
    op = Lstm(clip=0.5)
    _, h, c = op.reference(
        np.zeros((1, 1, 1)), zero, zero, b, np.zeros(3), np.zeros((1, 1)), 8 * ONE
    )
    np.testing.assert_allclose(c.ravel(), 8 * sigmoid(0.5))
    np.testing.assert_allclose(h.ravel(), sigmoid(0.5) * np.tanh(8 * sigmoid(0.5)))


def test_lengths_beyond_the_sequence() -> None:
    with pytest.raises(ExecutionError, match="not within the sequence"):
        Rnn().reference(*operands(Rnn), np.array([5, 1, 1]))


def apply(op: Any, *types: str) -> str:
    return str(op(*(Input(f"x{i}", parse_type(t))() for i, t in enumerate(types))).type)


def test_symbolic_time_and_batch() -> None:
    given = ("f32[T, B, 2]", "f32[5, 2]", "f32[5, 5]", "f32[5]", "f32[1, 5]", "i32[B]")
    assert apply(Rnn(), *given) == "(f32[T, B, 5], f32[B, 5])"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((0, "f32[3, 2]"), "ranks 3, 2 and 2"),
        ((0, "i32[4, 3, 2]"), "different element types"),
        ((1, "f32[5, 3]"), "dimensions differ"),
        ((1, "f32[6, 2]"), "dimensions differ"),
        ((2, "f32[5, 4]"), "1 gates"),
        ((3, "f32[4]"), "dimensions differ"),
        ((3, "f32[5, 1]"), "the bias is a vector"),
        ((4, "f32[2, 5]"), "dimensions differ"),
        ((4, "f32[5]"), "state is a matrix"),
        ((5, "f32[3]"), "element type not accepted"),
        ((5, "i32[4]"), "dimensions differ"),
        ((5, "i32[3, 1]"), "lengths are a vector"),
    ],
)
def test_operands_are_checked(change: tuple[int, str], message: str) -> None:
    given = ["f32[4, 3, 2]", "f32[5, 2]", "f32[5, 5]", "f32[5]", "f32[3, 5]", "i32[3]"]
    apply(Rnn(), *given)
    given[change[0]] = change[1]
    with pytest.raises(InferError, match=message):
        apply(Rnn(), *given)


def test_activations_are_checked() -> None:
    given = ("f32[4, 3, 2]", "f32[5, 2]", "f32[5, 5]", "f32[5]", "f32[3, 5]")
    with pytest.raises(InferError, match="wrong number of activations"):
        apply(Rnn(activations=()), *given)
    with pytest.raises(InferError, match="no such activation"):
        apply(Rnn(activations=(("swish", 0.0, 0.0),)), *given)


def test_a_state_of_open_rows_is_that_of_the_batch_or_of_all() -> None:
    scope = SizeScope(least=1)
    n = scope.symbol("n", 5)
    shapes = ((3, n, 4), (5, 4), (5, 5), (5,))
    given = [TensorType(f32, shape) for shape in shapes]
    Rnn().infer(*given, TensorType(f32, (n, 5)))
    assert not scope.guards
    Rnn().infer(*given, TensorType(f32, ((n + 7) // 8, 5)))  # one row in this run
    assert scope.holds(dict.fromkeys(scope.hints, 8))
    assert not scope.holds(dict.fromkeys(scope.hints, 9))
    with pytest.raises(InferError):
        Rnn().infer(*given, TensorType(f32, (n + 1, 5)))
