"""RNN, GRU and LSTM: one canonical cell per direction, their results stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monograph.frontend.onnx.convert.common import zeros
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Value, constant, unpack
from monograph.ops import elementwise as ew
from monograph.ops import recurrent as rc
from monograph.ops import shape as sh
from monograph.ops.index import Gather

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_BY_ONNX_NAME = {name.replace("_", ""): name for name in rc.DEFAULTS}


def _directions(n: Node) -> tuple[bool, ...]:
    """Return, for each direction, True if it runs backward."""
    given = n.attr_string("direction", "forward").lower()
    if given not in _DIRECTIONS:
        n.fail("unknown direction", expected=[*_DIRECTIONS], given=given)
    return _DIRECTIONS[given]


def _activations(n: Node, defaults: tuple[str, ...]) -> list[tuple[rc.Activation, ...]]:
    """Return the activations of each direction. Alphas and betas go to those that take one."""
    directions = len(_directions(n))
    names = n.attr_strings("activations", None) or defaults * directions
    if len(names) != directions * len(defaults):
        n.fail("wrong number of activations", expected=directions * len(defaults), given=names)
    alphas = list(n.attr_floats("activation_alpha", None) or ())
    betas = list(n.attr_floats("activation_beta", None) or ())
    made: list[rc.Activation] = []
    for given in names:
        name = _BY_ONNX_NAME.get(given.lower())
        if name is None:
            n.fail("unknown activation", expected=[*_BY_ONNX_NAME], given=given)
        alpha, beta = rc.DEFAULTS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        made.append((name, alpha or 0.0, beta or 0.0))
    count = len(defaults)
    return [tuple(made[i : i + count]) for i in range(0, len(made), count)]


def _pick(x: Value, index: int, axis: int = 0) -> Value:
    """x[index] along an axis."""
    return Gather(axis)(x, constant(index))


def _stack(values: Sequence[Value], axis: int) -> Value:
    """Stack values along a new axis."""
    widened = [sh.Unsqueeze((axis,))(v) for v in values]
    return widened[0] if len(widened) == 1 else sh.Concat(axis)(*widened)


class _Cells:
    """The operands that the three kinds of cells share, as the canonical ops take them."""

    def __init__(self, n: Node, gates: int) -> None:
        self.n = n
        self.gates = gates
        self.batch_first = n.attr_flag("layout")
        x = n.input(0)
        if x.tensor.rank != 3:
            n.fail("the input of a recurrent op must have rank 3", given=x.type)
        if not x.dtype.is_float:
            n.fail("the input of a recurrent op must be floats", given=x.type)
        self.x = sh.Transpose((1, 0, 2))(x) if self.batch_first else x
        self.hidden = self._hidden_size()
        self.clip = n.attr_float("clip") if n.has("clip") else None
        lengths = n.optional(4)
        self.lengths = () if lengths is None else (lengths,)

    def _hidden_size(self) -> int:
        size, declared = self.n.tensor(2).dim(-1), self.n.attr_int("hidden_size", 0)
        if isinstance(size, int):
            if declared not in (0, size):
                self.n.fail("hidden_size must be the last size of R", expected=size, given=declared)
            return size
        if declared < 1:
            self.n.undecided("the hidden size is not known", given=self.n.tensor(2))
        return declared

    def weights(self, direction: int) -> tuple[Value, Value]:
        return _pick(self.n.input(1), direction), _pick(self.n.input(2), direction)

    def biases(self, direction: int) -> tuple[Value, Value]:
        """The biases of w and of r."""
        rows = self.gates * self.hidden
        given = self.n.optional(3)
        if given is None:
            zero = zeros((rows,), self.x.dtype)
            return zero, zero
        both = _pick(given, direction)
        first = sh.Slice((0,), (rows,), (1,))(both)
        return first, sh.Slice((rows,), (2 * rows,), (1,))(both)

    def bias(self, direction: int) -> Value:
        """The sum of both biases."""
        return ew.Add()(*self.biases(direction))

    def state(self, index: int, direction: int) -> Value:
        """Return an initial state; by default zeros that all batch rows share."""
        given = self.n.optional(index)
        if given is None:
            return zeros((1, self.hidden), self.x.dtype)
        return _pick(given, direction, axis=1 if self.batch_first else 0)

    def peepholes(self, direction: int) -> Value:
        given = self.n.optional(7)
        if given is None:
            return zeros((3 * self.hidden,), self.x.dtype)
        return _pick(given, direction)

    def run(self, cell: Callable[[int, bool], Value]) -> tuple[Value, ...]:
        """Return the results of all directions: every step [T, D, B, H], then [D, B, H]."""
        backward = _directions(self.n)
        results = [unpack(cell(d, b)) for d, b in enumerate(backward)]
        steps, *last = (list(r) for r in zip(*results, strict=True))
        if not self.batch_first:
            return _stack(steps, 1), *(_stack(s, 0) for s in last)
        turned = [sh.Transpose((1, 0, 2))(s) for s in steps]
        return _stack(turned, 2), *(_stack(s, 1) for s in last)


@converter("RNN")
def rnn(n: Node) -> Sequence[Value]:
    cells, functions = _Cells(n, 1), _activations(n, ("tanh",))

    def cell(d: int, backward: bool) -> Value:
        op = rc.Rnn(functions[d], backward, cells.clip)
        w, r = cells.weights(d)
        return op(cells.x, w, r, cells.bias(d), cells.state(5, d), *cells.lengths)

    return cells.run(cell)


@converter("GRU")
def gru(n: Node) -> Sequence[Value]:
    cells, functions = _Cells(n, 3), _activations(n, ("sigmoid", "tanh"))
    late_reset = n.attr_flag("linear_before_reset")

    def cell(d: int, backward: bool) -> Value:
        op = rc.Gru(functions[d], backward, cells.clip, late_reset)
        operands = (*cells.weights(d), *cells.biases(d), cells.state(5, d))
        return op(cells.x, *operands, *cells.lengths)

    return cells.run(cell)


@converter("LSTM")
def lstm(n: Node) -> Sequence[Value]:
    cells, functions = _Cells(n, 4), _activations(n, ("sigmoid", "tanh", "tanh"))
    coupled = n.attr_flag("input_forget")

    def cell(d: int, backward: bool) -> Value:
        op = rc.Lstm(functions[d], backward, cells.clip, coupled)
        state = (cells.peepholes(d), cells.state(5, d), cells.state(6, d))
        return op(cells.x, *cells.weights(d), cells.bias(d), *state, *cells.lengths)

    return cells.run(cell)
