"""The picture of runs before and after capture, from intervals made up here."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.timeline import MARK, runs_in, typical
from benchmarks.timeline_svg import (
    DEVICE,
    HOST,
    LEFT,
    Interval,
    RunTimeline,
    as_json,
    covered,
    draw,
    from_json,
    tick,
)

SPACE = "{http://www.w3.org/2000/svg}"


def eager() -> RunTimeline:
    launches = tuple(Interval("cuLaunchKernelEx", 10.0 * i, 10.0 * i + 4) for i in range(5))
    work = tuple(Interval(f"<dot{i}>", 10.0 * i + 5, 10.0 * i + 9) for i in range(5))
    return RunTimeline("eager", Interval("run", 0, 60), launches, work)


def replay() -> RunTimeline:
    work = tuple(Interval(f"dot{i}", 8.0 + 2 * i, 11.0 + 2 * i, i % 2) for i in range(5))
    return RunTimeline("replay", Interval("run", 0, 8), (Interval("graph", 3, 7),), work)


def test_time_that_is_covered_twice_counts_once() -> None:
    assert covered([Interval("a", 0, 4), Interval("b", 2, 5), Interval("c", 8, 9)]) == 6
    assert covered([Interval("a", 0, 9), Interval("b", 2, 5)]) == 9
    assert covered([]) == 0


def test_a_run_is_told_in_a_line() -> None:
    assert eager().text == (
        "eager: 5 launches, 5 pieces of work; 60 us of the host, done after 60 us, device busy 41%"
    )
    assert replay().text.startswith("replay: 1 launch, 5 pieces of work; 8 us of the host")


@pytest.mark.parametrize(("longest", "step"), [(60, 10), (8, 1), (81, 20), (1000, 200), (0.5, 0.1)])
def test_the_axis_has_round_marks(longest: float, step: float) -> None:
    assert tick(longest) == pytest.approx(step)


def blocks(text: str, colour: str) -> list[tuple[float, float]]:
    """Return where blocks of a colour begin and how wide they are; the legend is not among them."""
    root = ElementTree.fromstring(text)
    rects = [r for r in root.iter(f"{SPACE}rect") if r.get("fill") == colour]
    return [(float(r.get("x", 0)), float(r.get("width", 0))) for r in rects if len(r)]


def test_both_runs_are_on_one_axis() -> None:
    text = draw([eager(), replay()], "some <model>")
    host, device = blocks(text, HOST), blocks(text, DEVICE)
    assert len(host) == 5 + 1
    assert len(device) == 5 + 5
    scale = (host[1][0] - host[0][0]) / 10
    assert host[0][0] == LEFT
    assert device[0] == (
        pytest.approx(LEFT + 5 * scale, abs=0.01),
        pytest.approx(4 * scale, abs=0.01),
    )
    assert device[5][0] == pytest.approx(LEFT + 8 * scale, abs=0.01), "of the other run"
    assert "some &lt;model&gt;" in text
    assert "&lt;dot0&gt;" in text


def test_what_is_too_short_to_be_seen_is_seen() -> None:
    quick = RunTimeline("q", Interval("run", 0, 1e4), (), (Interval("k", 5, 5.001),))
    assert blocks(draw([quick]), DEVICE)[0][1] > 0.5


def test_recordings_come_back_from_json() -> None:
    runs = [eager(), replay()]
    assert from_json(json.loads(json.dumps(as_json(runs)))) == runs


def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args}


def test_runs_are_found_in_a_trace() -> None:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    for number, start in enumerate((1000.0, 2000.0, 3000.0)):
        length = 50.0 + number
        events += [
            event(MARK, "user_annotation", start, length),
            event(MARK, "gpu_user_annotation", start + 5, 20),
            event("cuLaunchKernelEx", "cuda_driver", start + 1, 4),
            event("cuStreamIsCapturing", "cuda_driver", start + 6, 1),
            event("cudaMemcpyAsync", "cuda_runtime", start + 8, 2),
            event("cudaDeviceSynchronize", "cuda_runtime", start + 60, 40),
            event("dot_kernel", "kernel", start + 7, 10, stream=7),
            event("other", "kernel", start + 9, 10, stream=13),
            event("copy", "gpu_memcpy", start + 70, 5, stream=7),
        ]
    runs = runs_in({"traceEvents": events}, "eager")
    assert [run.call.end for run in runs] == [51, 52], "the first is a warm-up"
    run = typical(runs)
    assert [x.name for x in run.launches] == ["cuLaunchKernelEx", "cudaMemcpyAsync"]
    assert [(x.name, x.start, x.lane) for x in run.work] == [
        ("dot_kernel", 7, 0),
        ("other", 9, 1),
        ("copy", 70, 0),
    ]
    assert run.end == 75


def test_a_trace_without_runs_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no run"):
        typical(runs_in({"traceEvents": []}, "eager"))
