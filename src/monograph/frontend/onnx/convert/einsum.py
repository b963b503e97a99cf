"""Einsum, as diagonals, sums, transposes, products and dots.

Operands carry a label for each dimension. Labels of the ellipsis are "...0", "...1" and so on,
counted from the last dimension, so that operands of different rank line up as they broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import (
    Size,
    broadcast_to,
    plus,
    required,
    reshape,
    size_of,
    sizes_of,
    times,
    unless_one,
    vector,
)
from monograph.ir import Value
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum

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
        """Return the term without dimensions of size 1 that another term has too: they
        broadcast.
        """
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
