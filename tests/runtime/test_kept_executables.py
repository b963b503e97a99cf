"""The executables that a session keeps, while many threads run many shapes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.runtime.executable import ANY_SHAPE, EXACT
from monograph.runtime.kept_executables import MOST_BOUND, KeptExecutables

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
rows (float[N, 8] x) => (float[N, 8] y) { a = Relu(x) y = Softmax(a) }
"""
THREADS, RUNS = 6, 250


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def executable(tier: str = EXACT) -> Any:
    return SimpleNamespace(tier=tier, runs=1, specialisations=0, copies=0)


def test_the_least_recently_used_one_is_dropped() -> None:
    kept = KeptExecutables(2)
    for name in "ab":
        kept.keep((name,), executable())
    kept.use(("a",))
    kept.keep(("c",), executable())
    assert [key for key, _ in kept.items()] == [("a",), ("c",)]
    assert kept.find(("a",)) is not None
    kept.keep(("d",), executable())
    assert [key for key, _ in kept.items()] == [("a",), ("d",)]
    assert (kept.added, kept.gone["runs"]) == (4, 2)
    with pytest.raises(KeyError):
        kept.use(("c",))


def test_code_for_any_shape_has_a_limit_of_its_own() -> None:
    kept = KeptExecutables(1)
    kept.keep(("exact",), executable())
    for number in range(MOST_BOUND + 3):
        kept.keep((number,), executable(ANY_SHAPE))
    assert kept.holds(("exact",))
    assert len(kept.items()) == MOST_BOUND + 1
    assert not kept.holds((2,))
    kept.clear()
    assert kept.gone["runs"] == MOST_BOUND + 4


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("specialise", ["off", "auto", "now"])
def test_threads_that_run_other_shapes_do_not_disturb_each_other(specialise: str) -> None:
    """Each thread repeats some sizes, by the fast path, and takes new ones, which drop others."""
    model = onnx.parser.parse_model(TEXT)
    most = 40 if specialise == "now" else 2 * MOST_BOUND
    session = monograph.load(model, specialise=specialise, threads=2, max_cached_shapes=2)
    table = np.random.default_rng(0).random((most, 8), np.float32)
    expected = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    problems: list[BaseException | str] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        try:
            rows = 2
            for number in range(RUNS if specialise != "now" else 12):
                rows = int(draw.integers(2, most)) if number % 3 else rows
                (made,) = session.run({"x": table[:rows]})
                if not np.allclose(made, expected[:rows], rtol=1e-5):
                    problems.append(f"{rows} rows")
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
