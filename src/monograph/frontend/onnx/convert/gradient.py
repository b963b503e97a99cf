"""Ops of ai.onnx.preview.training: gradients, and one step of each optimiser as arithmetic.

A gradient is the reverse-mode differentiation of the graph built so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from monograph.frontend.onnx.convert.common import (
    as_scalar,
    broadcast_like,
    cast,
    reshape_like,
    scalar,
)
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Op, Value, topological
from monograph.ir.dtype import f64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.cast import Cast
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceMax, ReduceMin, ReduceSum, Reduction

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


Rule: TypeAlias = Callable[[Value, Value], Sequence[Value | None]]
"""From a value and the gradient of y by it: the gradients by its inputs (None: no gradient)."""

_add, _sub, _mul, _div, _neg = ew.Add(), ew.Sub(), ew.Mul(), ew.Div(), ew.Neg()


def _by_product(v: Value, g: Value) -> Sequence[Value]:
    x, y = v.inputs
    return _mul(g, y), _mul(g, x)


def _by_quotient(v: Value, g: Value) -> Sequence[Value]:
    _, y = v.inputs
    return _div(g, y), _neg(_div(_mul(g, v), y))


def _by_power(v: Value, g: Value) -> Sequence[Value]:
    x, y = v.inputs
    lower = ew.Pow()(x, _sub(y, scalar(1, y)))
    return _mul(g, _mul(y, lower)), _mul(g, _mul(v, ew.Log()(x)))


def _by_choice(v: Value, g: Value) -> Sequence[Value | None]:
    condition = v.inputs[0]
    zero = scalar(0, g)
    return None, ew.Where()(condition, g, zero), ew.Where()(condition, zero, g)


def _by_extreme(v: Value, g: Value) -> Sequence[Value]:
    """Pass the gradient to the operand that is the result; to the first of equal ones."""
    first = ew.Equal()(v.inputs[0], v)
    zero = scalar(0, g)
    return ew.Where()(first, g, zero), ew.Where()(first, zero, g)


def _by_clip(v: Value, g: Value) -> Sequence[Value]:
    return (ew.Where()(ew.Equal()(v.inputs[0], v), g, scalar(0, g)),)


def _kept(v: Value, reduced: Value) -> Value:
    """Restore the axes that a reduction dropped."""
    assert isinstance(v.op, Reduction)
    return reduced if v.op.keep else sh.Unsqueeze(v.op.axes)(reduced)


def _by_sum(v: Value, g: Value) -> Sequence[Value]:
    return (broadcast_like(_kept(v, g), v.inputs[0]),)


def _by_reduced_extreme(v: Value, g: Value) -> Sequence[Value]:
    """Share the gradient among the elements that equal the extreme."""
    assert isinstance(v.op, Reduction)
    taken = cast(ew.Equal()(v.inputs[0], _kept(v, v)), g.dtype)
    share = _div(taken, ReduceSum(v.op.axes, keep=True)(taken))
    return (_mul(_kept(v, g), share),)


def _by_transpose(v: Value, g: Value) -> Sequence[Value]:
    op = v.op
    assert isinstance(op, sh.Transpose)
    back = sorted(range(len(op.permutation)), key=op.permutation.__getitem__)
    return (sh.Transpose(tuple(back))(g),)


def _by_dot(v: Value, g: Value) -> Sequence[Value]:
    x, y = v.inputs
    return Dot()(g, _swapped(y)), Dot()(_swapped(x), g)


def _swapped(x: Value) -> Value:
    rank = x.tensor.rank
    return sh.Transpose((*range(rank - 2), rank - 1, rank - 2))(x)


def _unary(derivative: Callable[[Value, Value], Value]) -> Rule:
    """Return a rule for f(x) from f'(x), a function of x and f(x)."""
    return lambda v, g: (_mul(g, derivative(v.inputs[0], v)),)


def _like(v: Value, g: Value) -> Sequence[Value]:
    return (reshape_like(g, v.inputs[0]),)


_RULES: dict[type[Op], Rule] = {
    ew.Add: lambda v, g: (g, g),
    ew.Sub: lambda v, g: (g, _neg(g)),
    ew.Mul: _by_product,
    ew.Div: _by_quotient,
    ew.Pow: _by_power,
    ew.Neg: lambda v, g: (_neg(g),),
    ew.Abs: _unary(lambda x, y: ew.Sign()(x)),
    ew.Exp: _unary(lambda x, y: y),
    ew.Log: lambda v, g: (_div(g, v.inputs[0]),),
    ew.Sqrt: lambda v, g: (_div(_mul(g, scalar(0.5, g)), v),),
    ew.Sin: _unary(lambda x, y: ew.Cos()(x)),
    ew.Cos: _unary(lambda x, y: _neg(ew.Sin()(x))),
    ew.Tanh: _unary(lambda x, y: _sub(scalar(1, y), _mul(y, y))),
    ew.Sigmoid: _unary(lambda x, y: _mul(y, _sub(scalar(1, y), y))),
    ew.Clip: _by_clip,
    ew.Max: _by_extreme,
    ew.Min: _by_extreme,
    ew.Where: _by_choice,
    ReduceSum: _by_sum,
    ReduceMax: _by_reduced_extreme,
    ReduceMin: _by_reduced_extreme,
    sh.Transpose: _by_transpose,
    sh.Reshape: _like,
    sh.Squeeze: _like,
    sh.Unsqueeze: _like,
    sh.Broadcast: lambda v, g: (g,),
    Dot: _by_dot,
    Cast: lambda v, g: (cast(g, v.inputs[0].dtype),),
}


def _summed(n: Node, g: Value, like: Value) -> Value:
    """Sum a gradient to the shape of the operand, over the dimensions that were broadcast."""
    target, given = like.tensor.dims, g.tensor.dims
    extra = len(given) - len(target)
    axes = [*range(extra)]
    for i, (a, b) in enumerate(zip(target, given[extra:], strict=True)):
        if a == 1 and b != 1:
            axes.append(extra + i)
        elif a != b and not (isinstance(a, int) or isinstance(b, int)):
            n.undecided("a gradient through a broadcast needs known sizes", given=g.type)
    if not axes:
        return g
    return reshape_like(ReduceSum(tuple(axes), keep=True)(g), like)


def _gradients(n: Node, y: Value, xs: Sequence[Value]) -> dict[Value, Value]:
    """The gradient of the sum of y's elements by each of xs that y depends on."""
    order = topological([y])
    varies = set(xs)
    for v in order:
        if any(i in varies for i in v.inputs):
            varies.add(v)
    found = {y: broadcast_like(scalar(1, y), y)}
    for v in reversed(order):
        if v not in found or v not in varies or v in xs:
            continue
        rule = _RULES.get(type(v.op))
        if rule is None:
            n.unsupported(f"the gradient of {v.op.name} is not known")
        for operand, g in zip(v.inputs, rule(v, found[v]), strict=True):
            if g is None or operand not in varies:
                continue
            g = _summed(n, g, operand)
            found[operand] = _add(found[operand], g) if operand in found else g
    return found


def _substituted(outputs: Sequence[Value], replaced: dict[Value, Value]) -> list[Value]:
    """Return the values with some of their sources replaced."""
    made = dict(replaced)
    for v in topological(outputs):
        if v not in made:
            inputs = tuple(made[i] for i in v.inputs)
            made[v] = v if inputs == v.inputs else v.op(*inputs)
    return [made[v] for v in outputs]


@converter("Gradient", domain=DOMAIN)
def gradient(n: Node) -> list[Value]:
    """Convert Gradient: dy/dx for each tensor in `xs`, at the values of the node's inputs."""
    names: tuple[Any, ...] = (*n.attr_strings("xs"), *n.attr_strings("zs", ()))
    named = [n.scope.lookup(name) for name in names]
    if len(named) != len(n.inputs):
        n.fail("there must be one input for each name", expected=names, given=len(n.inputs))
    xs = named[: len(n.attr_strings("xs"))]
    if any(x.closed for x in xs):
        n.unsupported("a gradient by a constant", hint="make the tensor an input of the model")
    y = n.scope.lookup(n.attr_string("y"))
    found = _gradients(n, y, xs)
    wanted = [found.get(x) or broadcast_like(scalar(0, x), x) for x in xs]
    return _substituted(wanted, dict(zip(named, n.required(), strict=True)))
