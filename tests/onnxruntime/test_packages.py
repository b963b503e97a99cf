"""`make dropin`: its packages are pinned, and differences of results are found."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from benchmarks.dropin.__main__ import Outcome, difference, record, show
from benchmarks.dropin.programs import PROGRAMS, Program, plain

PINNED = re.compile(r"[\w-]+==[\w.]+")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_packages_are_pinned(program: Program) -> None:
    assert all(PINNED.fullmatch(need) for need in (program.package, *program.needs))
    assert not any(need.startswith("onnxruntime") for need in program.needs)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2.0], [1, 2.0005]),
        ({"a": ["x", None]}, {"a": ["x", None]}),
        ([math.nan], [math.nan]),
        (True, True),
        ([1000.0], [1000.5]),
    ],
)
def test_results_that_agree(a: Any, b: Any) -> None:
    assert difference(a, b) == ""


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2], [1, 3], "[1]: 2, not 3"),
        ({"a": ["x"]}, {"a": ["y"]}, ".a[0]: 'x', not 'y'"),
        ({"a": 1}, {"b": 1}, ": ['a'], not ['b']"),
        ([1], [1, 2], ": 1 elements, not 2"),
        ([math.nan], [1.0], "[0]: nan, not 1.0"),
        (True, 1.5, ": True, not 1.5"),
        (None, [], ": None, not []"),
    ],
)
def test_results_that_differ(a: Any, b: Any, expected: str) -> None:
    assert difference(a, b) == expected


def test_results_become_plain() -> None:
    given = (np.float32(0.5), {"n": np.arange(2)}, "text", None, {1: True})
    assert plain(given) == [0.5, {"n": [0, 1]}, "text", None, {"1": True}]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([Outcome("magika", "agrees", 0.002, 0.001), Outcome("nudenet", "fails: why")])
    text = capsys.readouterr().out
    assert re.search(r"magika==\S+ +2.00 ms +1.00 ms +2.00x +agrees", text)
    assert "fails: why" in text
    assert "1 of 2 agree; geometric mean 2.00x, slowest magika 2.00x" in text


def test_results_keep_other_packages(tmp_path: pathlib.Path) -> None:
    record([Outcome("magika", "agrees", 0.002, 0.001), Outcome("nudenet", "fails: why")], tmp_path)
    record([Outcome("swift_f0", "agrees", 0.4, 0.2)], tmp_path)
    path = record([Outcome("magika", "agrees", 0.003, 0.001)], tmp_path)
    found = json.loads(path.read_text())
    assert [n.partition("==")[0] for n in found["packages"]] == ["magika", "swift-f0"]
    times = [(row["onnxruntime"], row["monograph"]) for row in found["packages"].values()]
    assert times == [(0.003, 0.001), (0.4, 0.2)]
    assert any(text.startswith("onnxruntime==") for text in found["versions"])
