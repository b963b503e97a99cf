"""Real models on the CPU target: the recorded answers, in one launch.

The tolerances are those that `test_real_models` derives for the reference.
"""

from __future__ import annotations

import json

import pytest

import monograph
from monograph.report.inputs import read_archive, split_archive
from tests.models.test_real_models import RECORDED, SHARED, check

HOST_STEPS = {"silero_vad_v6": {"if"}}
"""What still runs between native functions."""


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_on_the_cpu(name: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    session = monograph.load(folder / "model.onnx", target="cpu")
    arrays = read_archive(folder / "io.npz")
    feeds, expected = split_archive(arrays, session.inputs, session.outputs)
    meta = folder / "meta.json"
    noise = json.loads(meta.read_text())["noopt_rel"] if meta.exists() else 0.0
    check(name, session, feeds, expected, noise)
    stats = session.stats
    assert set(stats["host_steps"]) == HOST_STEPS.get(name, set())
    if not stats["host_steps"]:
        assert stats["launches_per_run"] == 1
