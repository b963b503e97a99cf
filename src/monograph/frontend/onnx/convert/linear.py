"""Matrix products, Einsum, determinants and affine maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.index import along
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import (
    Size,
    broadcast_onto,
    broadcast_to,
    iota,
    plus,
    required,
    reshape,
    size_of,
    sizes_of,
    times,
    unless_one,
    vector,
)
from monograph.ir import DType, Value, constant
from monograph.ir.dtype import i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.linear import Det, Dot
from monograph.ops.reduce import ReduceSum


def matmul(x: Value, y: Value, out: DType | None = None, left_bits: int = 0) -> Value:
    """numpy's matmul: a vector is a row on the left and a column on the right."""
    row, column = x.tensor.rank == 1, y.tensor.rank == 1
    if row:
        x = sh.Unsqueeze((0,))(x)
    if column:
        y = sh.Unsqueeze((1,))(y)
    result = Dot(out, left_bits)(x, y)
    dropped = (-2,) * row + (-1,) * column
    return sh.Squeeze(dropped)(result) if dropped else result


@converter("MatMul")
def matmul_node(n: Node) -> Value:
    return matmul(n.input(0), n.input(1))


@converter("Gemm")
def gemm(n: Node) -> Value:
    """alpha * A' B' + beta * C."""
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if n.rank(0) != 2 or n.rank(1) != 2:
        n.fail(
            "the inputs of Gemm must be matrices",
            expected="rank 2",
            given=(n.tensor(0), n.tensor(1)),
        )
    if n.attr_flag("transA"):
        a = sh.Transpose((1, 0))(a)
    if n.attr_flag("transB"):
        b = sh.Transpose((1, 0))(b)
    result = _scaled(Dot()(a, b), n.attr_float("alpha", 1.0))
    beta = n.attr_float("beta", 1.0)
    if c is None or beta == 0.0:
        return result
    return ew.Add()(result, _scaled(broadcast_onto(c, result), beta))


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1.0 else ew.Mul()(x, constant(np.asarray(factor), x.dtype))


@converter("Det")
def det(n: Node) -> Value:
    return Det()(n.input(0))


@converter("AffineGrid")
def affine_grid(n: Node) -> Value:
    """Return the positions of the pixels of an image or volume, under an affine map of [-1, 1]^k.

    Positions are (x, y) or (x, y, z): the last dimension of the image comes first.
    """
    theta, sizes = n.input(0), cast(n.input(1), i64)
    rows = theta.tensor.dim(1) if n.rank(0) == 3 else None
    if isinstance(rows, str):
        n.undecided("the number of rows of theta is not known", given=theta.type)
    if rows not in (2, 3):
        n.fail("theta must be [N, 2, 3] or [N, 3, 4]", given=theta.type)
    extents = [fold(Gather(0)(sizes, constant(i + 2, i64))) for i in range(rows)]
    aligned = n.attr_flag("align_corners")
    lines = [_positions(extents[i], aligned, theta.dtype) for i in range(rows)]
    columns = [broadcast_to(along(lines[i], i, rows), extents) for i in reversed(range(rows))]
    columns.append(broadcast_to(constant(1, theta.dtype), extents))
    points = sh.Concat(1)(*[sh.Reshape((sh.INFER, 1))(c) for c in columns])
    moved = Dot()(points, sh.Transpose((0, 2, 1))(theta))
    return reshape(moved, [size_of(theta, 0), *extents, rows])


def _positions(extent: Value, aligned: bool, dtype: DType) -> Value:
    """Return evenly spaced positions in [-1, 1]: the centres of pixels, or the ends included."""
    count, steps = cast(extent, dtype), cast(iota(extent), dtype)
    one, two = constant(1, dtype), constant(2, dtype)
    if aligned:
        # A single pixel is at -1; this avoids a division by zero.
        gaps = ew.Max()(ew.Sub()(count, one), one)
        return ew.Sub()(ew.Div()(ew.Mul()(steps, two), gaps), one)
    return ew.Sub()(ew.Div()(ew.Add()(ew.Mul()(steps, two), one), count), one)


FAR = 2**62


@dataclass(frozen=True)
class Term:
    """A value and the labels of its dimensions."""

    value: Value
    labels: tuple[str, ...]

    def size(self, label: str) -> Size:
        return size_of(self.value, self.labels.index(label))

    def ordered(self, labels: Iterable[str]) -> Term:
        """Return the term with its dimensions in another order."""
        wanted = tuple(labels)
        if wanted == self.labels:
            return self
        permutation = tuple(self.labels.index(label) for label in wanted)
        return Term(sh.Transpose(permutation)(self.value), wanted)

    def summed(self, labels: Iterable[str]) -> Term:
        """Return the term summed over these dimensions."""
        gone = set(labels)
        if not gone:
            return self
        axes = tuple(i for i, label in enumerate(self.labels) if label in gone)
        kept = tuple(label for label in self.labels if label not in gone)
        return Term(ReduceSum(axes)(self.value), kept)

    def without_ones(self, shared: set[str]) -> Term:
        """Return the term without dimensions of size 1 that another term has: they broadcast."""
        dims = self.value.tensor.dims
        axes = tuple(i for i, x in enumerate(self.labels) if x in shared and dims[i] == 1)
        kept = tuple(x for i, x in enumerate(self.labels) if i not in axes)
        return Term(sh.Squeeze(axes)(self.value), kept) if axes else self

    def stretched(self, other: Term) -> Term:
        """Return the term with dimensions that may be 1 broadcast to those of another term."""
        dims, others = self.value.tensor.dims, other.value.tensor.dims
        sizes = sizes_of(self.value)
        for i, label in enumerate(self.labels):
            if isinstance(dims[i], str) and label in other.labels:
                j = other.labels.index(label)
                if dims[i] != others[j]:
                    sizes[i] = unless_one(sizes[i], size_of(other.value, j))
        if sizes == sizes_of(self.value):
            return self
        return Term(broadcast_to(self.value, sizes), self.labels)


@converter("Einsum")
def einsum(n: Node) -> Value:
    operands, output = _parse(n)
    terms = [_diagonal(Term(v, labels)) for v, labels in zip(n.required(), operands, strict=True)]
    result = terms[0]
    for i, term in enumerate(terms[1:], 2):
        needed = {*output, *(label for later in terms[i:] for label in later.labels)}
        result = _contract(result, term, needed)
    result = result.summed(set(result.labels) - set(output))
    return result.ordered(output).value


def _parse(n: Node) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each operand and of the result."""
    equation = n.attr_string("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(n.inputs):
        n.fail(
            "the equation must have one term for each input", expected=len(n.inputs), given=equation
        )
    operands = [_labels(n, text, n.rank(i)) for i, text in enumerate(texts)]
    counts = Counter(label for labels in operands for label in labels)
    dots = sorted((x for x in counts if x.startswith("...")), key=_from_end)
    if arrow:
        output = _labels(n, right, len(right.replace("...", "")) + len(dots))
    else:
        once = sorted(x for x, count in counts.items() if count == 1 and x not in dots)
        output = (*dots, *once)
    if len(set(output)) != len(output) or not set(output) <= set(counts):
        n.fail("each label of the result must occur once, and in an input", given=equation)
    return operands, output


def _from_end(label: str) -> int:
    return -int(label[3:])


def _labels(n: Node, text: str, rank: int) -> tuple[str, ...]:
    """Return one label per dimension; labels of an ellipsis are counted from its end."""
    before, dots, after = text.partition("...")
    letters = before + after
    if not all(c.isascii() and c.isalpha() for c in letters):
        n.fail("a term must consist of letters and at most one ellipsis", given=text)
    hidden = rank - len(letters)
    if hidden < 0 or (hidden > 0 and not dots):
        n.fail("a term must have one label for each dimension", expected=rank, given=text)
    return (*before, *(f"...{i}" for i in range(hidden - 1, -1, -1)), *after)


def _diagonal(term: Term) -> Term:
    """Take the diagonal of dimensions with equal labels."""
    repeated = next((x for x, count in Counter(term.labels).items() if count > 1), None)
    while repeated is not None:
        first = term.labels.index(repeated)
        second = term.labels.index(repeated, first + 1)
        rest = [i for i in range(len(term.labels)) if i not in (first, second)]
        value = sh.Transpose((*rest, first, second))(term.value)
        size = size_of(value, -1)
        rule = f"dimensions of one label ({repeated}) are of one size"
        value = required(value, rule, [size_of(value, -2)], [size])
        # In the flattened matrix, the diagonal is every (size + 1)-th element.
        flat = reshape(value, [*(size_of(value, i) for i in range(len(rest))), times(size, size)])
        steps: list[Size] = [*(1 for _ in rest), plus(size, 1)]
        late = {"steps": vector(steps)}
        zeros, ends = (0,) * len(steps), (FAR,) * len(steps)
        value = deferred(sh.Slice, (flat,), late, starts=zeros, stops=ends)
        term = Term(value, (*(term.labels[i] for i in rest), repeated))
        repeated = next((x for x, count in Counter(term.labels).items() if count > 1), None)
    return term


def _contract(x: Term, y: Term, needed: set[str]) -> Term:
    """Return the product of two terms, summed over the labels that are no longer needed."""
    shared = set(x.labels) & set(y.labels)
    # A dimension that is 1 on both sides is kept on one.
    x = x.without_ones(shared)
    y = y.without_ones(shared & set(x.labels))
    x, y = x.stretched(y), y.stretched(x)
    x = x.summed(set(x.labels) - needed - set(y.labels))
    y = y.summed(set(y.labels) - needed - set(x.labels))
    common = [label for label in x.labels if label in y.labels]
    inner = [label for label in common if label not in needed]
    if not inner:
        return _product(x, y)
    batch = [label for label in common if label in needed]
    rows = [label for label in x.labels if label not in common]
    columns = [label for label in y.labels if label not in common]
    left = _matrix(x.ordered((*batch, *rows, *inner)), len(batch), len(rows))
    right = _matrix(y.ordered((*batch, *inner, *columns)), len(batch), len(inner))
    labels = (*batch, *rows, *columns)
    sizes = [
        *(x.size(label) for label in batch),
        *(x.size(label) for label in rows),
        *(y.size(label) for label in columns),
    ]
    result = Dot()(left, right)
    if len(rows) == len(columns) == 1:
        return Term(result, labels)
    return Term(reshape(result, sizes), labels)


def _matrix(term: Term, batch: int, rows: int) -> Value:
    """Return a term as batch and two dimensions: `rows` of the labels, and the others."""
    sizes = [size_of(term.value, i) for i in range(len(term.labels))]
    if rows == 1 and len(sizes) - batch - rows == 1:
        return term.value
    first, second = times(*sizes[batch : batch + rows]), times(*sizes[batch + rows :])
    return reshape(term.value, [*sizes[:batch], first, second])


def _product(x: Term, y: Term) -> Term:
    """The elementwise product, each term broadcast along the labels it lacks."""
    labels = (*x.labels, *(label for label in y.labels if label not in x.labels))
    aligned = []
    for term in (x, y):
        present = term.ordered(label for label in labels if label in term.labels)
        absent = tuple(i for i, label in enumerate(labels) if label not in term.labels)
        aligned.append(sh.Unsqueeze(absent)(present.value) if absent else present.value)
    return Term(ew.Mul()(*aligned), labels)
