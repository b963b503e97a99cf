"""Strings: joining, splitting, filtering, matching and counting n-grams. Reference only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Literal,
    Op,
    TensorType,
    TupleType,
    broadcast,
    sample,
)
from monograph.ir.dtype import INT, STRING, boolean, f32, i64
from monograph.ir.memory import text_lengths
from monograph.ops.base import as_tensor, check_allocation, check_kinds
from monograph.ops.regex import compile_pattern

CASES: dict[str, Callable[[str], str]] = {"none": str, "lower": str.lower, "upper": str.upper}


def check_string(x: TensorType) -> TensorType:
    check_kinds(as_tensor(x).dtype, (STRING,))
    return x


def object_array(items: list[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of Python objects, without numpy looking into them."""
    result = np.empty(len(items), object)
    result[:] = items
    return result.reshape(shape)


@dataclass(frozen=True)
class StringConcat(Op):
    """The text of y after that of x, broadcast as numpy does."""

    samples = (sample("str[2, 1]", "str[3]"), sample("str[]", "str[]"), sample("str[0]", "str[1]"))

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return x.with_shape(broadcast(check_string(x).shape, check_string(y).shape))

    def reference(self, x: Array, y: Array) -> Array:
        # Elements are only references, so their number says nothing: texts double in length.
        lengths = np.add(*(text_lengths(a) for a in (x, y)))
        check_allocation((int(lengths.sum()),), np.uint8)
        return np.asarray(np.add(x, y), object)


@dataclass(frozen=True)
class StringSplit(Op):
    """The pieces of each text, padded with empty ones to the longest, and their numbers.

    An empty delimiter stands for any run of white space. Splitting stops after `limit` cuts,
    unless it is negative. An empty text has no pieces.
    """

    delimiter: str = ""
    limit: int = -1

    samples = (
        sample(np.array([["a,b", ",", ""]], object), delimiter=","),
        sample(np.array(["  a b  c", "d"], object), limit=1),
        sample("str[0]", delimiter="-"),
    )

    def infer(self, x: TensorType) -> TupleType:
        pieces = None if check_string(x).shape is None else (*x.dims, UNKNOWN)
        return TupleType((x.with_shape(pieces), x.with_dtype(i64)))

    def reference(self, x: Array) -> tuple[Array, Array]:
        pieces = [self.split(text) for text in x.flat]
        counts = np.array([len(p) for p in pieces], np.int64)
        width = int(counts.max(initial=0))
        check_allocation((len(pieces), width), object)
        padded = [p for row in pieces for p in (*row, *[""] * (width - len(row)))]
        return object_array(padded, (*x.shape, width)), counts.reshape(x.shape)

    def split(self, text: str) -> list[str]:
        if not self.delimiter:
            return text.strip().split(None, self.limit)
        return text.split(self.delimiter, self.limit) if text else []


@dataclass(frozen=True)
class StringFilter(Op):
    """The texts of a vector, or of one row, that are no stop words, in another case.

    With nothing left, the result is one empty text.
    """

    stopwords: tuple[str, ...] = ()
    case: str = "none"
    case_sensitive: bool = True

    fixed_text = True
    samples = (
        sample(np.array(["Mon", "tue", "MON"], object), stopwords=("mon",), case="upper"),
        sample(np.array([["Mon", "mon"]], object), stopwords=("mon",), case_sensitive=False),
        sample("str[3]", case="lower"),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.case not in CASES:
            raise InferError("unknown case", expected=" ".join(CASES), given=self.case)
        shape = check_string(x).shape
        if shape is None or not self.stopwords:
            return x
        rows = shape[0] if len(shape) == 2 else 1
        if len(shape) not in (1, 2) or (isinstance(rows, int) and rows != 1):
            raise InferError("a vector or one row is needed", expected="[C] or [1, C]", given=x)
        return x.with_shape((*shape[:-1], UNKNOWN))

    def reference(self, x: Array) -> Array:
        if x.dtype.kind == "U":
            changed = _ascii_in_case(x, self.case) if not self.stopwords else None
            if changed is not None:
                return changed.astype(object)
            x = x.astype(object)
        change = CASES[self.case]
        if not self.stopwords:
            return object_array(list(map(change, x.reshape(-1).tolist())), x.shape)
        fold = CASES["none" if self.case_sensitive else "lower"]
        unwanted = {fold(w) for w in self.stopwords}
        kept = [change(t) for t in x.flat if fold(t) not in unwanted] or [""]
        return object_array(kept, (*x.shape[:-1], len(kept)))


def _ascii_in_case(x: Array, case: str) -> Array | None:
    """Return ASCII text of fixed width in another case; None if some of it is not ASCII."""
    codes = np.ascontiguousarray(x).reshape(-1).view(np.uint32)
    if codes.max(initial=0) >= 128:
        return None
    if case == "none":
        return x
    first, by = (ord("a"), 32) if case == "upper" else (ord("A"), -32)
    # An unsigned difference is large below the first letter.
    moved = np.where(codes - np.uint32(first) < 26, codes - np.int32(by).astype(np.uint32), codes)
    return moved.view(x.dtype).reshape(x.shape)


@dataclass(frozen=True)
class RegexMatch(Op):
    """True where a regular expression (RE2's syntax) matches the whole text.

    It takes time linear in the text, whatever the pattern.
    """

    pattern: str

    costly = True
    samples = (
        sample(np.array(["www.a.com", "a.com", ""], object), pattern=r"www\.[\w.-]+\.com"),
        sample(np.array([["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"]], object), pattern="(a*)*(a|aa)+"),
    )

    def infer(self, x: TensorType) -> TensorType:
        compile_pattern(self.pattern)
        return check_string(x).with_dtype(boolean)

    def reference(self, x: Array) -> Array:
        pattern = compile_pattern(self.pattern)
        found = [pattern.matches(text) for text in x.flat]
        return np.array(found, np.bool_).reshape(x.shape)


@dataclass(frozen=True)
class Ngrams(Op):
    """The weighted counts of the n-grams of a pool in a sequence of tokens, as f32.

    `pool` holds all 1-grams, then all 2-grams and so on; the n-grams begin at `starts[n - 1]`. The
    i-th gram of the pool counts in column `columns[i]`. Grams of `shortest` to `longest` tokens
    are looked for, their tokens next to each other or with the same number, up to `skips`, left
    out between any two. With `once`, a gram counts once however often it occurs.
    """

    pool: Literal
    starts: tuple[int, ...]
    columns: tuple[int, ...]
    shortest: int
    longest: int
    skips: int = 0
    once: bool = False
    weights: tuple[float, ...] | None = None

    costly = True
    samples = (
        sample(
            [[5, 6, 7, 5], [6, 6, 6, 6]],
            pool=Literal(np.array([5, 6, 5, 6, 6, 7, 5, 7])),
            starts=(0, 2), columns=(3, 1, 0, 2, 4), shortest=1, longest=2, skips=1,
        ),
        sample(
            np.array(["a", "b", "a"], object),
            pool=Literal(np.array(["a", "b"], object)),
            starts=(0,), columns=(0, 1), shortest=1, longest=1, once=True, weights=(2.0, 3.0),
        ),
    )  # fmt: skip

    def infer(self, x: TensorType) -> TensorType:
        dtype = as_tensor(x).dtype
        if dtype.is_string != self.pool.dtype.is_string:
            raise InferError("tokens and pool differ in kind", expected=self.pool.dtype, given=x)
        check_kinds(dtype, (INT, STRING))
        self.check()
        width = max(self.columns) + 1
        if x.shape is None:
            return TensorType(f32, None)
        if len(x.shape) not in (1, 2):
            raise InferError("a vector or a matrix of tokens is needed", given=x)
        return TensorType(f32, (*x.shape[:-1], width))

    def check(self) -> None:
        """The pool has whole grams, each with a column and a weight."""
        size = self.pool.array.size
        bounds = (*self.starts, size)
        lengths = [b - a for a, b in pairwise(bounds)]
        if not self.starts or self.starts[0] != 0 or min(lengths) < 0:
            raise InferError("the grams' starts do not ascend within the pool", given=self.starts)
        if any(length % (n + 1) for n, length in enumerate(lengths)):
            raise InferError("the pool ends within a gram", expected=lengths, given=size)
        count = sum(length // (n + 1) for n, length in enumerate(lengths))
        if len(self.columns) != count or min(self.columns, default=-1) < 0:
            raise InferError("each gram needs a column", expected=count, given=len(self.columns))
        if self.weights is not None and len(self.weights) != count:
            raise InferError("each gram needs a weight", expected=count, given=len(self.weights))
        if not 1 <= self.shortest <= self.longest <= len(self.starts) or self.skips < 0:
            raise InferError(
                "the lengths of grams do not fit the pool",
                expected=f"1..{len(self.starts)}",
                given=f"{self.shortest}..{self.longest}, {self.skips} skipped",
            )

    def table(self) -> dict[tuple[Any, ...], list[int]]:
        """Return the numbers of a gram in the pool, by its tokens."""
        tokens = self.pool.array.reshape(-1).tolist()
        bounds = (*self.starts, len(tokens))
        found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        number = 0
        for n in range(1, len(self.starts) + 1):
            for at in range(bounds[n - 1], bounds[n], n):
                if self.shortest <= n <= self.longest:
                    found[tuple(tokens[at : at + n])].append(number)
                number += 1
        return found

    def reference(self, x: Array) -> Array:
        shape = (*x.shape[:-1], max(self.columns) + 1)
        check_allocation(shape, np.float32)
        table = self.table()
        rows = x.reshape(-1, x.shape[-1]) if x.size else np.empty((0, 0), x.dtype)
        result = np.zeros(shape, np.float64)
        flat = result.reshape(-1, shape[-1])
        for row, tokens in enumerate(rows.tolist()):
            for number, count in self.count(tokens, table).items():
                weight = 1.0 if self.weights is None else self.weights[number]
                flat[row, self.columns[number]] += weight * (1 if self.once else count)
        return result.astype(np.float32)

    def count(self, tokens: list[Any], table: dict[tuple[Any, ...], list[int]]) -> dict[int, int]:
        counts: dict[int, int] = defaultdict(int)
        for n in range(self.shortest, self.longest + 1):
            for step in range(1, 2 if n == 1 else self.skips + 2):
                span = (n - 1) * step + 1
                if span > len(tokens):
                    break
                for at in range(len(tokens) - span + 1):
                    for number in table.get(tuple(tokens[at : at + span : step]), ()):
                        counts[number] += 1
        return counts


def gram_tables(op: Ngrams) -> list[Array]:
    """Return the tables that kernels of n-gram counts read.

    They are the first gram of each column; length and first token of each gram; weights; tokens.
    """
    weights = op.weights or (1.0,) * len(op.columns)
    by_column: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in range(max(op.columns) + 1)]
    for tokens, numbers in op.table().items():
        for number in numbers:
            by_column[op.columns[number]].append((tokens, weights[number]))
    starts = np.cumsum([0, *map(len, by_column)])
    grams = [gram for column in by_column for gram in column]
    lengths = [len(tokens) for tokens, _ in grams]
    places = np.cumsum([0, *lengths])[:-1]
    listed = [t for tokens, _ in grams for t in tokens]
    return [
        starts.astype(np.int64),
        np.array([*lengths, 0], np.int64),
        np.array([*places, 0], np.int64),
        np.array([*(w for _, w in grams), 0.0], np.float64),
        np.array([*listed, 0], np.int64),
    ]
