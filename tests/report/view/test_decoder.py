"""monograph view of a folder with a decoder: one step of its file, and the rate by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from benchmarks.decoders import build

import monograph
from monograph.generate.discover.example import example_step
from monograph.generate.discover.folder import find_decoder
from monograph.report.view import charts
from tests.cli.calls import call_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that leaves the width of its caches open, as onnxruntime-genai's builder does."""
    made = build(tmp_path_factory.mktemp("decoder"), "tiny-llama")
    (file,) = made.glob("*.onnx")
    proto = onnx.load(file, load_external_data=False)
    for port in proto.graph.input:
        if port.name.startswith("past"):
            port.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    onnx.save(proto, file)
    return made


def test_a_decoder_is_shown_at_its_largest_position(folder: Path) -> None:
    found: dict[str, Any] = call_json("view", folder, "--positions", "4,24")
    assert [p["position"] for p in found["decoding"]["positions"]] == [4, 24]
    assert found["facts"]["steps_wrong"] == 0
    sizes = found["facts"]["sizes"]
    assert "i64[1, 25]" in sizes, "the mask has the past and the token"
    assert "f32[1, 2, 24, 32]" in sizes
    picture = charts.decoding(found["decoding"])
    words = [t for t in ElementTree.fromstring(picture).iter() if t.tag.endswith("}text")]
    (first,) = [t for t in words if "tokens/s" in (t.text or "") and float(t.get("x")) < 500]
    assert first.get("text-anchor") in ("start", "middle"), "no words lie left of the picture"
    assert {"4", "24"} <= {t.text for t in words}


@pytest.mark.parametrize("options", [["--no-run"], ["--target", "gpu:sm_90"]])
def test_a_decoder_that_is_not_run_has_no_rates(folder: Path, options: list[str]) -> None:
    found = call_json("view", folder, *options)
    assert "decoding" not in found
    assert found["steps"]
    assert "f32[1, 2, 16, 32]" in found["facts"]["sizes"]


def test_sizes_of_the_caller_replace_those_of_the_example(folder: Path) -> None:
    sizes = {"kv_cache_dim": 32, "past_sequence_length": 7, "total_sequence_length": 8}
    dims = [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    found = call_json("view", folder, "--no-run", *dims)
    assert "f32[1, 2, 7, 32]" in found["facts"]["sizes"]


def test_the_example_fits_and_repeats(folder: Path) -> None:
    settings = find_decoder(folder)
    one, same, other = (example_step(settings, 5, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one[n], same[n]) for n in one)
    assert any(not np.array_equal(one[n], other[n]) for n in one)
    assert monograph.load(settings.model, "reference").run(one)[0].shape[:2] == (1, 1)
