"""Consumers of rows whose number data decide: all that may be wrong about a padded buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.cpu.dynamic.bounded_graphs import BOOL, F32, FAR, I64, MOST, NEAR, Net, Rows, rows_of

Consumer = Callable[[Net, Rows], list[str]]
CONSUMERS: dict[str, Consumer] = {}
NEEDS_ROWS: set[str] = set()
"""Consumers that are an error where there are no rows."""


def consumer(needs_rows: bool = False) -> Callable[[Consumer], Consumer]:
    def register(function: Consumer) -> Consumer:
        CONSUMERS[function.__name__] = function
        if needs_rows:
            NEEDS_ROWS.add(function.__name__)
        return function

    return register


SLICES = {
    "flip": (-1, NEAR, -1),
    "flip_from_far": (FAR, NEAR, -1),
    "all_but_last": (0, -1, 1),
    "last_two": (-2, FAR, 1),
    "from_second": (1, FAR, 1),
    "every_other": (0, FAR, 2),
    "every_other_back": (-1, NEAR, -2),
    "below_the_start": (-99, NEAR, -1),
    "whole": (0, FAR, 1),
    "whole_from_before": (-99, FAR, 1),
    "first_two": (0, 2, 1),
    "beyond_the_room": (0, MOST + 5, 1),
    "backwards_to_second": (-1, 0, -1),
}


@consumer()
def slices(n: Net, r: Rows) -> list[str]:
    return [
        n.slice(x, start, stop, axis, step)
        for start, stop, step in SLICES.values()
        for x, _, axis in r.shapes
    ]


@consumer()
def slices_of_other_axes(n: Net, r: Rows) -> list[str]:
    made = [n.slice(r.m, *SLICES[name][:2], 1, SLICES[name][2]) for name in ("flip", "last_two")]
    return [*made, n.slice(r.t, -1, NEAR, 0, -1), n.slice(r.b, 1, FAR, 2)]


@consumer()
def flipped_twice(n: Net, r: Rows) -> list[str]:
    once = [n.slice(x, -1, NEAR, axis, -1) for x, _, axis in r.shapes]
    return [n.slice(y, -1, NEAR, axis, -1) for y, (_, _, axis) in zip(once, r.shapes, strict=True)]


@consumer()
def work_on_a_flip(n: Net, r: Rows) -> list[str]:
    flipped = n.slice(r.m, -1, NEAR, 0, -1)
    return [n("Sub", r.m, flipped), n("ReduceSum", flipped, n.const([0])), n("Shape", flipped)]


@consumer()
def running_sums(n: Net, r: Rows) -> list[str]:
    return [
        n("CumSum", x, n.const(a), exclusive=exclusive, reverse=reverse)
        for x, rank, _ in r.shapes
        for a in range(rank)
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ]


@consumer()
def sums(n: Net, r: Rows) -> list[str]:
    kinds = ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd")
    kinds += ("ReduceMax", "ReduceMin", "ReduceLogSumExp")
    kept = [n("ReduceMax", x, n.const([axis]), keepdims=1) for x, _, axis in r.shapes]
    return kept + [
        n(op, x, n.const([a]), keepdims=0)
        for op in kinds
        for x, rank, _ in r.shapes[1:3]
        for a in range(rank)
    ]


@consumer()
def sums_of_everything(n: Net, r: Rows) -> list[str]:
    return [n(op, r.b) for op in ("ReduceSum", "ReduceMax", "ReduceProd", "ReduceL2")]


@consumer(needs_rows=True)
def means(n: Net, r: Rows) -> list[str]:
    return [n("ReduceMean", x, n.const([axis])) for x, _, axis in r.shapes]


@consumer(needs_rows=True)
def largest(n: Net, r: Rows) -> list[str]:
    equal = n("Floor", n("Mul", r.m, n.const(0.01, np.float32)))
    return [
        n(op, x, axis=a, keepdims=0, select_last_index=last)
        for op in ("ArgMax", "ArgMin")
        for x in (r.m, equal)
        for a in (0, 1)
        for last in (0, 1)
    ]


@consumer()
def sorts(n: Net, r: Rows) -> list[str]:
    made: list[str] = []
    for lowest in (0, 1):
        made += n.several("TopK", r.v, r.size, count=2, largest=1 - lowest)
        made += n.several("TopK", r.t, r.size, count=2, axis=1, largest=1 - lowest)
        made += n.several("TopK", r.m, n.const([2]), count=2, axis=1, largest=1 - lowest)
    return [*made, *n.several("Unique", r.v, count=4), n("NonZero", r.m)]


@consumer()
def concats(n: Net, r: Rows) -> list[str]:
    one, row = n.const([9], np.float32), n.const([[7, 8, 9]], np.float32)
    half = n("Mul", r.m, n.const(0.5, np.float32))
    return [
        n("Concat", r.v, one, axis=0),
        n("Concat", one, r.v, axis=0),
        n("Concat", r.v, r.v, axis=0),
        n("Concat", r.m, half, axis=0),
        n("Concat", r.m, half, axis=1),
        n("Concat", r.m, row, r.m, axis=0),
        n("Concat", r.t, r.t, axis=0),
        n("Concat", r.t, r.t, axis=1),
        n("Concat", n("Shape", r.m), n("Shape", r.b), axis=0),
    ]


@consumer(needs_rows=True)
def gathers(n: Net, r: Rows) -> list[str]:
    return [
        n("Gather", r.v, n.const([-1, 0]), axis=0),
        n("Gather", r.m, n.const(-1), axis=0),
        n("Gather", r.t, n.const([[0, -1]]), axis=1),
        n("GatherElements", r.m, n.const([[-1, 0, -1]]), axis=0),
        n("GatherElements", r.t, n.const([[-1], [0], [-1]]), axis=1),
        n("GatherND", r.m, n.const([[-1], [0]])),
        n("GatherND", r.m, n.const([[-1, -1], [0, 1]])),
    ]


@consumer()
def gathers_of_other_axes(n: Net, r: Rows) -> list[str]:
    places = n("Cast", n("Sub", r.v, r.v), to=I64)
    table = n.const(np.arange(12).reshape(4, 3), np.float32)
    return [
        n("Gather", r.m, n.const([-1, 0, 1]), axis=1),
        n("Gather", r.t, n.const(-1), axis=0),
        n("Gather", table, n("Sub", places, n.const(1)), axis=0),
        n("Gather", table, n("Sub", places, n.const(1)), axis=1),
        n("GatherElements", r.m, n("Add", n("Cast", n("Mul", r.m, n.const(0, np.float32)), to=I64),
                                   n.const(-1)), axis=1),
        n("GatherND", table, n("Unsqueeze", n("Sub", places, n.const(2)), n.const([1]))),
    ]  # fmt: skip


@consumer()
def scatters(n: Net, r: Rows) -> list[str]:
    places = n("Unsqueeze", n("Range", n.const(0), n("Squeeze", r.size), n.const(1)), n.const([1]))
    # Out of range for what counts nothing: only rows that count may be written.
    far = n("Add", n("Cast", n("Sub", r.v, r.v), to=I64), n.const(MOST + 2))
    base = n.const(np.full((MOST + 3, 3), 0.5), np.float32)
    made = [n("ScatterND", base, places, r.m, reduction=k) for k in ("none", "add", "max", "mul")]
    made.append(n("ScatterND", base, n("Unsqueeze", far, n.const([1])), r.m))
    made.append(n("ScatterND", base, n("Unsqueeze", far, n.const([1])), r.m, reduction="max"))
    return made


@consumer()
def soft(n: Net, r: Rows) -> list[str]:
    made = [
        n(op, x, axis=a) for op in ("Softmax", "LogSoftmax") for x in (r.m, r.t) for a in (0, 1)
    ]
    return [*made, n("Softmax", r.v, axis=0), n("Hardmax", r.m, axis=1)]


@consumer()
def norms(n: Net, r: Rows) -> list[str]:
    scale = n.const([1.0, 2.0, 3.0], np.float32)
    columns = n("Unsqueeze", r.m, n.const([0]))
    return [
        n("LayerNormalization", r.m, scale, axis=-1),
        n("LpNormalization", r.m, axis=1, p=2),
        n("LpNormalization", r.m, axis=0, p=1),
        n("MeanVarianceNormalization", n("Transpose", columns, perm=[1, 2, 0]), axes=[1]),
        n("InstanceNormalization", n("Transpose", columns, perm=[1, 2, 0]), scale, scale),
    ]


@consumer(needs_rows=True)
def norms_over_rows(n: Net, r: Rows) -> list[str]:
    one = n.const([1.0], np.float32)
    return [
        n("MeanVarianceNormalization", n("Unsqueeze", r.t, n.const([0])), axes=[2]),
        n("InstanceNormalization", n("Unsqueeze", r.t, n.const([0])),
          n.const([1, 2, 3], np.float32), n.const([0, 1, 2], np.float32)),
        n("LayerNormalization", r.t, n("Expand", one, r.size), axis=-1),
    ]  # fmt: skip


@consumer()
def paddings(n: Net, r: Rows) -> list[str]:
    made = [n("Pad", r.m, n.const(p)) for p in ([1, 0, 2, 0], [0, 1, 0, 2])]
    return [*made, n("Tile", r.m, n.const([2, 1])), n("Tile", r.m, n.const([1, 2]))]


@consumer(needs_rows=True)
def paddings_by_data(n: Net, r: Rows) -> list[str]:
    return [
        n("Pad", r.m, n.const([0, 2, 0, 1]), mode="reflect"),
        n("Pad", r.m, n.const([1, 0, 1, 0]), mode="edge"),
        n("Pad", r.v, n.const([1, 1]), mode="wrap"),
    ]


@consumer(needs_rows=True)
def resizes(n: Net, r: Rows) -> list[str]:
    image = n("Unsqueeze", r.b, n.const([0]))
    return [
        n("Resize", image, "", n.const([1, 1, 2, 1], np.float32)),
        n("Resize", image, "", n.const([1, 1, 2, 1], np.float32), mode="linear"),
        n("Resize", image, "", n.const([1, 1, 1, 2], np.float32)),
    ]


@consumer()
def reshapes(n: Net, r: Rows) -> list[str]:
    three = n("Reshape", r.m, n.const([-1]))
    return [
        three,
        n("Reshape", r.t, n.const([-1])),
        n("Reshape", r.b, n.const([2, -1])),
        n("Reshape", r.b, n.const([-1, 3])),
        n("Reshape", r.m, n.const([0, 3, 1])),
        n("Reshape", r.m, n.const([3, -1])),
        n("Reshape", r.m, n.const([1, -1, 3])),
        n("Flatten", r.m, axis=1),
        n("Flatten", r.m, axis=0),
        n("Flatten", r.b, axis=2),
        n("Transpose", r.b, perm=[1, 2, 0]),
        n.slice(n("Transpose", r.b, perm=[1, 2, 0]), -1, NEAR, 0, -1),
        n.slice(three, -1, NEAR, 0, -1),
        n.slice(n("Transpose", r.b, perm=[2, 0, 1]), 0, -1, 2),
    ]


@consumer()
def selections(n: Net, r: Rows) -> list[str]:
    positive = n("Greater", r.m, n.const(0, np.float32))
    three = n.const([[1, 2, 3]], np.float32)
    return [
        n("Where", positive, r.m, three),
        n("Where", positive, n("Neg", r.m), n.slice(r.m, -1, NEAR, 0, -1)),
        n("Expand", n("Unsqueeze", r.m, n.const([0])), n.const([4, 1, 1])),
        n("Expand", three, n("Concat", r.size, n.const([3]), axis=0)),
        n("Mul", r.m, three),
        n("Mul", r.b, r.m),
        n("Mul", n("Unsqueeze", r.v, n.const([1])), n("Unsqueeze", r.v, n.const([0]))),
        n("Compress", r.m, n.const([1, 0, 1], np.bool_), axis=1),
        n("Trilu", n("MatMul", r.m, r.t)),
    ]


@consumer()
def products(n: Net, r: Rows) -> list[str]:
    weights = n.const(np.arange(12).reshape(3, 4) - 5, np.float32)
    return [
        n("MatMul", r.m, weights),
        n("MatMul", r.t, r.m),
        n("MatMul", r.m, r.t),
        n("MatMul", r.t, r.v),
        n("MatMul", r.v, r.m),
        n("MatMul", r.b, weights),
        n("Gemm", r.m, r.m, transA=1),
        n("Einsum", r.m, r.m, equation="ij,ik->jk"),
    ]


@consumer()
def sizes(n: Net, r: Rows) -> list[str]:
    made = [n(op, x) for op in ("Shape", "Size") for x, _, _ in r.shapes]
    return [
        *made,
        n("ConstantOfShape", r.size),
        n("Range", n.const(0), n("Squeeze", r.size), n.const(1)),
        n("EyeLike", n("MatMul", r.m, r.t)),
        n("OneHot", n("Cast", n("Sub", r.v, r.v), to=I64), n.const(3), n.const([0, 1], np.float32)),
    ]


@consumer()
def splits(n: Net, r: Rows) -> list[str]:
    left = n("Concat", n.const([0]), r.size, axis=0)
    return [
        *n.several("Split", r.m, count=2, axis=0, num_outputs=2),
        *n.several("Split", r.m, n.const([1, 2]), count=2, axis=1),
        *n.several("Split", r.m, left, count=2, axis=0),
    ]


@consumer(needs_rows=True)
def sequences(n: Net, r: Rows) -> list[str]:
    lengths = n("Expand", n.const([2]), n.const([3]))
    return [
        n("ReverseSequence", r.m, n("Expand", r.size, n.const([3])), time_axis=0, batch_axis=1),
        n("ReverseSequence", r.m, n("Expand", n.const([2]), r.size), time_axis=1, batch_axis=0),
        n("ReverseSequence", n("Concat", r.m, r.m, axis=0), lengths, time_axis=0, batch_axis=1),
    ]


def _body(nodes: Net, inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
    return helper.make_graph(nodes.nodes, "inner", inputs, outputs, nodes.tensors)


@consumer()
def branches(n: Net, r: Rows) -> list[str]:
    sides = []
    for name, step in (("then", -1), ("else", 1)):
        inner = Net(f"{name}_{n.count}_")
        bounds = (-1, NEAR) if step < 0 else (0, FAR)
        made = inner.slice(r.m, *bounds, 0, step)
        result = helper.make_tensor_value_info(made, F32, None)
        sides.append(_body(inner, [], [result]))
    many = n("Squeeze", n("Less", n.const([2]), r.size))
    return [n("If", many, then_branch=sides[0], else_branch=sides[1])]


@consumer()
def scans(n: Net, r: Rows) -> list[str]:
    made = []
    for backwards in (0, 1):
        inner = Net(f"scan{backwards}_")
        total = inner("Add", "state", "row")
        twice = inner("Mul", total, inner.const(2, np.float32))
        graph = _body(
            inner,
            [helper.make_tensor_value_info(x, F32, [3]) for x in ("state", "row")],
            [helper.make_tensor_value_info(x, F32, [3]) for x in (total, twice)],
        )
        made += n.several(
            "Scan", n.const([0, 1, 2], np.float32), r.m, count=2, body=graph, num_scan_inputs=1,
            scan_input_directions=[backwards],
        )  # fmt: skip
    return made


@consumer()
def loops(n: Net, r: Rows) -> list[str]:
    inner = Net("turn_")
    row = inner("Gather", r.m, "i", axis=0)
    total, continues = inner("Add", "s", row), inner("Identity", "go")
    graph = _body(
        inner,
        [
            helper.make_tensor_value_info("i", I64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("s", F32, [3]),
        ],
        [
            helper.make_tensor_value_info(continues, BOOL, []),
            helper.make_tensor_value_info(total, F32, [3]),
            helper.make_tensor_value_info(row, F32, [3]),
        ],
    )
    begin = n.const([0, 0, 0], np.float32)
    return n.several("Loop", n("Squeeze", r.size), "", begin, count=2, body=graph)


def model_of(producer: str, consumers: list[str]) -> tuple[onnx.ModelProto, list[str]]:
    """A model with all results of these consumers, and which consumer each is of."""
    n = Net()
    rows = rows_of(n, producer)
    owners: list[str] = []
    for name in consumers:
        made = CONSUMERS[name](n, rows)
        # A tensor is an output once; consumers may share one.
        fresh = [n("Identity", y) for y in made]
        n.outputs += fresh
        owners += [f"{name}[{i}]" for i in range(len(fresh))]
    return n.model(), owners
