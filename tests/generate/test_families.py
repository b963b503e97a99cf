"""Decoders of every family and style: the step gives what the export gives with a growing past."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.decoder_weights import preset
from benchmarks.decoders import build

import monograph
from tests.generate.decoders import counting_decoder, plainly

PROMPT = [3, 14, 15, 92, 65, 35, 8]
STYLES = {
    "genai": {},
    "genai, rotary apart": {"fused_rotary": False},
    "optimum": {"style": "optimum"},
    "optimum, merged": {"style": "optimum", "merged": True},
}


@pytest.fixture(params=["reference", "cpu"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2", "tiny-gpt2"])
def test_tokens_are_those_of_the_export(
    family: str, style: str, target: str, tmp_path: Path
) -> None:
    build(tmp_path, family, **STYLES[style])  # type: ignore[arg-type]
    expected = plainly(tmp_path / "model.onnx", PROMPT, 20)
    generator = monograph.Generator(tmp_path, target, max_length=64, stop=())
    assert generator.generate(PROMPT, 20) == expected
    assert len(set(expected)) > 8


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_rows_of_a_batch_do_not_depend_on_each_other(style: str, tmp_path: Path) -> None:
    """Windows and padding: each row has the tokens that it has alone."""
    build(tmp_path, "tiny-gemma2", **STYLES[style])  # type: ignore[arg-type]
    generator = monograph.Generator(tmp_path, "cpu", max_length=64, stop=(), buckets=[8])
    prompts = [PROMPT * 3, PROMPT[:2], PROMPT[1:]]
    alone = [generator.generate(p, 24) for p in prompts]
    assert generator.generate(prompts, 24) == alone
    stop = (alone[0][7], alone[2][11])
    cut = [generator.generate(p, 24, stop=stop) for p in prompts]
    assert len({len(row) for row in cut}) > 1
    assert generator.generate(prompts, 24, stop=stop) == cut


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 31, 40])
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_prompts_of_any_length_go_through_buckets(style: str, length: int, tmp_path: Path) -> None:
    build(tmp_path, "tiny-gemma2", **STYLES[style])  # type: ignore[arg-type]
    prompt = np.random.default_rng(length).integers(0, 512, length).tolist()
    expected = plainly(tmp_path / "model.onnx", prompt, 3)
    generator = monograph.Generator(tmp_path, "reference", max_length=44, stop=(), buckets=[8, 16])
    assert generator.generate(prompt, 3) == expected


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_a_bucket_may_be_as_long_as_the_cache(style: str, tmp_path: Path) -> None:
    build(tmp_path, "tiny-gemma2", **STYLES[style])  # type: ignore[arg-type]
    generator = monograph.Generator(tmp_path, "reference", max_length=24, stop=(), buckets=[24])
    assert generator.engine.buckets == (1, 24)
    prompts = [PROMPT * 3, PROMPT[:3]]
    expected = [plainly(tmp_path / "model.onnx", p, 3) for p in prompts]
    assert generator.generate(prompts, 3) == expected


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_rewinding_keeps_what_lies_before(style: str, tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama", **STYLES[style])  # type: ignore[arg-type]
    generator = monograph.Generator(tmp_path, "reference", max_length=40, stop=())
    prompts = [PROMPT, PROMPT[:3]]
    alone = [generator.generate([*p, 9], 4) for p in prompts]
    generator.reset()
    generator.append_tokens(PROMPT[:3])
    for _ in range(5):
        generator.generate_next_token()
    runs = generator.session.stats["runs"]
    generator.rewind_to(3)
    generator.append_tokens([9])
    assert generator.session.stats["runs"] - runs <= 2
    for _ in range(4):
        generator.generate_next_token()
    assert generator.get_sequence(0).tolist() == [*PROMPT[:3], 9, *alone[1]]
    # Rows of unequal lengths, one of them done before the other goes on.
    generator.reset()
    generator.append_tokens(prompts)
    generator.append_tokens([[9], [9]])
    for _ in range(4):
        generator.generate_next_token()
    found = [generator.get_sequence(b).tolist() for b in range(2)]
    assert found == [[*p, 9, *row] for p, row in zip(prompts, alone, strict=True)]


FORMATS = {"f16": "", "int4": "", "int4-f16-zp": "int4", "int8-nbits": "", "fp8": "", "fp4": ""}


@pytest.mark.parametrize("form", FORMATS)
def test_formats_of_weights(form: str, tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama", preset(form, embedding=FORMATS[form]))
    expected = plainly(tmp_path / "model.onnx", PROMPT, 12)
    generator = monograph.Generator(tmp_path, "cpu", max_length=32, stop=())
    assert generator.generate(PROMPT, 12) == expected
    assert generator.session.stats["host_steps"] == []


def test_a_decoder_of_one_token_at_a_time(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "decoder_with_past_model.onnx")
    expected = plainly(path, [5, 9, 2], 8)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, path)
    generator = monograph.Generator(tmp_path, "reference", max_length=16, stop=())
    assert generator.engine.buckets == (1,)
    assert generator.generate([5, 9, 2], 8) == expected


def test_a_decoder_that_counts_its_positions_itself(target: str, tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "model.onnx")
    expected = plainly(model, [5, 9, 2], 40)
    generator = monograph.Generator(model, target, max_length=46, stop=())
    assert generator.generate([5, 9, 2], 40) == expected
    assert len(set(expected)) > 8
    both = generator.generate([[5, 9, 2], [7, 1, 1]], 12)
    assert both == [generator.generate(p, 12) for p in ([5, 9, 2], [7, 1, 1])]


def test_the_same_with_position_ids_takes_unequal_prompts(tmp_path: Path) -> None:
    model = counting_decoder(tmp_path / "model.onnx", positions=True)
    generator = monograph.Generator(model, "cpu", max_length=46, stop=())
    prompts = [[5, 9, 2, 1, 1], [7, 1]]
    alone = [plainly(model, p, 12) for p in prompts]
    assert generator.generate(prompts, 12) == alone


NAMES = {
    "dots": (r"past_key_values\.(\d)\.(\w+)", r"past.\1.\2", r"present.\1.\2"),
    "kind first": (r"past_key_values\.(\d)\.(\w+)", r"past_\2_\1", r"present_\2_\1"),
    "no past": (r"past_key_values\.(\d)\.(\w+)", r"\2_cache_\1", r"\2_cache_out_\1"),
    "new": (r"past_key_values\.(\d)\.(\w+)", r"past_key_values.\1.\2", r"new.\1.\2"),
    "numbers": (r"past_key_values\.(\d)\.(\w)\w+", r"c\1\2", r"d\1\2"),
}


@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("names", NAMES)
def test_caches_of_any_name(names: str, style: str, tmp_path: Path) -> None:
    """Shapes and readers give the roles of inputs if names do not."""
    build(tmp_path, "tiny-llama", style=style)
    expected = monograph.Generator(tmp_path, "reference", max_length=24, stop=()).generate(
        PROMPT, 12
    )
    (tmp_path / "genai_config.json").unlink(missing_ok=True)
    old, past, present = NAMES[names]
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)

    def renamed(name: str) -> str:
        name = {"input_ids": "ids", "logits": "scores"}.get(name, name)
        out = re.sub(f"^{old.replace('past_key_values', 'present')}$", present, name)
        return re.sub(f"^{old}$", past, out)

    for node in model.graph.node:
        for listed in (node.input, node.output):
            listed[:] = [renamed(name) for name in listed]
    for port in (*model.graph.input, *model.graph.output):
        port.name = renamed(port.name)
    onnx.save(model, tmp_path / "model.onnx")
    generator = monograph.Generator(tmp_path, "reference", max_length=24, stop=())
    kinds = [c.kind for c in generator.engine.decoder.caches]
    assert sorted(kinds) == ["key"] * 2 + ["value"] * 2
    assert generator.generate(PROMPT, 12) == expected


def test_greedy_tokens_of_the_cpu_are_the_references(tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama")
    made = {
        target: monograph.Generator(tmp_path, target, max_length=320, stop=())
        for target in ("reference", "cpu")
    }
    tokens = {t: g.generate(PROMPT, 256) for t, g in made.items()}
    assert tokens["cpu"] == tokens["reference"]
    assert len(tokens["cpu"]) == 256
    assert len(set(tokens["cpu"])) >= 32
    assert made["cpu"].generate(PROMPT, 256, one_launch=True) == tokens["cpu"]
