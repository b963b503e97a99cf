"""Random chains of ops behind a size that data decide.

python -m tests.cpu.dynamic.bounded_chains 100
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tests.cpu.dynamic.bounded_graphs import FAR, MOST, NEAR, PRODUCERS, Net, feeds_of, rows_of
from tests.cpu.dynamic.bounded_runs import agree, sessions

LARGEST = 512
"""Elements beyond which a chain is not made longer, with the size at its most."""


@dataclass(frozen=True)
class Part:
    """A value of a chain: its name and its sizes, None where data decide."""

    name: str
    dims: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)


Move = Callable[[Net, Part, random.Random], Part | None]


def _scale(n: Net, x: Part, r: random.Random) -> Part | None:
    made = n(r.choice(["Mul", "Add", "Max"]), x.name, n.const(r.choice([-0.5, 2.0]), np.float32))
    return Part(made, x.dims)


def _transpose(n: Net, x: Part, r: random.Random) -> Part | None:
    order = r.sample(range(x.rank), x.rank)
    return Part(n("Transpose", x.name, perm=order), tuple(x.dims[i] for i in order))


def _slice(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    step = r.choice([1, 1, 2, -1, -1, -2])
    start = r.choice([0, 1, -1, -2, -20, FAR] if step < 0 else [0, 0, 1, -1, -2, -20])
    stop = r.choice([NEAR, NEAR, 0, 1, -2] if step < 0 else [FAR, FAR, 2, -1, 20])
    size = x.dims[axis]
    if size is not None:
        first = 0 if step < 0 and start < -size else start
        size = len(range(size)[slice(first, stop, step)])
    dims = (*x.dims[:axis], size, *x.dims[axis + 1 :])
    return Part(n.slice(x.name, start, stop, axis, step), dims)


def _mirror(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    return Part(n("Sub", x.name, n.slice(x.name, -1, NEAR, axis, -1)), x.dims)


def _running(n: Net, x: Part, r: random.Random) -> Part | None:
    flags = {"exclusive": r.randrange(2), "reverse": r.randrange(2)}
    return Part(n("CumSum", x.name, n.const(r.randrange(x.rank)), **flags), x.dims)


def _softmax(n: Net, x: Part, r: random.Random) -> Part | None:
    return Part(n("Softmax", x.name, axis=r.randrange(x.rank)), x.dims)


def _reduce(n: Net, x: Part, r: random.Random) -> Part | None:
    axis, keep = r.randrange(x.rank), r.randrange(2)
    kind = r.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1"])
    made = n(kind, x.name, n.const([axis]), keepdims=keep)
    return Part(made, (*x.dims[:axis], *([1] if keep else []), *x.dims[axis + 1 :]))


def _double(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    size = x.dims[axis]
    other = n("Neg", x.name)
    dims = (*x.dims[:axis], None if size is None else 2 * size, *x.dims[axis + 1 :])
    return Part(n("Concat", *r.sample([x.name, other], 2), axis=axis), dims)


def _append(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    shape = [1 if i == axis else d for i, d in enumerate(x.dims)]
    if None in shape:
        return None
    size, more = x.dims[axis], n.const(np.full(shape, 9.0), np.float32)
    dims = (*x.dims[:axis], None if size is None else size + 1, *x.dims[axis + 1 :])
    return Part(n("Concat", *r.sample([x.name, more], 2), axis=axis), dims)


def _gather(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    size = x.dims[axis]
    if not size:
        return None
    places = [r.randrange(-size, size) for _ in range(2)]
    dims = (*x.dims[:axis], 2, *x.dims[axis + 1 :])
    return Part(n("Gather", x.name, n.const(places), axis=axis), dims)


def _unsqueeze(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randint(0, x.rank)
    dims = (*x.dims[:axis], 1, *x.dims[axis:])
    return Part(n("Unsqueeze", x.name, n.const([axis])), dims)


def _flat(n: Net, x: Part, r: random.Random) -> Part | None:
    known = [d for d in x.dims if d is not None]
    open_ = len(known) < x.rank
    size = None if open_ else int(np.prod(known, dtype=int))
    return Part(n("Reshape", x.name, n.const([-1])), (size,))


def _product(n: Net, x: Part, r: random.Random) -> Part | None:
    size = x.dims[-1] if x.rank > 1 else None
    if not size:
        return None
    weights = n.const(np.arange(size * 2).reshape(size, 2) % 5 - 2, np.float32)
    return Part(n("MatMul", x.name, weights), (*x.dims[:-1], 2))


def _choose(n: Net, x: Part, r: random.Random) -> Part | None:
    positive = n("Greater", x.name, n.const(0.0, np.float32))
    return Part(n("Where", positive, x.name, n.const(-1.0, np.float32)), x.dims)


def _tile(n: Net, x: Part, r: random.Random) -> Part | None:
    axis = r.randrange(x.rank)
    times = [2 if i == axis else 1 for i in range(x.rank)]
    size = x.dims[axis]
    dims = (*x.dims[:axis], None if size is None else 2 * size, *x.dims[axis + 1 :])
    return Part(n("Tile", x.name, n.const(times)), dims)


MOVES: list[Move] = [
    _scale, _transpose, _slice, _slice, _mirror, _running, _softmax, _reduce, _double, _append,
    _gather, _unsqueeze, _flat, _product, _choose, _tile,
]  # fmt: skip


def chain(seed: int) -> tuple[str, onnx.ModelProto]:
    """A producer and a model of two random chains behind it."""
    r, n = random.Random(seed), Net()
    producer = r.choice(list(PRODUCERS))
    rows = rows_of(n, producer)
    known = {"v": (None,), "m": (None, 3), "t": (3, None), "b": (2, None, 3)}
    for _ in range(2):
        name = r.choice(list(known))
        part = Part(getattr(rows, name), known[name])
        for _ in range(r.randint(2, 5)):
            elements = np.prod([MOST if d is None else d for d in part.dims], dtype=int)
            if not part.rank or elements > LARGEST:
                break
            part = r.choice(MOVES)(n, part, r) or part
        n.outputs += [n("Identity", part.name), n("Shape", part.name)]
    return producer, n.model()


def check(seed: int, target: str = "cpu") -> None:
    """Runs a chain for every number of rows on a target, and compares."""
    producer, model = chain(seed)
    reference, other = sessions(model, target)
    for count in (0, 1, 4, MOST):
        if count or producer != "unique":
            agree(reference, other, feeds_of(count), f"seed {seed}, {producer}, {count} rows")


if __name__ == "__main__":
    many, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + many):
        try:
            check(number)
        except AssertionError as e:
            print(e)
