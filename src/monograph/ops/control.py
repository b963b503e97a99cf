"""Control flow: ops that carry sub-graphs and decide at run time which of them run, and how often.

A sub-graph is closed. Its own inputs come first, then one input for each value that it captures;
the op takes the captured values as its last operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    Graph,
    Input,
    Narrowing,
    Op,
    TensorType,
    TupleType,
    Type,
    Value,
    constant,
    evaluate,
    sample,
    subgraphs,
    tensor,
)
from monograph.ir.dtype import boolean, f32, i64
from monograph.ir.traits import FEW, MASK, SIZE, Demand, Known
from monograph.ir.types import merge_dims
from monograph.ops import elementwise as ew
from monograph.ops.base import as_tensor, check_allocation, normalise_axis
from monograph.ops.subgraph import (
    check_fits,
    close,
    is_pure,
    is_single,
    join,
    refine,
    specialise,
    stacks_for,
    symbols,
    truth,
)

Turn = Callable[[tuple[Any, ...]], Sequence[Any]]
"""Runs the body of a loop once: returns its results for its inputs."""


def _graph(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


def _sample_branches() -> tuple[Graph, Graph]:
    x = Input("x", tensor(f32, 3))()
    y = Input("y", tensor(f32, 2))()
    return _graph((x,), ew.Neg()(x), x), _graph((y,), ew.Exp()(y), ew.Abs()(y))


def _sample_loop() -> Graph:
    """s <- s + x while s < 10, giving s * i."""
    i, go = Input("i", tensor(i64))(), Input("go", tensor(boolean))()
    s, x = Input("s", tensor(f32))(), Input("x", tensor(f32))()
    total = ew.Add()(s, x)
    return _graph((i, go, s, x), ew.Less()(total, constant(10.0, f32)), total, ew.Mul()(s, x))


def _sample_scan() -> Graph:
    s, x, y = (Input(name, tensor(f32, 3))() for name in "sxy")
    total = ew.Add()(s, x)
    return _graph((s, x, y), total, ew.Mul()(total, y))


def _check_single(what: str, given: TensorType, dtype: Any) -> None:
    if as_tensor(given).dtype != dtype or not is_single(given):
        raise InferError(f"{what} is one element", expected=f"{dtype}[]", given=given)


class _Control(Op, abstract=True):
    """An op whose results may depend on more than its operands if its sub-graphs' do."""

    narrowing = Narrowing.KEPT
    kept_reason = "sub-graphs take and give f32; inside, they are converted themselves"

    @property
    def pure(self) -> bool:  # type: ignore[override]
        return is_pure(*subgraphs(self))


@dataclass(frozen=True)
class Fail(Op):
    """Stands in a branch that contradicts the types it would run on: to reach it is an error."""

    message: str
    of: Type

    pure = False

    def infer(self) -> Type:
        return self.of

    @property
    def reason(self) -> str:
        """The error of a run that reaches the op."""
        return f"a branch was taken that cannot run: {self.message}"

    def reference(self) -> Any:
        raise ExecutionError(self.reason)


@dataclass(frozen=True)
class If(_Control):
    """The results of one sub-graph or the other.

    Operands: the condition, the captures of `then`, those of `orelse`.
    """

    then: Graph
    orelse: Graph

    samples = (
        sample(True, "f32[3]", "f32[2]", then=_sample_branches()[0], orelse=_sample_branches()[1]),
        sample(
            [False], "f32[3]", "f32[2]", then=_sample_branches()[0], orelse=_sample_branches()[1]
        ),
    )

    def _split(self, operands: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        count = len(self.then.inputs)
        return operands[:count], operands[count:]

    def canonical(self, *types: Type) -> Op:
        then, orelse = self._split(types[1:])
        if len(then) != len(self.then.inputs) or len(orelse) != len(self.orelse.inputs):
            return self
        return replace(
            self,
            then=specialise(self.then, tuple(map(refine, self.then.input_types, then))),
            orelse=specialise(self.orelse, tuple(map(refine, self.orelse.input_types, orelse))),
        )

    def infer(self, condition: TensorType, *captures: Type) -> TupleType:
        _check_single("the condition", condition, boolean)
        then, orelse = self._split(captures)
        check_fits("captures of the first branch", self.then.input_types, then)
        check_fits("captures of the second branch", self.orelse.input_types, orelse)
        a, b = self.then.output_types, self.orelse.output_types
        if len(a) != len(b):
            raise InferError("the branches give results of unequal number", expected=a, given=b)
        visible = symbols(captures)
        return TupleType(tuple(close(join(x, y), visible) for x, y in zip(a, b, strict=True)))

    def reference(self, condition: Array, *captures: Any) -> tuple[Any, ...]:
        then, orelse = self._split(captures)
        if truth(condition):
            return tuple(evaluate(self.then, then))
        return tuple(evaluate(self.orelse, orelse))

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(0, MASK)]


@dataclass(frozen=True)
class Loop(_Control):
    """Runs a sub-graph while its condition holds, at most as often as the trip count says.

    Operands: trip count, condition, `carried` values of initial state, captures. The body takes the
    iteration number, the condition, the state and the captures; it gives the next condition, the
    next state, and one element for each collected result. Results: the last state, then each
    collected result stacked along a new first dimension.
    """

    body: Graph
    carried: int

    keeps_small = True
    samples = (
        sample(np.int64(9), True, 1.0, 2.5, body=_sample_loop(), carried=1),
        sample([3], [True], -8.0, 1.5, body=_sample_loop(), carried=1),
        sample(np.int64(0), True, 1.0, 2.0, body=_sample_loop(), carried=1),
        sample(np.int64(4), False, 1.0, 2.0, body=_sample_loop(), carried=1),
    )

    def canonical(self, *types: Type) -> Op:
        formals = self.body.input_types
        if len(types) != len(formals):
            return self
        last = 2 + self.carried
        state = (refine(f, t, True) for f, t in zip(formals[2:last], types[2:last], strict=True))
        captures = map(refine, formals[last:], types[last:])
        return replace(self, body=specialise(self.body, (*formals[:2], *state, *captures)))

    def infer(self, trips: TensorType, condition: TensorType, *operands: Type) -> TupleType:
        _check_single("the trip count", trips, i64)
        _check_single("the condition", condition, boolean)
        formals, outputs = self.body.input_types, self.body.output_types
        if len(formals) < 2 + self.carried or len(outputs) < 1 + self.carried:
            raise InferError(
                "the body takes iteration, condition and state, and gives condition and state",
                expected=self.carried,
                given=f"{len(formals)} inputs, {len(outputs)} outputs",
            )
        _check_single("the iteration number", as_tensor(formals[0]), i64)
        _check_single("the condition in the body", as_tensor(formals[1]), boolean)
        _check_single("the condition that the body gives", as_tensor(outputs[0]), boolean)
        check_fits("state and captures of the loop", formals[2:], operands)
        state, collected = formals[2 : 2 + self.carried], outputs[1 + self.carried :]
        check_fits("state that the body gives", state, outputs[1 : 1 + self.carried])
        visible = symbols(operands)
        stacked = (_stacked(as_tensor(t), 0, UNKNOWN) for t in collected)
        return TupleType(tuple(close(t, visible) for t in (*state, *stacked)))

    def reference(self, trips: Array, condition: Array, *operands: Any) -> tuple[Any, ...]:
        return self.turned(lambda given: evaluate(self.body, given), trips, condition, *operands)

    def turned(self, turn: Turn, trips: Array, condition: Array, *operands: Any) -> tuple[Any, ...]:
        """Return the results, each turn of the body made by `turn`."""
        if trips.size != 1:
            raise ExecutionError("a trip count has one element", given=[*trips.shape])
        limit, go = int(trips.reshape(())[()]), truth(condition)
        state, captures = operands[: self.carried], operands[self.carried :]
        count_shape, go_shape = (as_tensor(t).static for t in self.body.input_types[:2])
        collected = self.body.output_types[1 + self.carried :]
        self._check_memory(limit, collected)
        stacks = stacks_for(collected, self.body.input_types[2:], tuple(map(_shape, operands)))
        i = 0
        going = np.full(go_shape, True)
        going.flags.writeable = False
        while go and i < limit:
            count = np.array(i, np.int64).reshape(count_shape)
            next_go, *results = turn((count, going, *state, *captures))
            go = truth(next_go)
            state = tuple(results[: self.carried])
            for stack, x in zip(stacks, results[self.carried :], strict=True):
                stack.push(x)
            i += 1
        return (*state, *(s.result() for s in stacks))

    def _check_memory(self, limit: int, collected: tuple[Type, ...]) -> None:
        """Refuses at once what could only end by filling the memory.

        Only a condition that nothing in the loop changes is sure to let it run to its limit.
        """
        go = self.body.outputs[0][1]
        if go is not self.body.inputs[1] and not go.closed:
            return
        for t in map(as_tensor, collected):
            if t.is_static and limit > 0:
                check_allocation((limit, *t.static), t.dtype.numpy)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(0, SIZE, 1, FEW, "a count of turns")]


@dataclass(frozen=True)
class Scan(_Control):
    """Runs a sub-graph once for each slice of the scanned operands, carrying state along.

    Operands: initial state, scanned values, captures. The body takes the state, one slice of each
    scanned value and the captures; it gives the next state and one element of each collected
    result. Results: the last state, then the collected results, stacked along their axes. The
    lists have one entry for each scanned or collected value; `backward` means from the last slice
    to the first, and for a collected result that the elements are stacked in that order.
    """

    body: Graph
    axes: tuple[int, ...]
    backward: tuple[bool, ...]
    result_axes: tuple[int, ...]
    result_backward: tuple[bool, ...]

    keeps_small = True
    samples = (
        sample(
            "f32[3]",
            "f32[4, 3]",
            "f32[3, 4]",
            body=_sample_scan(),
            axes=(0, -1),
            backward=(False, True),
            result_axes=(-1,),
            result_backward=(False,),
        ),
        sample(
            "f32[3]",
            "f32[0, 3]",
            "f32[0, 3]",
            body=_sample_scan(),
            axes=(0, 0),
            backward=(False, False),
            result_axes=(0,),
            result_backward=(True,),
        ),
    )

    @property
    def carried(self) -> int:
        return len(self.body.outputs) - len(self.result_axes)

    def _split(self, operands: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """State, scanned values, captures."""
        last = self.carried + len(self.axes)
        return operands[: self.carried], operands[self.carried : last], operands[last:]

    def canonical(self, *types: Type) -> Op:
        if len(types) != len(self.body.inputs) or self.carried < 0:
            return self
        state, scanned, captures = self._split(types)
        formals = self._split(self.body.input_types)
        axes = tuple(
            _normalised(a, as_tensor(t), 0) for a, t in zip(self.axes, scanned, strict=True)
        )
        body = specialise(
            self.body,
            (
                *(refine(f, t, True) for f, t in zip(formals[0], state, strict=True)),
                *map(refine, formals[1], map(slice_type, scanned, axes)),
                *map(refine, formals[2], captures),
            ),
        )
        collected = map(as_tensor, body.output_types[self.carried :])
        result_axes = tuple(
            _normalised(a, t, 1) for a, t in zip(self.result_axes, collected, strict=True)
        )
        return replace(self, body=body, axes=axes, result_axes=result_axes)

    def infer(self, *operands: Type) -> TupleType:
        if self.carried < 0 or not self.axes or len(operands) != len(self.body.inputs):
            raise InferError(
                "state, scanned values and captures do not fit the body",
                expected=self.body.input_types,
                given=operands,
            )
        state, scanned, captures = self._split(operands)
        formals = self._split(self.body.input_types)
        outputs = self.body.output_types
        check_fits("initial state", formals[0], state)
        check_fits("scanned values", formals[1], tuple(map(slice_type, scanned, self.axes)))
        check_fits("captures", formals[2], captures)
        check_fits("state that the body gives", formals[0], outputs[: self.carried])
        length: Dim = UNKNOWN
        for t, axis in zip(scanned, self.axes, strict=True):
            if as_tensor(t).shape is not None:
                d = t.dims[axis]
                length = d if length == UNKNOWN else merge_dims(length, d)
        visible = symbols(operands)
        collected = (as_tensor(t) for t in outputs[self.carried :])
        stacked = map(_stacked, collected, self.result_axes, (length,) * len(self.result_axes))
        return TupleType(tuple(close(t, visible) for t in (*formals[0], *stacked)))

    def reference(self, *operands: Any) -> tuple[Any, ...]:
        return self.turned(lambda given: evaluate(self.body, given), *operands)

    def turned(self, turn: Turn, *operands: Any) -> tuple[Any, ...]:
        """Return the results, each turn of the body made by `turn`."""
        state, scanned, captures = self._split(operands)
        moved = [np.moveaxis(x, a, 0) for x, a in zip(scanned, self.axes, strict=True)]
        lengths = {len(x) for x in moved}
        if len(lengths) != 1:
            raise ExecutionError("scanned values differ in length", given=sorted(lengths))
        moved = [x[::-1] if b else x for x, b in zip(moved, self.backward, strict=True)]
        slices = [x.shape[1:] for x in moved]
        shapes = (*map(_shape, state), *slices, *map(_shape, captures))
        stacks = stacks_for(self.body.output_types[self.carried :], self.body.input_types, shapes)
        for rows in zip(*moved, strict=True):
            results = turn((*state, *map(np.asarray, rows), *captures))
            state = tuple(results[: self.carried])
            for stack, x in zip(stacks, results[self.carried :], strict=True):
                stack.push(x)
        collected = []
        for stack, axis, backward in zip(
            stacks, self.result_axes, self.result_backward, strict=True
        ):
            whole = stack.result()
            collected.append(np.moveaxis(whole[::-1] if backward else whole, 0, axis))
        return (*state, *collected)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return []


def _shape(data: Any) -> tuple[int, ...] | None:
    return data.shape if isinstance(data, np.ndarray) else None


def _normalised(axis: int, type_: TensorType, added: int) -> int:
    return axis if type_.shape is None else normalise_axis(axis, type_.rank + added)


def slice_type(scanned: Type, axis: int) -> TensorType:
    """Return the type of one slice of a scanned value."""
    t = as_tensor(scanned)
    if t.shape is None:
        return t
    axis = normalise_axis(axis, t.rank)
    return t.with_shape(d for i, d in enumerate(t.shape) if i != axis)


def _stacked(element: TensorType, axis: int, length: Dim) -> TensorType:
    """Return the type of elements stacked along a new axis."""
    if element.shape is None:
        return element
    shape = list(element.shape)
    shape.insert(normalise_axis(axis, len(shape) + 1), length)
    return element.with_shape(shape)
