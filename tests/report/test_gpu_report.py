"""The GPU benchmarks' table and plot, from figures made up here."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.gpu import _note
from benchmarks.gpu_report import peers, plot, ratio, tables


def figures(device: float, **others: Any) -> dict[str, Any]:
    rest = {"copies": 0.25, "sm_mhz": 1980.0, "kernels": 4, "error": 1e-3, "seconds_to_make": 2.0}
    whole = {"device_us": device, "synced_us": 2 * device, "end_to_end_us": 4 * device}
    return {**whole, **rest, **others}


@pytest.fixture
def record() -> dict[str, Any]:
    fast = {"monograph": figures(10.0), "torch eager": figures(40.0), "torch.compile": figures(5.0)}
    return {
        "date": "2026-01-02",
        "device": "a <GPU>",
        "python": "3.12",
        "versions": {"torch": "2"},
        "precision": "f16",
        "tune": "fast",
        "torch_compile_mode": "default",
        "models": {
            "first": {"contenders": fast, "failed": {}},
            "second": {
                "contenders": {"monograph": figures(10.0, error=None, sm_mhz=None)},
                "failed": {"torch eager": "RuntimeError: no"},
            },
            "third": {"contenders": {}, "failed": {"all": "no time was left"}},
        },
    }


def test_ratios_are_those_of_device_times(record: dict[str, Any]) -> None:
    assert peers(record) == ["torch eager", "torch.compile"]
    assert ratio(record["models"]["first"], "torch eager") == 4.0
    assert ratio(record["models"]["first"], "torch.compile") == 0.5
    assert ratio(record["models"]["second"], "torch eager") is None
    assert ratio(record["models"]["third"], "torch eager") is None


def test_the_table_shows_what_was_measured_and_what_was_not(record: dict[str, Any]) -> None:
    text = tables(record)
    row = next(line for line in text.splitlines() if line.startswith("| first"))
    cells = [c.strip() for c in row.strip("| ").split("|")]
    assert cells == ["first", "10.0", "40.0", "5.0", "4.00", "0.50", "4"]
    assert "- second, torch eager: RuntimeError: no" in text
    assert "- third, all: no time was left" in text
    assert "| geometric mean" in text
    assert "1980" in text


def test_the_plot_is_svg_with_a_bar_for_each_ratio(record: dict[str, Any]) -> None:
    root = ElementTree.fromstring(plot(record))
    space = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in root.iter(f"{space}text")]
    assert {"first", "second", "third", "4.00", "0.50"} <= set(texts)
    assert len(list(root.iter(f"{space}rect"))) == 1 + 2 + 2  # ground, legend, bars


def test_lines_of_a_child_add_up() -> None:
    result: dict[str, Any] = {"contenders": {}, "failed": {}}
    for line in (
        "some library says hello",
        '{"contender": "a", "device_us": 1.0, "kernels": null}',
        '{"contender": "b", "failed": "RuntimeError: no"}',
        '{"contender": "a", "kernels": 7}',
        '{"model_seconds": 3.0}',
        "3",
    ):
        _note(result, line)
    assert result == {
        "contenders": {"a": {"device_us": 1.0, "kernels": 7}},
        "failed": {"b": "RuntimeError: no"},
        "model_seconds": 3.0,
    }
