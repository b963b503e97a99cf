"""The cases of the sweep of the CPU target: graphs with plain, odd, special and random inputs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.ir import Graph
from monograph.ops import OPS
from monograph.ops.attention import Attention
from monograph.ops.cast import Cast
from monograph.ops.linear import Det
from monograph.ops.quant import Quantize
from monograph.ops.roi import RoiAlign
from monograph.ops.signal import Dft
from monograph.pipeline import PassOptions, optimise
from tests.cpu.odd_shapes import odd_graphs
from tests.fuzz.graphs import random_graph
from tests.rules.checks import EDGES, random_feeds
from tests.samples import SEED, sample_graph

SPECIAL = np.array([*EDGES, 1e-30, 65504.0])
LARGE = np.array([1e12, -1e12, -3e9, 2.0**31, -(2.0**31), 255.5, -128.5])
"""Numbers at and beyond the limits of integers, for ops that round to them."""
KINDS = ("nan", "inf", "-inf", "sparse", "dense")
CHANNELS_LAST = PassOptions({"choose_layout": {"layout": "channels_last"}})


@dataclass(frozen=True)
class Case:
    """A graph as it goes to the CPU target, and inputs for it."""

    name: str
    graph: Graph
    feeds: dict[str, Any]


def samples() -> Iterator[Case]:
    """Every sample of every op."""
    for op in OPS.values():
        for i, sample in enumerate(op.samples):
            yield Case(f"{op.name}-{i}", *sample_graph(op, sample))


def specials() -> Iterator[Case]:
    """Every sample that takes floats, with NaN, infinities and numbers at the edge of casts."""
    for case in samples():
        if not any(_is_float(x) for x in case.feeds.values()) or _unspecified(case.graph):
            continue
        rounds = any(isinstance(v.op, (Cast, Quantize)) for v in case.graph.values)
        numbers = np.concatenate([SPECIAL, LARGE]) if rounds else SPECIAL
        for kind in KINDS:
            yield Case(f"{case.name}-{kind}", case.graph, special_feeds(case.feeds, kind, numbers))


def special_feeds(
    feeds: dict[str, Any], kind: str, numbers: np.ndarray = SPECIAL
) -> dict[str, Any]:
    """The feeds with one special number in each array, or with many."""
    generator = np.random.default_rng(SEED + zlib.crc32(kind.encode()))
    return {
        n: _special(x, kind, numbers, generator) if _is_float(x) else x for n, x in feeds.items()
    }


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fV" and x.size > 0


def _special(
    x: np.ndarray, kind: str, numbers: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    wide = x.astype(np.float64)
    drawn = generator.choice(numbers, x.shape)
    if kind == "dense":
        wide = drawn
    elif kind == "sparse":
        wide = np.where(generator.random(x.shape) < 0.1, drawn, wide)
    else:
        wide.reshape(-1)[generator.integers(x.size)] = float(kind)
    with np.errstate(all="ignore"):
        return np.asarray(wide).astype(x.dtype)


def _unspecified(graph: Graph) -> bool:
    """Tell whether it is left open where a special number shows in the result.

    A transform and a determinant mix it with all elements, some of them multiplied by 0, and so
    does the reference of RoiAlign, whose kernel reads only what a region covers. Attention says
    itself when the value of a key reaches a query that does not see it.
    """
    return any(
        isinstance(v.op, (Det, Dft, RoiAlign))
        or (isinstance(v.op, Attention) and v.op.causal and v.tensor.static[2] > 1)
        for v in graph.values
    )


def odd() -> Iterator[Case]:
    """Shapes with sizes of 0 and 1, primes, no dimension and many."""
    for name, graph in odd_graphs():
        yield Case(name, graph, random_feeds(graph, SEED))


def random(first: int, count: int) -> Iterator[Case]:
    """Random graphs, as the pipeline leaves them."""
    for seed in range(first, first + count):
        graph, feeds = random_graph(seed)
        yield Case(f"seed {seed}", optimise(graph, options=CHANNELS_LAST), feeds)


def random_specials(first: int, count: int) -> Iterator[Case]:
    """Random graphs as they are: rewrites may reassociate, and then promise nothing of these."""
    for seed in range(first, first + count):
        graph, feeds = random_graph(seed)
        for kind in ("nan", "inf", "sparse") if not _unspecified(graph) else ():
            yield Case(f"seed {seed}, {kind}", graph, special_feeds(feeds, kind))
