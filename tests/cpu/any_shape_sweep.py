"""Code for any shape against the reference: every op sample, with many choices of open dimensions.

    python -m tests.cpu.any_shape_sweep                # all of it, some minutes
    python -m tests.cpu.any_shape_sweep --only conv    # ops whose names contain a word

Each dimension is open alone, all are open together, and two random subsets. Each choice runs at the
sizes of the sample, with each open size 1 and with all of them 1, and at two other sizes, where
guards allow that; and each dimension of size 0 or 1 has code of its own where the op allows that.
Addresses are checked. Exits with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from monograph.errors import MonographError, UnsupportedError
from monograph.ir import Graph, TensorType
from monograph.ops import OPS
from monograph.program.legalise.lower_random import random_ops
from tests.cpu.any_shape_cases import open_graph, with_inputs
from tests.samples import SEED, sample_graph

Chosen = Callable[[str, int], bool]
OTHERS = 2
"""Other sizes at which each choice runs."""
REFUSED, EXACT = "refused by the op", "with exact code"
FEW = (0, 1)
"""Sizes that are literals: they have code of their own."""


def dimensions(graph: Graph) -> list[tuple[str, int]]:
    """The dimensions of the inputs that can be open."""
    types = zip(graph.input_names, graph.input_types, strict=True)
    return [
        (name, i)
        for name, t in types
        if isinstance(t, TensorType) and t.is_static
        for i, d in enumerate(t.static)
        if d >= 2
    ]


def choices(graph: Graph, rng: random.Random) -> Iterator[tuple[str, Chosen]]:
    """Choices of open dimensions, with their names."""
    every = dimensions(graph)
    for one in every:
        yield f"{one[0]}.{one[1]}", lambda n, i, one=one: (n, i) == one
    if len(every) > 1:
        yield "all", lambda *_: True
    for number in range(2 if len(every) > 2 else 0):
        some = {one for one in every if rng.random() < 0.5}
        yield f"subset {number}", lambda n, i, some=some: (n, i) in some


def problems(graph: Graph, feeds: dict[str, Any], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Return what came of each choice: a name, and what is wrong or ""."""
    for name, chosen in choices(graph, rng):
        yield name, one_choice(graph, chosen, feeds, rng)
    for one in dimensions(graph):
        for size in FEW:
            yield f"{one[0]}.{one[1]} of size {size}", one_size(graph, one, size, feeds, rng)


def one_size(
    graph: Graph, one: tuple[str, int], size: int, feeds: dict[str, Any], rng: random.Random
) -> str:
    """Return what is wrong where a dimension has a size; REFUSED if the op cannot take it."""

    def shape(name: str, type_: TensorType) -> tuple[int, ...]:
        return tuple(size if (name, i) == one else d for i, d in enumerate(type_.static))

    try:
        resized = with_inputs(graph, shape)
    except MonographError:
        return REFUSED
    types = zip(resized.input_names, resized.input_types, strict=True)
    sized = {n: t.static for n, t in types if isinstance(t, TensorType) and t.is_static}
    given = {n: np.resize(x, sized[n]) if n in sized else x for n, x in feeds.items()}
    return one_choice(resized, lambda *_: True, given, rng)


def one_choice(graph: Graph, chosen: Chosen, feeds: dict[str, Any], rng: random.Random) -> str:
    """Return what is wrong with a choice; "" if nothing is, EXACT if no such code is made."""
    try:
        found = open_graph(graph, chosen)
    except UnsupportedError:
        return EXACT
    if found is None:
        return ""
    others = (found.other_feeds(feeds, rng) for _ in range(20))
    every = [feeds, *found.feeds_of_one(feeds), *[f for f in others if f is not None][:OTHERS]]
    for given in every:
        if wrong := found.problem(given):
            return wrong
    return ""


def sweep(words: list[str]) -> Counter[str]:
    """Run all samples; print what is wrong."""
    counts: Counter[str] = Counter()
    for op, kind in OPS.items():
        if words and not any(w in op for w in words):
            continue
        for number, sample in enumerate(kind.samples):
            graph, feeds = sample_graph(kind, sample)
            if random_ops(graph):
                continue
            for name, wrong in problems(graph, feeds, random.Random(SEED + number)):
                if wrong in ("", REFUSED, EXACT):
                    counts[wrong or "right"] += 1
                else:
                    counts["wrong"] += 1
                    print(f"{op} sample {number}, {name}: {wrong}", flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of ops")
    counts = sweep(parser.parse_args().only)
    print(f"seed {SEED}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
