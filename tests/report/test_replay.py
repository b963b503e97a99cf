"""verify --replay: runs that keep something of earlier runs are found, others are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.report.commands import replay
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.replay import differing, verify_replay
from monograph.session import Session
from tests.cli.calls import call, call_json
from tests.report import models

TWO = """
<ir_version: 9, opset_import: ["" : 18]>
two (float[N, 3] a, float[N, 3] b) => (float[N, 3] y)
{
    d = Sub(a, b)
    y = Exp(d)
}
"""
SEEDED = """
<ir_version: 9, opset_import: ["" : 18]>
noisy (float[4] x) => (float[4] y)
{
    r = RandomNormalLike <seed = 3.0> (x)
    y = Add(x, r)
}
"""


def quietly(_: str) -> None:
    pass


def test_native_code_gives_the_same_bits_again(tmp_path: Path) -> None:
    found = verify_replay(RunRequest(models.save(TWO, tmp_path), "cpu"), quietly)
    assert found.ok
    names = {c.name: c.runs for c in found.cases}
    assert names["arrays of the host"] == replay.RANDOM_INPUTS
    assert names["inputs in another order"] == 2
    assert names["two shapes in turns"] == 4


def test_results_that_a_later_run_writes_over_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(TWO, tmp_path)
    right = Session.run
    kept: dict[int, dict[Any, Any]] = {}

    def stale(self: Session, feeds: Any, *rest: Any, **more: Any) -> Any:
        """The same memory for every result, as a careless replay has it."""
        made = right(self, feeds, *rest, **more)
        held = kept.setdefault(id(self), {}).setdefault(made[0].shape, made)
        for old, new in zip(held, made, strict=True):
            old[...] = new
        return held

    monkeypatch.setattr(Session, "run", stale)
    found = verify_replay(RunRequest(path, "cpu"), quietly)
    assert not found.ok
    assert found.cases[0].problems, "the last input's results were all there was in the end"
    assert found.cases[0].problems[0].endswith("y: 3 of 3 elements have other bits")


def test_other_bits_of_equal_numbers_count(tmp_path: Path) -> None:
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert differing({"y": zero}, {"y": zero.copy()}) == []
    assert differing({"y": -zero}, {"y": zero}) == ["y: 3 of 3 elements have other bits"]
    assert differing({"y": zero}, {"y": one[:2]}) == ["y: float32[3] for float32[2]"]
    assert differing({"y": [one, None]}, {"y": [one, None]}) == []
    assert differing({"y": one, "z": one}, {"y": one}) == ["z is on one side only"]
    words = np.array(["a", "b"], object)
    assert differing({"y": words}, {"y": words[::-1]}) == ["y: 2 of 2 elements have other bits"]
    assert differing({"y": zero[:0]}, {"y": zero[:0]}) == []


def test_numbers_that_are_drawn_are_compared_where_they_have_a_seed(tmp_path: Path) -> None:
    assert verify_replay(RunRequest(models.save(SEEDED, tmp_path), "cpu"), quietly).ok
    with pytest.raises(ConfigError, match="without a seed"):
        verify_replay(RunRequest(models.save(models.RANDOM, tmp_path), "cpu"), quietly)


def test_runs_that_were_not_captured_are_no_success() -> None:
    def problems(**stats: Any) -> list[str]:
        return list(replay._not_replayed(stats, 3))

    assert problems(replays=3, fallbacks={}) == []
    assert problems(replays=0, fallbacks={}) == ["no run was one launch"]
    one = "1 run took more than one launch: out of memory"
    assert problems(replays=3, fallbacks={"out of memory": 1}) == [one]
    none = ["no run was one launch"]
    assert problems(replays=6, fallbacks={"strings": 3})[1:] == none
    assert problems(replays=0, fallbacks={"strings": 3})[1:] == none


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (models.SPLIT, (), "the host takes part in a run: cast (written), cast (read)"),
        (models.SIZED, (), "non_zero (found): data decide its size"),
        (TWO, ("--capture", "off"), "nothing is replayed with --capture off"),
    ],
)
def test_nothing_replayed_is_no_success_on_the_cpu_either(
    text: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    result = call("verify", models.save(text, tmp_path), "--replay", *options)
    assert result.exit_code == 1
    assert words in result.stdout
    counted = re.search(r"(\d+) launch(es)? of \d+ native function", result.stdout)
    assert counted is not None
    if "--capture" in options:
        assert counted[1] == "0", "what is said is what was counted"
    else:
        assert "no run was one launch" in result.stdout
    assert not re.search(r"captures|replays \d|rebinds", result.stdout), "words of GPU graphs"


def test_cases_without_runs_are_named(tmp_path: Path) -> None:
    path, recorded = models.save(TWO, tmp_path), tmp_path / "recorded.npz"
    np.savez(recorded, a=np.ones((2, 3), np.float32), b=np.ones((2, 3), np.float32))
    found = call_json("verify", path, "--replay", "--inputs", recorded)
    assert found["ok"]
    assert [c.partition(":")[0] for c in found["left_out"]] == ["two shapes in turns"]
    assert (
        "left out, two shapes in turns" in call("verify", path, "--replay", "--dim", "N=2").stdout
    )
    assert call_json("verify", path, "--replay")["left_out"] == []


def test_the_command_exits_as_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(TWO, tmp_path)
    result = call("verify", path, "--replay")
    assert result.exit_code == 0
    assert "gave the same bits" in result.stdout
    assert "16 launches of 2 native functions" in result.stdout
    assert call_json("verify", path, "--replay")["ok"]
    monkeypatch.setattr(replay, "differing", lambda *_: ["y: 1 of 3 elements have other bits"])
    result = call("verify", path, "--replay")
    assert result.exit_code == 1
    assert "outputs differ" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--against", "onnxruntime"), "leave out --against"),
        (("--per-step",), "--per-step"),
        (("--target", "reference"), "nothing to replay"),
        (("--bisect",), "leave out"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    result = call("verify", models.save(TWO, tmp_path), "--replay", *options)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_option_reaches_the_session(tmp_path: Path) -> None:
    path = models.save(TWO, tmp_path)
    assert call("run", path, "--capture", "off").exit_code == 0
    for command in ("run", "bench", "verify", "profile"):
        result = call(command, path, "--capture", "perhaps")
        assert result.exit_code == 2, command
        assert "auto | off | require" in result.stderr, command
