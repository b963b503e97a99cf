"""Optimisers of ai.onnx.preview.training: one step of each, as arithmetic.

Inputs are a rate R, a step count T, and then groups: all tensors to optimise, all their gradients,
and all states of a kind. Outputs are the new tensors and states in the same order.
"""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import as_scalar, cast, scalar
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value
from monograph.ir.dtype import f64
from monograph.ops import elementwise as ew

DOMAIN = "ai.onnx.preview.training"


def _groups(n: Node, states: int) -> list[tuple[Value, ...]]:
    """(tensor, gradient, state ...) for each tensor."""
    rest = n.required()[2:]
    kinds = 2 + states
    count = len(rest) // kinds
    if not count or len(rest) % kinds:
        n.fail("inputs must come in equal groups", expected=f"groups of {kinds}", given=len(rest))
    return [rest[i::count] for i in range(count)]


def _times(x: Value, factor: float) -> Value:
    return ew.Mul()(x, scalar(factor, x))


def _regularised(n: Node, x: Value, gradient: Value) -> Value:
    """Add the gradient of norm_coefficient / 2 * |x|^2 to the gradient of the loss."""
    return ew.Add()(_times(x, n.attr_float("norm_coefficient", 0.0)), gradient)


def _in_order(results: list[tuple[Value, ...]]) -> list[Value]:
    """Results by kind first, then by tensor."""
    return [v for kind in zip(*results, strict=True) for v in kind]


@converter("Adagrad", domain=DOMAIN)
def adagrad(n: Node) -> list[Value]:
    """H += g^2; x -= r * g / (sqrt(H) + epsilon), with r = R / (1 + T * decay_factor)."""
    rate, turn = as_scalar(n.input(0)), as_scalar(n.input(1))
    slowed = _times(cast(turn, rate.dtype), n.attr_float("decay_factor", 0.0))
    rate = ew.Div()(rate, ew.Add()(slowed, scalar(1, rate)))
    results: list[tuple[Value, ...]] = []
    for x, given, squares in _groups(n, 1):
        g = _regularised(n, x, given)
        total = ew.Add()(squares, ew.Mul()(g, g))
        root = ew.Sqrt()(total)
        divisor = ew.Add()(root, scalar(n.attr_float("epsilon", 1e-6), root))
        step = ew.Div()(ew.Mul()(cast(rate, x.dtype), g), divisor)
        results.append((ew.Sub()(x, step), total))
    return _in_order(results)


@converter("Adam", domain=DOMAIN)
def adam(n: Node) -> list[Value]:
    """V = alpha V + (1 - alpha) g; H = beta H + (1 - beta) g^2; x -= r V / (sqrt(H) + epsilon).

    r = R * sqrt(1 - beta^T) / (1 - alpha^T), or R itself in step 0.
    """
    alpha, beta = n.attr_float("alpha", 0.9), n.attr_float("beta", 0.999)
    after = 1 - n.attr_float("norm_coefficient_post", 0.0)
    given_rate, turn = as_scalar(n.input(0)), cast(as_scalar(n.input(1)), f64)
    one, rate = scalar(1, turn), cast(given_rate, f64)
    root = ew.Sqrt()(ew.Sub()(one, ew.Pow()(scalar(beta, turn), turn)))
    bias = ew.Sub()(one, ew.Pow()(scalar(alpha, turn), turn))
    adjusted = ew.Mul()(rate, ew.Div()(root, bias))
    rate = ew.Where()(ew.Less()(scalar(0, turn), turn), adjusted, rate)
    results: list[tuple[Value, ...]] = []
    for x, given, velocity, squares in _groups(n, 2):
        g = _regularised(n, x, given)
        v = ew.Add()(_times(velocity, alpha), _times(g, 1 - alpha))
        h = ew.Add()(_times(squares, beta), _times(ew.Mul()(g, g), 1 - beta))
        deviation = ew.Sqrt()(h)
        divisor = ew.Add()(deviation, scalar(n.attr_float("epsilon", 1e-6), deviation))
        stepped = ew.Sub()(x, ew.Div()(ew.Mul()(cast(rate, x.dtype), v), divisor))
        results.append((_times(stepped, after), v, h))
    return _in_order(results)


@converter("Momentum", domain=DOMAIN)
def momentum(n: Node) -> list[Value]:
    """V = alpha V + b g; x -= R V, or with Nesterov's form x -= R (g + alpha V).

    b is `beta`, but 1 in step 0.
    """
    alpha, mode = n.attr_float("alpha"), n.attr_string("mode")
    if mode not in ("standard", "nesterov"):
        n.fail("unknown mode", expected="standard or nesterov", given=mode)
    rate, turn = as_scalar(n.input(0)), as_scalar(n.input(1))
    later = ew.Less()(scalar(0, turn), turn)
    results: list[tuple[Value, ...]] = []
    for x, given, velocity in _groups(n, 1):
        g = _regularised(n, x, given)
        weight = ew.Where()(later, scalar(n.attr_float("beta"), x), scalar(1, x))
        v = ew.Add()(_times(velocity, alpha), ew.Mul()(weight, g))
        step = v if mode == "standard" else ew.Add()(g, _times(v, alpha))
        results.append((ew.Sub()(x, ew.Mul()(cast(rate, x.dtype), step)), v))
    return _in_order(results)
