"""Work in loops that is the same in every turn moves out of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from monograph.ir import Constant, Graph, Input, Item, TensorType, Value, topological
from monograph.ir.graph import input_op
from monograph.ops.base import Elementwise, ViewOp
from monograph.ops.control import Loop, Scan
from monograph.ops.elementwise import Div, Mod
from monograph.ops.linear import Dot
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Concat
from monograph.passes.base import Environment, Pass, substitute

_SAFE = (Concat, Dot, Elementwise, Reduction, ViewOp)
"""Ops that cannot fail: they may run where the loop makes no turn."""


_CONSTANT, _VIEW, _WORK = range(3)
"""Values that no turn changes: of constants alone, views of captures, computed from captures."""


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """loop(s, x: s + f(x)) -> loop(s, y: s + y) of y = f(x), where no turn changes f(x).

    State that a body only passes on becomes a capture, and a captured constant becomes a constant
    of the body. Views of captures stay in the body: nothing computes them.
    """

    exact = True

    def run(self, graph: Graph, environment: Environment) -> Graph:
        items: dict[Value, list[Value]] = defaultdict(list)
        for value in graph.values:
            if isinstance(value.op, Item):
                items[value.inputs[0]].append(value)
        replaced: dict[Value, Value] = {}
        origins: dict[Value, str] = {}
        for value in graph.values:
            if environment.exhausted or not isinstance(value.op, (Loop, Scan)):
                continue
            found = _Invariants(value)
            if not found.any:
                continue
            new = found.hoisted()
            origin = graph.origin(value) or ""
            environment.trace.note_fired(self.name, origin, value.op.name, new.op.name)
            origins[new] = origin
            for item in items[value]:
                assert isinstance(item.op, Item)
                replaced[item] = found.result(new, item.op.index)
        return substitute(graph, replaced, origins) if replaced else graph


class _Invariants:
    """The parts of a loop that no turn changes."""

    def __init__(self, loop: Value) -> None:
        assert isinstance(loop.op, (Loop, Scan))
        self.loop, self.op, self.body = loop, loop.op, loop.op.body
        op, inputs = loop.op, self.body.inputs
        # The inputs of the body that come before its state and behind it.
        self.head = inputs[:2] if isinstance(op, Loop) else ()
        self.ends = self.body.outputs[: 1 if isinstance(op, Loop) else 0]
        first = len(self.head)
        last = first + op.carried + (0 if isinstance(op, Loop) else len(op.axes))
        self.state = inputs[first : first + op.carried]
        self.scanned = inputs[first + op.carried : last]
        results = self.body.outputs[len(self.ends) :]
        given = dict(zip(inputs, loop.inputs, strict=True))
        self.fixed = {
            i for i, v in enumerate(self.state) if results[i][1] is v and v.type == given[v].type
        }
        self.captures = {v: given[v] for v in inputs[last:]} | {
            self.state[i]: given[self.state[i]] for i in sorted(self.fixed)
        }
        self.constants = {
            v: c
            for v, c in self.captures.items()
            if isinstance(c.op, Constant) and c.type == v.type
        }
        self.work = self._work()

    @property
    def any(self) -> bool:
        return bool(self.fixed or self.constants or self.work)

    def _work(self) -> list[Value]:
        """Return the values to compute before the loop, each of which the body reads."""
        kinds: dict[Value, int] = dict.fromkeys(self.captures, _VIEW)
        kinds |= dict.fromkeys(self.constants, _CONSTANT)
        for v in self.body.values:
            if isinstance(v.op, Constant):
                kinds[v] = _CONSTANT
            elif v.inputs and all(i in kinds for i in v.inputs) and _is_safe(v):
                kind = max(kinds[i] for i in v.inputs)
                kinds[v] = _WORK if kind == _VIEW and not isinstance(v.op, ViewOp) else kind
        read = {v for _, v in self.body.outputs}
        read |= {i for v in self.body.values if v not in kinds for i in v.inputs}
        return [v for v in self.body.values if v in read and kinds.get(v) == _WORK]

    def hoisted(self) -> Value:
        """Return the loop without them."""
        made = dict(self.captures)
        for v in topological(self.work):
            if v not in made and v.inputs:
                made[v] = v.op(*(made.get(i, i) for i in v.inputs))
        taken = {input_op(v).label for v in self.body.inputs}
        names = (n for i in range(len(taken) + len(self.work)) if (n := f"same{i}") not in taken)
        formals = {v: Input(n, v.type)() for v, n in zip(self.work, names, strict=False)}
        state = [v for i, v in enumerate(self.state) if i not in self.fixed]
        results = [
            r for i, r in enumerate(self.body.outputs[len(self.ends) :]) if i not in self.fixed
        ]
        whole = _rebuilt(self.body, self.constants | formals)
        outputs = tuple((name, whole.get(v, v)) for name, v in (*self.ends, *results))
        used = set(topological(v for _, v in outputs))
        captures = [v for v in self.captures if v not in self.constants and v in used]
        given = dict(zip(self.body.inputs, self.loop.inputs, strict=True))
        inputs = (*self.head, *state, *self.scanned, *captures, *formals.values())
        origins = {whole.get(v, v): t for v, t in self.body.origins.items()}
        body = Graph(inputs, outputs, self.body.name, origins)
        before = (
            *self.loop.inputs[: len(self.head)],
            *(given[v] for v in (*state, *self.scanned, *captures)),
            *(made[v] for v in self.work),
        )
        if isinstance(self.op, Loop):
            return replace(self.op, body=body, carried=len(state))(*before)
        return replace(self.op, body=body)(*before)

    def result(self, new: Value, index: int) -> Value:
        """Return what takes the place of a result of the loop."""
        if index in self.fixed:
            return self.captures[self.state[index]]
        return Item(index - sum(i < index for i in self.fixed))(new)


def _is_safe(value: Value) -> bool:
    if not isinstance(value.op, _SAFE) or not value.op.pure:
        return False
    types = [v.type for v in (value, *value.inputs)]
    numeric = all(isinstance(t, TensorType) and not t.dtype.is_string for t in types)
    return numeric and not (isinstance(value.op, (Div, Mod)) and value.dtype.is_integer)


def _rebuilt(body: Graph, given: dict[Value, Value]) -> dict[Value, Value]:
    """Return the values of a body with some of them replaced."""
    made = dict(given)
    for v in body.values:
        if v not in made:
            inputs = tuple(made.get(i, i) for i in v.inputs)
            made[v] = v if inputs == v.inputs else v.op(*inputs)
    return made
