"""One message names a fault, and no generated token is lost."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.decoders import build

import monograph
from monograph.errors import (
    ConfigError,
    ExecutionError,
    FeedError,
    ModelError,
    UnsupportedError,
)
from tests.cli.calls import call
from tests.generate.decoders import counting_decoder, opened, refused

PROMPT = [3, 14, 15, 92, 65, 35, 8]


# Folders


def test_a_folder_without_a_decoder(tmp_path: Path) -> None:
    refused(tmp_path, ModelError, "there is no decoder in the folder")
    refused(tmp_path / "nowhere", ModelError, "there is no such folder or model")


def test_a_model_that_is_no_decoder(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    node = onnx.helper.make_node("Abs", ["x"], ["y"])
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [result])),
        tmp_path / "model.onnx",
    )
    refused(tmp_path, ModelError, "it must turn tokens into logits")


def test_a_detector_is_told_what_decoders_have(tmp_path: Path) -> None:
    """Whatever its output of three axes is called, it is not what a decoder is asked for."""
    make = onnx.helper.make_tensor_value_info
    value, result = (make(n, onnx.TensorProto.FLOAT, [1, 300, 6]) for n in ("images", "detections"))
    node = onnx.helper.make_node("Abs", ["images"], ["detections"])
    graph = onnx.helper.make_graph([node], "g", [value], [result])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "detector.onnx")
    text = refused(tmp_path, ModelError, "it must turn tokens into logits")
    assert "expected: an input input_ids and an output logits" in text
    assert f"{tmp_path / 'detector.onnx'}: inputs images; outputs detections" in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "NoneType"),
        (5, "int"),
        (b"model.onnx", "bytes"),
        (np.zeros(2), "ndarray"),
        ("", "''"),
    ],
)
def test_what_is_no_path_is_no_decoder(given: Any, told: str) -> None:
    text = refused(given, ModelError, "a decoder must be a folder, or the path of an ONNX file")
    assert f"given: {told}" in text


def test_names_that_no_file_can_have() -> None:
    refused(Path("x" * 5000), ModelError, "cannot be read|no such folder")
    refused(Path("a\0b"), ModelError, "cannot be read|no such folder")


def test_a_decoder_without_a_past(tmp_path: Path) -> None:
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["b", "s"])
    result = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["b", "s", 4])
    table = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "table")
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["logits"])
    graph = onnx.helper.make_graph([node], "g", [ids], [result], [table])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    refused(tmp_path, ModelError, "it has no cache of keys and values")


def test_configurations_that_cannot_be_read(folder: Path) -> None:
    (folder / "genai_config.json").write_text("{")
    refused(folder, ModelError, "the configuration cannot be read")
    (folder / "genai_config.json").write_text("[" * 200_000)
    refused(folder, ModelError, "the configuration cannot be read")
    (folder / "genai_config.json").write_text("[1]")
    refused(folder, ModelError, "must be a JSON object")
    (folder / "genai_config.json").write_text("{}")
    refused(folder, ModelError, "there is no decoder in the folder")


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "genai_config.json"
    config = json.loads(file.read_text())
    change(config["model"])
    file.write_text(json.dumps(config))


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "layers": (lambda m: m["decoder"].update(num_hidden_layers=5), "number of layers differs"),
    "heads": (
        lambda m: m["decoder"].update(num_key_value_heads=4),
        "the number of heads of the cache differs",
    ),
    "size": (lambda m: m["decoder"].update(head_size=64), "the head_size of the cache differs"),
    "vocabulary": (lambda m: m.update(vocab_size=500), "size of the vocabulary differs"),
    "input": (
        lambda m: m["decoder"]["inputs"].update(input_ids="tokens"),
        "names an input that the graph does not have",
    ),
    "cache": (
        lambda m: m["decoder"]["inputs"].update(past_key_names="past.%d.k"),
        "names an input that the graph does not have",
    ),
    "output": (
        lambda m: m["decoder"]["outputs"].update(logits="scores"),
        "names an output that the graph does not have",
    ),
    "file": (lambda m: m["decoder"].update(filename="other.onnx"), "is missing"),
    "kind": (lambda m: m.update(vocab_size="many"), "vocab_size must be an integer"),
    "stop": (lambda m: m.update(eos_token_id="x"), "eos_token_id must be an integer or a list"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_configuration_that_contradicts_the_graph(folder: Path, name: str) -> None:
    change, message = CONTRADICTIONS[name]
    changed(folder, change)
    assert "genai_config.json" in refused(folder, ModelError, message)


def test_more_context_than_there_are_positions(folder: Path) -> None:
    changed(folder, lambda m: m.update(context_length=100_000))
    refused(folder, ModelError, "more than the decoder has positions for", max_length=4096)


def test_a_stop_token_of_the_configuration_that_the_vocabulary_lacks(folder: Path) -> None:
    changed(folder, lambda m: m.update(eos_token_id=[1, 70_000]))
    refused(folder, ConfigError, "no such stop token", stop=None)


def test_a_folder_is_no_model(built: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Is a directory") as caught:
        monograph.load(built)
    assert f"{built / 'model.onnx'}; folders with decoders" in str(caught.value)
    with pytest.raises(ModelError, match="give an ONNX file"):
        monograph.load(tmp_path)


# Graphs


def respelled(folder: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model.graph)
    onnx.save(model, folder / "model.onnx")


def test_wrong_cache_shapes(folder: Path) -> None:
    def flat(graph: onnx.GraphProto) -> None:
        cache = next(i for i in graph.input if i.name == "past_key_values.0.key")
        del cache.type.tensor_type.shape.dim[3]

    respelled(folder, flat)
    assert "past_key_values.0.key" in refused(folder, ModelError, "a cache of an unknown kind")


def test_a_cache_that_nothing_goes_with(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "model.onnx")
    model = onnx.load(path)
    kept = [o for o in model.graph.output if o.name != "present.0.value"]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    onnx.save(model, path)
    refused(path, ModelError, "has no matching output")


def test_caches_that_grow_in_unknown_ways(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "model.onnx", split=True)
    refused(path, UnsupportedError, "the decoder extends its cache in an unknown way")
    path = counting_decoder(tmp_path / "model.onnx", axis=1)
    refused(path, UnsupportedError, "the decoder extends its cache in an unknown way")


def test_inputs_that_a_step_cannot_give(tmp_path: Path) -> None:
    path = counting_decoder(tmp_path / "model.onnx", extra=("images",))
    assert "images" in refused(path, UnsupportedError, "inputs that a step cannot provide")


def test_a_decoder_that_counts_takes_prompts_of_one_length(tmp_path: Path) -> None:
    g = opened(counting_decoder(tmp_path / "model.onnx"))
    with pytest.raises(FeedError, match="sequences of a batch must be equally long"):
        g.generate([[5, 9], [7]], 3)
    assert g.token_count() == 0
    assert len(g.generate([[5, 9], [7, 1]], 3)) == 2


# Prompts and options


def test_prompts_that_are_none(built: Path) -> None:
    g = opened(built)
    for prompt, message in (
        ([], "a prompt must have at least one token"),
        ([[1], []], "a prompt must have at least one token"),
        ([1, 512], "token ids are out of range"),
        ([-1], "token ids are out of range"),
        ([1.5], "a prompt must be a text, or token ids"),
        ([True], "a prompt must be a text, or token ids"),
        (7, "a prompt must be a text, or token ids"),
        (np.zeros((1, 1, 2), np.int64), "a prompt must be a text, or token ids"),
    ):
        with pytest.raises(FeedError, match=message):
            g.generate(prompt, 3)


def test_bad_tokens_leave_the_sequence_as_it_was(built: Path) -> None:
    g = opened(built)
    g.append_tokens(PROMPT)
    g.generate_next_token()
    before = g.get_sequence(0).tolist()
    for bad, message in (
        ([512], "token ids are out of range"),
        ([1] * 40, "the sequence would be longer than the maximum"),
        ([[1], [2]], "must be given for every sequence of the batch"),
    ):
        with pytest.raises(FeedError, match=message):
            g.append_tokens(bad)
        assert g.get_sequence(0).tolist() == before
    g.generate_next_token()
    whole = g.get_sequence(0).tolist()
    assert opened(built).generate(PROMPT, 2) == whole[len(PROMPT) :]


def test_a_prompt_longer_than_the_maximum(built: Path) -> None:
    g = opened(built)
    assert len(g.generate([1] * 31, 1)) == 1
    with pytest.raises(FeedError, match="the prompt is longer than the maximum") as caught:
        g.generate([1] * 32, 1)
    assert "fewer than 32" in str(caught.value)


def test_options_out_of_range(built: Path) -> None:
    refused(built, ConfigError, "max_length is out of range", max_length=1)
    refused(built, ConfigError, "max_length is out of range", max_length=513)
    refused(built, ConfigError, "no such stop token", stop=[512])
    refused(built, ConfigError, "`temperature` is out of range", temperature=-1.0)
    refused(built, ConfigError, "`temperature` is out of range", temperature=float("nan"))
    refused(built, ConfigError, "`top_p` is out of range", top_p=1.5)
    refused(built, ConfigError, "`top_k` must be a count", top_k=-1)
    refused(built, ConfigError, "`repetition_penalty` must be a factor", repetition_penalty=0.0)
    for buckets in ([0], 0, 1.5, "64", [True], [64, None]):
        refused(built, ConfigError, "`buckets` must be lengths", buckets=buckets)
    refused(built, ConfigError, "no such option", tempo=1)
    refused(built, ConfigError, "progress is a function", progress=3)
    with pytest.raises(ConfigError, match="no such keyword argument"):
        opened(built).generate(PROMPT, 3, temprature=1.0)
    with pytest.raises(ConfigError, match="`max_new_tokens` must be an integer"):
        opened(built).generate(PROMPT, 1.5)  # type: ignore[arg-type]


def test_no_tokens_at_all(built: Path) -> None:
    g = opened(built)
    assert g.generate(PROMPT, 0) == []
    assert g.generate([PROMPT, [1]], 0) == [[], []]


def test_nothing_to_go_on_from(built: Path) -> None:
    g = opened(built)
    with pytest.raises(FeedError, match="there are no sequences to continue"):
        g.generate_next_token()
    with pytest.raises(FeedError, match="no such sequence"):
        g.get_sequence(0)
    g.append_tokens(PROMPT)
    with pytest.raises(FeedError, match="rewound to a length that they have"):
        g.rewind_to(99)


# Text


def test_text_without_a_tokenizer(built: Path) -> None:
    with pytest.raises(ConfigError, match="the decoder has none"):
        opened(built).generate("hello", 3)


def test_a_stop_text_without_a_tokenizer_says_what_to_do(built: Path) -> None:
    assert "give stop tokens as ids" in refused(built, ConfigError, "has none", stop="hello")
    result = call("generate", built, "--tokens", "1,2", "--stop", "hello", "--max-length", 32)
    assert result.exit_code == 2
    assert "give stop tokens as ids" in result.stderr
    assert "--tokens" not in result.stderr  # which were given


def test_text_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        opened(folder).generate("hello", 3)
    assert "monograph[llm]" in str(caught.value)
    assert len(opened(folder).generate(PROMPT, 3)) == 3


def test_a_tokenizer_that_cannot_be_read(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="the tokenizer cannot be read"):
        opened(folder).generate("hello", 3)


# Copies


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_generators_are_neither_copied_nor_pickled(built: Path, way: Callable[[Any], Any]) -> None:
    g = opened(built)
    g.append_tokens(PROMPT)
    with pytest.raises(ExecutionError, match="cannot be copied or pickled") as caught:
        way(g)
    assert "make another Generator" in str(caught.value)
    g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + opened(built).generate(PROMPT, 1)


# Runs that fail


@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_a_run_that_fails_loses_nothing(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, "tiny-llama", style=style)
    expected = opened(tmp_path).generate(PROMPT, 6)
    g = opened(tmp_path, buckets=[4])
    g.append_tokens(PROMPT[:2])
    run = g.session.run
    fails = [False, True, False]

    def failing(*given: Any, **options: Any) -> Any:
        if fails and fails.pop(0):
            raise MemoryError
        return run(*given, **options)

    monkeypatch.setattr(g.session, "run", failing)
    with pytest.raises(MemoryError):
        g.append_tokens(PROMPT[2:])
    assert g.get_sequence(0).tolist() == PROMPT
    fails[:] = [False] * (1 if style == "genai" else 2) + [False, False, True]
    for _ in range(3):
        g.generate_next_token()
    with pytest.raises(MemoryError):
        g.generate_next_token()
    made = g.get_sequence(0).tolist()
    assert PROMPT + expected[: len(made) - len(PROMPT)] == made
    while g.token_count() < len(PROMPT) + 6:
        g.generate_next_token()
    assert g.get_sequence(0).tolist() == PROMPT + expected
