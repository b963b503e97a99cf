"""Control flow: If, Loop and Scan become ops that carry closed sub-graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.errors import InferError, UnknownRankError
from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.dtypes import value_type
from monograph.frontend.onnx.loop_turns import count_turns, settle_turns
from monograph.frontend.onnx.node import Node, SubGraph, converter
from monograph.frontend.onnx.open_turns import count_open_turns
from monograph.ir import (
    Graph,
    Input,
    SequenceType,
    TensorType,
    Type,
    Value,
    constant,
    known,
    tensor,
    unpack,
)
from monograph.ir.dtype import DType, boolean, i64
from monograph.ir.sizes import is_open
from monograph.ops import control as ctl
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.sequence import is_empty_sequence
from monograph.ops.subgraph import join, variant, vary

ENDLESS = np.iinfo(np.int64).max
"""The trip count of a loop that has none."""


@converter("If")
def if_(n: Node) -> Sequence[Value]:
    """Convert If. A known condition selects the branch; the other branch is not converted."""
    condition = n.known(0)
    if condition is not None:
        if condition.size != 1:
            n.fail("the condition must have one element", given=[*condition.shape])
        taken = bool(condition.reshape(())[()])
        return n.inline_subgraph("then_branch" if taken else "else_branch")
    then, orelse = _branch(n, "then_branch"), _branch(n, "else_branch")
    if isinstance(then, InferError):
        if isinstance(orelse, InferError):
            raise then
        then = _failing(then, orelse)
    if isinstance(orelse, InferError):
        orelse = _failing(orelse, then)
    return unpack(ctl.If(then.graph, orelse.graph)(n.input(0), *then.captures, *orelse.captures))


def _branch(n: Node, name: str) -> SubGraph | InferError:
    """Return a branch, or the error why it cannot run on the given types.

    Models guard code by conditions on data, so a branch need not be valid for all data.
    """
    try:
        return n.subgraph(name)
    except UnknownRankError:
        raise
    except InferError as e:
        return e


def _failing(why: InferError, other: SubGraph) -> SubGraph:
    """Return a branch that raises an error if it runs; its results have the other's types."""
    outputs = ((name, ctl.Fail(str(why), v.type)()) for name, v in other.graph.outputs)
    return SubGraph(Graph((), tuple(outputs), "fail"), ())


@converter("Loop")
def loop(n: Node) -> Sequence[Value]:
    """Convert Loop. A missing trip count means no limit; a missing condition means true."""
    trips = n.optional(0)
    condition = n.optional(1)
    state = tuple(n.input(i) for i in range(2, len(n.inputs)))
    formals = n.attr_graph("body").input
    if len(formals) != 2 + len(state):
        n.fail("the body of a loop must take iteration, condition and state", given=len(formals))
    head = (
        _single(value_type(formals[0].type, formals[0].name), i64),
        _single(value_type(formals[1].type, formals[1].name), boolean),
    )
    if trips is None:
        trips = constant(ENDLESS)
    if condition is None:
        condition = constant(True)
    try:
        body = _settle(n, head, state, (), 1)
    except UnknownRankError:
        if not _surely_runs(trips, condition):
            raise
        body = None
    if body is None or (_surely_runs(trips, condition) and _loses_rank(body.graph, state)):
        return _first_turn_apart(n, head, trips, condition, state)
    return _without_fixed_state(body, state, trips, condition)


def _without_fixed_state(
    body: SubGraph, state: Sequence[Value], trips: Value, condition: Value
) -> Sequence[Value]:
    """Return the results of a loop. State that the body only passes on is a capture of it."""
    (*head,), count = body.graph.inputs[:2], len(state)
    formals, captured = body.graph.inputs[2 : 2 + count], body.graph.inputs[2 + count :]
    go_on, *outputs = body.graph.outputs
    moving = [i for i in range(count) if outputs[i][1] is not formals[i]]
    fixed = [i for i in range(count) if outputs[i][1] is formals[i]]
    graph = Graph(
        (*head, *(formals[i] for i in moving), *captured, *(formals[i] for i in fixed)),
        (go_on, *(outputs[i] for i in moving), *outputs[count:]),
        body.graph.name,
        body.graph.origins,
    )
    operands = (*(state[i] for i in moving), *body.captures, *(state[i] for i in fixed))
    turns = count_turns(graph, len(moving), trips, condition, operands)
    if turns is None:
        turns = count_open_turns(graph, len(moving), trips, condition, operands)
    if turns is not None:
        always = constant(np.ones(go_on[1].tensor.static, bool))
        outputs_left = ((go_on[0], always), *graph.outputs[1:])
        graph = Graph(graph.inputs, outputs_left, graph.name, graph.origins)
        if not is_open(turns):
            graph = settle_turns(graph, len(moving), turns, operands)
        trips, condition = constant(turns), constant(np.ones(condition.tensor.static, bool))
    found = unpack(ctl.Loop(graph, len(moving))(trips, condition, *operands))
    last = dict(zip(moving, found, strict=False)) | {i: state[i] for i in fixed}
    stacks = found[len(moving) :]
    if turns is not None:
        # Their number is a size that the type of a loop does not tell.
        parts = [v.type for _, v in outputs[count:]]
        stacks = tuple(_of_length(v, turns, t) for v, t in zip(stacks, parts, strict=True))
    return *(last[i] for i in range(count)), *stacks


def _of_length(stack: Value, length: int, part: Type) -> Value:
    """Return a stack of equal parts with its length in its type."""
    if not isinstance(part, TensorType) or not part.is_static:
        return stack
    return sh.Reshape((length, *part.static))(stack)


def _surely_runs(trips: Value, condition: Value) -> bool:
    """Return True if a loop is known to run at least one iteration."""
    return _number(trips) > 0 and _number(condition) > 0


def _number(given: Value) -> int:
    """Return a known trip count or condition; 0 if it is not known."""
    data = known(given)
    return int(data.reshape(())) if data is not None and data.size == 1 else 0


def _loses_rank(body: Graph, state: Sequence[Value]) -> bool:
    """Return True if the body changes the rank of some state."""
    settled = body.input_types[2 : 2 + len(state)]
    return any(
        isinstance(t, TensorType)
        and t.shape is None
        and isinstance(v.type, TensorType)
        and v.type.shape is not None
        for t, v in zip(settled, state, strict=True)
    )


def _first_turn_apart(
    n: Node, head: tuple[TensorType, ...], trips: Value, condition: Value, state: Sequence[Value]
) -> Sequence[Value]:
    """Convert a loop after its first iteration, which is inlined into the graph around it.

    Exporters give placeholders of any rank to state that the first iteration replaces. From the
    second iteration on, state has the types that the body gives it.
    """
    importer, count, total = n.scope.importer, len(state), _number(trips)
    for label in [x for x in importer.settled if x == n.label or x.startswith(f"{n.label}.")]:
        del importer.settled[label]
    start = [sh.Reshape(t.static)(v) for t, v in zip(head, (constant(0), condition), strict=True)]
    with importer.repeat():
        go_on, *first = n.inline_subgraph("body", (*start, *state))
        if total == 1:
            return *first[:count], *(sh.Unsqueeze((0,))(v) for v in first[count:])
        body = _settle(n, head, tuple(first[:count]), (), 1)
    rest = ctl.Loop(_counted_from_one(body.graph), count)
    left = constant(ENDLESS if total == ENDLESS else total - 1)
    final = unpack(rest(left, go_on, *first[:count], *body.captures))
    collected = zip(first[count:], final[count:], strict=True)
    joined = (sh.Concat(0)(sh.Unsqueeze((0,))(a), b) for a, b in collected)
    return *final[:count], *joined


def _counted_from_one(body: Graph) -> Graph:
    """Return the body of a loop whose first iteration is done: its iteration number is one more."""
    turn = Input(f"{body.input_names[0]}+", body.input_types[0])()
    made = {v: v for v in body.inputs} | {body.inputs[0]: ew.Add()(turn, constant(1))}
    origins = dict(body.origins)
    for value in body.values:
        if value not in made:
            made[value] = value.op(*[made[v] for v in value.inputs])
        if origin := body.origin(value):
            origins[made[value]] = origin
    outputs = tuple((name, made[v]) for name, v in body.outputs)
    return Graph((turn, *body.inputs[1:]), outputs, body.name, origins)


def _single(declared: Type, dtype: DType) -> TensorType:
    """Return the type of a body's iteration number or condition: a scalar, or a vector of one."""
    vector = isinstance(declared, TensorType) and declared.shape is not None and declared.shape
    return tensor(dtype, 1) if vector else tensor(dtype)


def _settle(
    n: Node, head: tuple[Type, ...], state: tuple[Value, ...], tail: tuple[Type, ...], skip: int
) -> SubGraph:
    """Import the body with types of state that hold before and after every iteration.

    The types start as those of the initial state and are generalised where the body changes them,
    until nothing changes. Each round makes some type more general, so this ends. `head` and `tail`
    are the types of the inputs around the state, and `skip` outputs come first.
    """
    importer = n.scope.importer
    types = _first_types(n, head, state, tail, skip)
    # An inner loop is imported several times: it starts from the types of the last import.
    before = importer.settled.get(n.label, types)
    if len(before) == len(types):
        stems = (_stem(n, i) for i in range(len(types)))
        types = tuple(map(vary, types, before, stems))
    body = n.subgraph("body", (*head, *types, *tail))
    while True:
        given = body.graph.output_types[skip : skip + len(state)]
        if len(given) < len(state):
            n.fail("the body returns too few values", expected=len(state), given=len(given))
        joined = (join(a, b) for a, b in zip(types, given, strict=True))
        wider = tuple(variant(t, _stem(n, i)) for i, t in enumerate(joined))
        importer.settled[n.label] = wider
        if wider == types:
            return body
        types = wider
        with importer.repeat():
            body = n.subgraph("body", (*head, *types, *tail))


def _stem(n: Node, index: int) -> str:
    # Nested loops must not share the symbols of their changing sizes.
    return f"{n.scope.depth}_{index}"


def _first_types(
    n: Node, head: tuple[Type, ...], state: tuple[Value, ...], tail: tuple[Type, ...], skip: int
) -> tuple[Type, ...]:
    """Return the types of the initial state; an empty sequence has the first iteration's type.

    An empty sequence fits every element type, so its own type says nothing of its elements.
    """
    types = tuple(v.type for v in state)
    empty = [i for i, v in enumerate(state) if is_empty_sequence(v)]
    if not empty:
        return types
    try:
        formals = (v if i in empty else v.type for i, v in enumerate(state))
        body = n.subgraph("body", (*head, *formals, *tail))
    except UnknownRankError:
        return types
    given = body.graph.output_types[skip : skip + len(state)]
    found = list(types)
    for i in empty:
        if i < len(given) and isinstance(given[i], SequenceType):
            found[i] = given[i]
    return tuple(found)


@converter("Scan", since=9)
def scan(n: Node) -> Sequence[Value]:
    count = n.attr_int("num_scan_inputs")
    carried = len(n.inputs) - count
    if count < 1 or carried < 0:
        n.fail("num_scan_inputs is out of range", expected=f"1..{len(n.inputs)}", given=count)
    values = n.required()
    axes = n.attr_ints("scan_input_axes", (0,) * count)
    slices = tuple(ctl.slice_type(v.tensor, a) for v, a in zip(values[carried:], axes, strict=True))
    body = _settle(n, (), values[:carried], slices, 0)
    collected = len(body.graph.outputs) - carried
    op = ctl.Scan(
        body.graph,
        axes,
        _flags(n, "scan_input_directions", count),
        n.attr_ints("scan_output_axes", (0,) * collected),
        _flags(n, "scan_output_directions", collected),
    )
    return unpack(op(*values, *body.captures))


def _flags(n: Node, name: str, count: int) -> tuple[bool, ...]:
    return tuple(bool(d) for d in n.attr_ints(name, (0,) * count))


@converter("Scan", since=8)
def scan_8(n: Node) -> Sequence[Value]:
    """Convert Scan of opset 8: a scan over the batch of scans along axis 1.

    If lengths are given, the state of a batch element stops changing after its length, and its
    collected values there are zero.
    """
    count = n.attr_int("num_scan_inputs")
    values = tuple(n.input(i) for i in range(1, len(n.inputs)))
    carried = len(values) - count
    if count < 1 or carried < 0:
        n.fail("num_scan_inputs is out of range", expected=f"1..{len(values)}", given=count)
    lengths, backward = n.optional(0), _flags(n, "directions", count)
    if lengths is not None and any(backward):
        n.unsupported("a backward Scan of opset 8 with lengths")
    depth = n.scope.depth
    rows = tuple(
        Input(f"row{i}#{depth}", ctl.slice_type(v.type, 0))() for i, v in enumerate(values)
    )
    slices = tuple(ctl.slice_type(v.type, 0) for v in rows[carried:])
    body = _settle(n, (), rows[:carried], slices, 0)
    captured = tuple(Input(f"given{i}#{depth}", v.type)() for i, v in enumerate(body.captures))
    collected = len(body.graph.outputs) - carried
    results: Sequence[Value]
    if lengths is None:
        results = _forward_scan(body.graph, (*rows, *captured), backward, collected)
        batch, operands = (*rows, *captured), (*values, *body.captures)
    else:
        length = Input(f"length#{depth}", tensor(i64))()
        masked = _masked(body.graph, carried)
        _, *results = _forward_scan(
            masked, (constant(0), *rows, *captured, length), backward, collected
        )
        batch, operands = (*rows, length, *captured), (*values, cast(lengths, i64), *body.captures)
    graph = Graph(batch, tuple((f"y{i}", v) for i, v in enumerate(results)), f"{n.label}.batch")
    scanned = len(batch) - len(captured)
    return _forward_scan(graph, operands, (False,) * scanned, len(results))


def _forward_scan(
    body: Graph, operands: Sequence[Value], backward: tuple[bool, ...], collected: int
) -> Sequence[Value]:
    """Build a scan along first axes that collects along first axes."""
    count = len(backward)
    op = ctl.Scan(body, (0,) * count, backward, (0,) * collected, (False,) * collected)
    return unpack(op(*operands))


def _masked(body: Graph, carried: int) -> Graph:
    """Return the body with a step counter as first state, and a length as last capture."""
    step, length = Input("step", tensor(i64))(), Input("length", tensor(i64))()
    results = tuple(v for _, v in body.outputs)
    within = ew.Less()(step, length)
    state = tuple(
        ew.Where()(within, new, old)
        for new, old in zip(results[:carried], body.inputs[:carried], strict=True)
    )
    zeroed = tuple(ew.Where()(within, v, constant(0, v.dtype)) for v in results[carried:])
    outputs = (ew.Add()(step, constant(1)), *state, *zeroed)
    return Graph((step, *body.inputs, length), tuple((f"y{i}", v) for i, v in enumerate(outputs)))
