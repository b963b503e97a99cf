"""Real models on the CPU target: the recorded answers, in one launch.

The tolerances are those that `test_real_models` derives for the reference.
"""

from __future__ import annotations

import json

import pytest

import monograph
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.report.commands.per_step import verify_steps
from monograph.runtime.inputs import make_inputs
from monograph.runtime.numerics.compare import compare_outputs
from tests.models.cases import ALL_CASES, Case, fetched, left_out
from tests.models.test_real_models import RECORDED, SHARED, check


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
    assert not stats["host_steps"]
    assert stats["launches_per_run"] == 1


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.file)
def test_fetched_models_on_the_cpu(case: Case) -> None:
    """The reference is the oracle: `test_real_models` compares that with ONNX Runtime."""
    if why := left_out(case, few=()):
        pytest.skip(why)
    path = fetched(case.file)
    session = monograph.load(path, target="cpu", dims=case.dims)
    reference = monograph.load(path, target="reference", dims=case.dims)
    feeds = make_inputs(session.inputs, case.feeds, seed=0).feeds
    names = [p.name for p in session.outputs]
    given, expected = (dict(zip(names, s.run(feeds), strict=True)) for s in (session, reference))
    differences = compare_outputs(given, expected, reference.tolerances(feeds))
    assert not [d for d in differences if not d.ok]


@pytest.mark.parametrize(
    "name", ["face_rfb320", "genai_llama_int4", "hf_bert_sdpa", "khmercut_int8", "ppocrv6_rec_tiny"]
)
def test_every_step_agrees_with_the_reference(name: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    request = RunRequest(folder / "model.onnx", "cpu", archive=folder / "io.npz")
    found = verify_steps(request, lambda _: None)
    wrong = found.first_wrong
    assert wrong is None, f"{wrong.step}: {wrong.own}"
    assert found.ok
    assert found.compared == len(found.checks)
