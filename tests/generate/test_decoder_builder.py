"""The benchmark builder's decoders: right beside onnxruntime, in every family, style and format."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.decoder_shapes import SHAPES, Shape, changed, shape_of
from benchmarks.decoder_weights import PRESETS, Format, Matrix, draw, for_nbits, preset
from benchmarks.decoders import build, main

import monograph
from monograph.frontend.onnx.convert.ms_quant import unpack_bits

Array = np.ndarray[Any, Any]
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2", "tiny-gpt2")
FORMS: dict[str, dict[str, Any]] = {
    "fused": {},
    "separate": {"fused_rotary": False},
    "optimum": {"style": "optimum"},
    "merged": {"style": "optimum", "merged": True},
}


def feeds_of(
    inputs: list[str], s: Shape, tokens: list[int], past: int, half: bool
) -> dict[str, Any]:
    """A step after some random past; the first step where there is none."""
    rng = np.random.default_rng(past)
    kind = np.float16 if half else np.float32
    feeds: dict[str, Any] = {}
    for name in inputs:
        if name.startswith("past"):
            feeds[name] = rng.normal(size=(1, s.groups, past, s.head_size)).astype(kind)
    feeds["input_ids"] = np.array([tokens])
    feeds["attention_mask"] = np.ones((1, past + len(tokens)), np.int64)
    if "position_ids" in inputs:
        feeds["position_ids"] = np.arange(past, past + len(tokens))[None]
    if "use_cache_branch" in inputs:
        feeds["use_cache_branch"] = np.array([past > 0])
    return feeds


def peer(folder: Path) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])


def run_peer(session: Any, feeds: dict[str, Any]) -> dict[str, Array]:
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def run_ours(folder: Path, target: str, feeds: dict[str, Any], **options: Any) -> dict[str, Array]:
    session = monograph.load(folder / "model.onnx", target=target, cache_dir="", **options)
    names = [o.name for o in session.outputs]
    return dict(zip(names, session.run(feeds), strict=True))


def assert_close(given: dict[str, Array], right: dict[str, Array], bound: float, why: str) -> None:
    for name, expected in right.items():
        wide = expected.astype(np.float64)
        largest = np.abs(wide).max(initial=1e-30)
        error = np.abs(given[name].astype(np.float64) - wide).max(initial=0.0) / largest
        assert error <= bound, f"{name} {why}: {error:.2e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_all_forms_of_a_family_say_the_same(tmp_path: Path, family: str) -> None:
    s = shape_of(family)
    for tokens, past in (([3, 7, 11], 0), ([5], 20)):
        right: dict[str, Array] = {}
        for form, options in FORMS.items():
            folder = build(tmp_path / form, family, **options)
            session = peer(folder)
            feeds = feeds_of([i.name for i in session.get_inputs()], s, tokens, past, half=False)
            made = run_peer(session, feeds)
            right = right or made
            # The depth of a model times the roundings of its sums, with some room.
            assert_close(made, right, 2e-5, f"of {form}")
            assert_close(run_ours(folder, "reference", feeds), right, 2e-5, f"reference, {form}")


def greedy(session: Any, s: Shape, count: int) -> list[int]:
    inputs = [i.name for i in session.get_inputs()]
    feeds = feeds_of(inputs, s, [5, 9, 13], 0, half=False)
    made: list[int] = []
    for _ in range(count):
        outputs = run_peer(session, feeds)
        made.append(int(outputs["logits"][0, -1].argmax()))
        past = outputs["present.0.key"].shape[2]
        feeds = feeds_of(inputs, s, made[-1:], past, half=False)
        feeds |= {f"past_key_values.{n[8:]}": x for n, x in outputs.items() if n[:8] == "present."}
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_has_variety(tmp_path: Path, family: str) -> None:
    tokens = greedy(peer(build(tmp_path, family)), shape_of(family), 128)
    assert len(set(tokens)) >= 32, tokens


WIDE = replace(SHAPES["tiny-llama"], width=256, heads=8, groups=4, hidden=512, layers=1)
"""Wide enough for every matrix to be worth packing."""
ONLY_OURS = ("fp4", "fp4-f16")
"""onnxruntime has no kernel that decodes these."""


def bound_of(form: Format) -> float:
    """Half precision rounds each of a dozen sums to 11 bits; f32 is near exact beside that."""
    return 2e-5 if form.activations == "f32" else 12 * 2.0**-11


@pytest.mark.parametrize("name", [n for n in PRESETS if PRESETS[n].quantised])
def test_quantised_formats_are_right_and_stay_packed(tmp_path: Path, name: str) -> None:
    """On the reference and the CPU: as the same numbers unquantised, and as onnxruntime has it."""
    form = preset(name)
    half = form.activations == "f16"
    folder = build(tmp_path / "packed", WIDE, form)
    plain = build(tmp_path / "plain", WIDE, replace(form, plain=True))
    inputs = [
        i.name for i in onnx.load(folder / "model.onnx", load_external_data=False).graph.input
    ]
    feeds = feeds_of(inputs, WIDE, [5], 9, half)
    right = run_ours(plain, "reference", feeds)
    assert_close(run_ours(folder, "reference", feeds), right, 0.0, "on the reference")
    session = monograph.load(folder / "model.onnx", target="cpu", cache_dir="")
    names = [o.name for o in session.outputs]
    made = dict(zip(names, session.run(feeds), strict=True))
    assert_close(made, right, bound_of(form), "on the CPU")
    # Scales and zero points are f32 there; what is no matrix is as the file has it.
    count = WIDE.parameters - (WIDE.width * WIDE.vocab if form.head else 0)
    each = 0.5 if form.kind in ("int4", "fp4") else 1.0
    factors = count / (form.block or WIDE.width) * 4 * (2 if form.zero_points else 1)
    unpacked = _bytes_of(plain) - count * (2 if half else 4)
    assert session.stats["constant_bytes"] <= unpacked + count * each + factors * 1.05 + 4096
    assert session.stats["host_steps"] == []
    if name not in ONLY_OURS and not (form.qdq and form.kind.startswith("int")):
        assert_close(made, run_peer(peer(folder), feeds), bound_of(form), "beside onnxruntime")


def _bytes_of(folder: Path) -> int:
    return (folder / "model.onnx.data").stat().st_size


@pytest.mark.parametrize("name", ["int4", "int4-zp"])
def test_a_quantised_embedding(tmp_path: Path, name: str) -> None:
    form = preset(name, embedding="int4")
    folder = build(tmp_path / "packed", "tiny-llama", form)
    plain = build(tmp_path / "plain", "tiny-llama", replace(form, plain=True))
    session = peer(folder)
    s = shape_of("tiny-llama")
    feeds = feeds_of([i.name for i in session.get_inputs()], s, [5, 77], 3, half=False)
    right = run_ours(plain, "reference", feeds)
    assert_close(run_peer(session, feeds), right, 2e-5, "in onnxruntime")
    assert_close(run_ours(folder, "reference", feeds), right, 0.0, "on the reference")
    assert_close(run_ours(folder, "cpu", feeds), right, 2e-5, "on the CPU")


def test_files_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        files = sorted(folder.iterdir())
        assert [f.name for f in files] == ["genai_config.json", "model.onnx", "model.onnx.data"]
        return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()

    first = digest(build(tmp_path / "a", "tiny-llama", "int4-zp"))
    assert first == digest(build(tmp_path / "b", "tiny-llama", "int4-zp"))
    assert first != digest(build(tmp_path / "c", "tiny-llama", "int4-zp", seed=1))


def test_the_config_agrees_with_the_graph(tmp_path: Path) -> None:
    s = shape_of("tiny-gemma2")
    folder = build(tmp_path, "tiny-gemma2", fused_rotary=False)
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    inputs = {i.name for i in graph.input}
    decoder = config["decoder"]
    assert decoder["inputs"]["position_ids"] in inputs
    for layer in range(decoder["num_hidden_layers"]):
        assert decoder["inputs"]["past_key_names"] % layer in inputs
    assert (config["vocab_size"], decoder["head_size"]) == (s.vocab, s.head_size)
    attention = [n for n in graph.node if n.op_type == "GroupQueryAttention"]
    windows = [a.i for n in attention for a in n.attribute if a.name == "local_window_size"]
    assert windows == [s.window, -1]


@pytest.mark.parametrize("name", ["int4", "int4-zp", "int8-nbits-zp", "fp8", "fp4"])
def test_drawn_numbers_have_the_deviation_asked_for(name: str) -> None:
    made = draw(0, "w", (64, 512), 0.25, preset(name))
    real = made.real()
    assert abs(real.std() / 0.25 - 1) < 0.1
    assert abs(real.mean()) < 0.05


def test_packing_keeps_the_codes() -> None:
    form = Format("int4", 32, zero_points=True)
    made: Matrix = draw(0, "w", (6, 80), 1.0, form)
    packed, scales, zeros = for_nbits(made, 32)
    assert (packed.shape, scales.shape) == ((6, 3, 16), (6, 3))
    assert zeros is not None
    np.testing.assert_array_equal(unpack_bits(packed.reshape(6, -1), 4)[:, :80], made.codes)
    np.testing.assert_array_equal(unpack_bits(zeros, 4)[:, :3], made.zeros)


def test_any_shape_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"width": 96, "layers": 1, "heads": 6, "groups": 3, "hidden": 160, "vocab": 300}
    options = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    main([str(tmp_path), "--shape", "tiny-llama", "--format", "int4-32-f16", *options])
    s = replace(SHAPES["tiny-llama"], head_size=16, **sizes)
    assert f"{s.parameters / 1e6:.0f} million" in capsys.readouterr().out
    config = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    decoder = config["decoder"]
    found = {
        "width": decoder["hidden_size"],
        "layers": decoder["num_hidden_layers"],
        "heads": decoder["num_attention_heads"],
        "groups": decoder["num_key_value_heads"],
        "vocab": config["vocab_size"],
    }
    assert found == {name: sizes[name] for name in found}
    assert len(monograph.Generator(tmp_path, "reference", max_length=16).generate([1], 2)) == 2
    for wrong, message in (
        (["--width", "100", "--heads", "3"], "3 heads do not share a width of 100"),
        (["--heads", "4", "--groups", "3"], "3 groups do not share 4 heads"),
        (["--head-size", "15"], "no head_size of 15"),
        (["--layers", "0"], "layers: at least 1"),
        (["--window", "-4"], "window: at least"),
    ):
        with pytest.raises(SystemExit):
            main([str(tmp_path), "--shape", "tiny-llama", *wrong])
        assert message in capsys.readouterr().err


def test_heads_share_groups_as_the_shape_has_them() -> None:
    s = changed(SHAPES["llama-1b"], heads=16)
    assert (s.groups, s.head_size) == (4, 128)
    assert changed(SHAPES["llama-1b"]) == SHAPES["llama-1b"]


def test_unknown_names_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no shape 'llama-7t'; there are llama-1b"):
        build(tmp_path, "llama-7t")
    with pytest.raises(ValueError, match="no format 'int3'; there are f16"):
        build(tmp_path, "tiny-llama", "int3")
    with pytest.raises(ValueError, match="style is genai or optimum"):
        build(tmp_path, "tiny-llama", style="other")
