"""Configurations that cannot be right: each is refused in one message that names its file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.decoders import build

from monograph.errors import ConfigError, FeedError, ModelError
from monograph.generate.discover.infer import row_width
from monograph.generate.rewrite.surgery import Surgery
from tests.generate.decoders import opened, refused

PROMPT = [3, 14, 15, 92]
GENAI = "genai_config.json"


def changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / GENAI
    config = json.loads(file.read_text())
    change(config["model"])
    file.write_text(json.dumps(config))


def respelled(folder: Path, change: Callable[[onnx.GraphProto], Any]) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model.graph)
    onnx.save(model, folder / "model.onnx")


# Files


@pytest.mark.parametrize("kind", ["absolute", "above", "around", "link", "linked folder", "loop"])
def test_a_decoder_outside_of_the_folder_is_not_opened(kind: str, folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    shutil.copy(folder / "model.onnx", outside / "model.onnx")
    shutil.copy(folder / "model.onnx.data", outside / "model.onnx.data")
    names = {
        "absolute": str(outside / "model.onnx"),
        "above": "../outside/model.onnx",
        "around": "../outside/../outside/model.onnx",
        "link": "linked.onnx",
        "linked folder": "linked/model.onnx",
        "loop": "circle.onnx",
    }
    (folder / "linked.onnx").symlink_to(outside / "model.onnx")
    (folder / "linked").symlink_to(outside)
    (folder / "circle.onnx").symlink_to(folder / "circle.onnx")
    changed(folder, lambda m: m["decoder"].update(filename=names[kind]))
    # Versions of Python differ in whether a link to itself can be resolved.
    message = "outside of its folder" + ("|is missing" if kind == "loop" else "")
    refused(folder, ModelError, message)


def test_a_decoder_in_a_folder_within(folder: Path) -> None:
    (folder / "onnx").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (folder / name).rename(folder / "onnx" / name)
    changed(folder, lambda m: m["decoder"].update(filename="onnx/model.onnx"))
    assert len(opened(folder).generate(PROMPT, 2)) == 2


def test_a_decoder_in_a_hubs_cache(folder: Path, tmp_path: Path) -> None:
    """The files of a snapshot are links to blobs of the same model."""
    tree = tmp_path / "hub" / "models--owner--decoder"
    (tree / "blobs").mkdir(parents=True)
    snapshot = tree / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, tree / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert opened(snapshot).generate(PROMPT, 2) == opened(folder).generate(PROMPT, 2)


@pytest.mark.parametrize("name", [None, 5, "", ["model.onnx"]])
def test_a_decoder_without_the_name_of_a_file(folder: Path, name: Any) -> None:
    changed(folder, lambda m: m["decoder"].update(filename=name))
    text = refused(folder, ModelError, "does not name the file of the decoder")
    assert "model.decoder.filename" in text
    said = "no filename" if name is None else f"filename: {name!r}"
    assert f"{folder / GENAI}: {said}" in text
    changed(folder, lambda m: m["decoder"].pop("filename"))
    assert "no filename" in refused(folder, ModelError, "does not name the file of the decoder")


def configured(folder: Path) -> None:
    """Puts all that the hub has beside a decoder into a folder: with sizes that no graph has."""
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text('{"vocab_size": 9, "eos_token_id": 3}')
    (folder / "tokenizer.json").write_text("{}")


def test_the_folder_above_is_none_of_the_decoders_business(tmp_path: Path) -> None:
    folder = build(tmp_path / "llama", "tiny-llama", style="optimum")
    configured(tmp_path)
    for given in (folder, folder / "model.onnx"):
        made = opened(given, stop=None)
        assert made.stop_tokens == ()
        with pytest.raises(ConfigError, match="the decoder has none"):
            made.generate("text", 1)


def test_the_folder_above_onnx_belongs_to_the_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "onnx", "tiny-llama", style="optimum")
    configured(tmp_path)
    monkeypatch.chdir(folder)
    for given in (tmp_path, folder, folder / "model.onnx", Path("model.onnx"), Path()):
        text = refused(given, ModelError, "size of the vocabulary differs")
        assert f"9 by {tmp_path / 'config.json'}" in text
    (tmp_path / "config.json").unlink()
    pytest.importorskip("tokenizers")
    for given in (tmp_path, folder, Path("model.onnx")):
        made = opened(given, stop=None)
        assert made.stop_tokens == (3,)
        with pytest.raises(ModelError, match="the tokenizer cannot be read"):
            made.generate("text", 1)


# Names


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"past_key_names": "past_key_values.0.key"}, "the name of a cache must contain %d once"),
        (
            {"past_key_names": "past_key_values.%d.key%d"},
            "the name of a cache must contain %d once",
        ),
        ({"past_key_names": "past_key_values.%s.key"}, "the name of a cache must contain %d once"),
        (
            {"past_key_names": "past_key_values.%d.%%key"},
            "the name of a cache must contain %d once",
        ),
        ({"past_key_names": None}, "names of inputs and outputs must be strings"),
        ({"input_ids": None}, "names of inputs and outputs must be strings"),
        ({"input_ids": 5}, "names of inputs and outputs must be strings"),
        ({"attention_mask": ["a"]}, "names of inputs and outputs must be strings"),
        ({"attention_mask": "%d%d"}, "names an input that the graph does not have"),
        ({"past_value_names": "past_key_values.%d.key"}, "each cache must be named once"),
    ],
)
def test_names_that_are_none(folder: Path, names: dict[str, Any], message: str) -> None:
    changed(folder, lambda m: m["decoder"]["inputs"].update(names))
    assert GENAI in refused(folder, ModelError, message)


def test_names_of_outputs_are_looked_at_too(folder: Path) -> None:
    changed(folder, lambda m: m["decoder"]["outputs"].update(present_key_names="present"))
    assert "outputs.present_key_names" in refused(folder, ModelError, "contain %d once")


@pytest.mark.parametrize("name", ["position", "start", "count", "seed", "tokens", "next", "seen"])
def test_weights_and_values_may_have_names_of_the_step(name: str, folder: Path) -> None:
    expected = opened(folder).generate(PROMPT, 6, repetition_penalty=1.5)

    def rename(graph: onnx.GraphProto) -> None:
        weight = next(t for t in graph.initializer if "norm" in t.name)
        value = next(n for n in graph.node if n.op_type == "MatMul").output[0]
        for old, new in ((weight.name, name), (value, "now_seen")):
            for node in graph.node:
                for names in (node.input, node.output):
                    names[:] = [new if n == old else n for n in names]
        weight.name = name

    respelled(folder, rename)
    assert opened(folder).generate(PROMPT, 6, repetition_penalty=1.5) == expected


# Sizes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads differs"),
        ({"hidden_size": 64}, "hidden_size differs"),
        ({"sliding_window": {"window_size": 4}}, "sliding_window differs"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is too small"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is too small"),
        ({"sliding_window": 4}, "sliding_window must be a JSON object"),
    ],
)
def test_sizes_that_contradict_the_graph(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    changed(folder, lambda m: m["decoder"].update(change))
    assert GENAI in refused(folder, ModelError, message)


def opened_up(folder: Path, axes: tuple[int, ...]) -> None:
    """Leaves sizes of the caches to the configuration, as onnxruntime-genai's builder does."""

    def spell(graph: onnx.GraphProto) -> None:
        for info in (*graph.input, *graph.output):
            if info.name.startswith(("past", "present")):
                for axis in axes:
                    info.type.tensor_type.shape.dim[axis].dim_param = f"kv_cache_dim_{axis}"

    respelled(folder, spell)


@pytest.mark.parametrize("form", ["f32", "int4-f16"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize("axes", [(1,), (3,), (1, 3)])
def test_sizes_that_the_graph_leaves_open_are_those_of_the_weights(
    form: str, family: str, style: str, axes: tuple[int, ...], tmp_path: Path
) -> None:
    folder = build(tmp_path, family, form, style=style)
    expected = opened(folder).generate(PROMPT, 2)
    opened_up(folder, axes)
    right = {"num_key_value_heads": 4 if family == "tiny-gpt2" else 2, "head_size": 32}
    file = folder / (GENAI if style == "genai" else "config.json")

    def say(sizes: dict[str, int]) -> None:
        if style == "genai":
            changed(folder, lambda m: m["decoder"].update(sizes))
        else:
            hub = {"num_attention_heads": 4, **sizes, "head_dim": sizes["head_size"]}
            file.write_text(json.dumps(hub))

    say(right)
    assert opened(folder).generate(PROMPT, 2) == expected
    for wrong in ({"num_key_value_heads": 8}, {"head_size": 64}):
        say({**right, **wrong})
        text = refused(folder, ModelError, "the configuration contradicts the graph: .* differs")
        assert f"by {file}" in text


SPLITS: dict[str, tuple[list[Any], int | None]] = {
    "one product": ([("MatMul", ["x", "w"], ["new"], {})], 96),
    "turned weights": ([("Gemm", ["x", "w", "b"], ["new"], {"transB": 1})], 64),
    "equal parts": (
        [("MatMul", ["x", "w"], ["all"], {}), ("Split", ["all"], ["q", "new", "v"], {})],
        32,
    ),
    "parts that are told": (
        [("MatMul", ["x", "w"], ["all"], {}), ("Split", ["all", "parts"], ["q", "new", "v"], {})],
        16,
    ),
    "parts that are not": (
        [("MatMul", ["x", "w"], ["all"], {}), ("Split", ["all", "x"], ["q", "new", "v"], {})],
        None,
    ),
    "repeated": (
        [("MatMul", ["x", "w"], ["y"], {}), ("Expand", ["y", "parts"], ["new"], {})],
        None,
    ),
    "a circle": ([("Identity", ["y"], ["new"], {}), ("Identity", ["new"], ["y"], {})], None),
    "no inputs": ([("Identity", [], ["new"], {})], None),
}


@pytest.mark.parametrize("name", SPLITS)
def test_the_width_of_rows_is_only_told_where_it_is_certain(name: str) -> None:
    nodes, expected = SPLITS[name]
    nodes = [*nodes, ("Concat", ["past", "new"], ["present"], {"axis": 2})]
    made = [onnx.helper.make_node(op, a, b, **more) for op, a, b, more in nodes]
    weights = [onnx.TensorProto(name="w", data_type=1, dims=[64, 96])]
    weights.append(onnx.helper.make_tensor("parts", onnx.TensorProto.INT64, [3], [64, 16, 16]))
    graph = onnx.helper.make_graph(made, "g", [], [], weights)
    assert row_width(Surgery(onnx.helper.make_model(graph)), "past") == expected


@pytest.mark.parametrize("context", [-5, 0, 1])
def test_a_context_without_room(folder: Path, context: int) -> None:
    changed(folder, lambda m: m.update(context_length=context))
    for length in (None, 32):
        text = refused(folder, ModelError, "context_length is too small", max_length=length)
        assert GENAI in text


def test_a_window_that_the_graph_has_is_right(tmp_path: Path) -> None:
    build(tmp_path, "tiny-gemma2")
    changed(tmp_path, lambda m: m["decoder"].update(sliding_window={"window_size": 16}))
    assert len(opened(tmp_path).generate(PROMPT, 2)) == 2


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("style", [{}, {"fused_rotary": False}])
def test_more_context_than_positions_says_what_to_do(
    family: str, style: dict[str, Any], tmp_path: Path
) -> None:
    folder = build(tmp_path, family, **style)
    changed(folder, lambda m: m.update(context_length=100_000))
    text = refused(folder, ModelError, "more than the decoder has positions for", max_length=None)
    assert "max_length=512" in text
    assert opened(folder, max_length=512).max_length == 512
    changed(folder, lambda m: m.pop("context_length"))
    assert opened(folder, max_length=None).max_length == 512


@pytest.mark.parametrize("style", ["genai", "optimum"])
@pytest.mark.parametrize(("axis", "size"), [(1, 3), (3, 16)])
def test_caches_of_wrong_shapes_without_a_configuration(
    style: str, axis: int, size: int, tmp_path: Path
) -> None:
    build(tmp_path, "tiny-llama", style=style)
    (tmp_path / GENAI).unlink(missing_ok=True)

    def widen(graph: onnx.GraphProto) -> None:
        cache = next(i for i in graph.input if i.name == "past_key_values.1.value")
        cache.type.tensor_type.shape.dim[axis].dim_value = size

    respelled(tmp_path, widen)
    text = refused(tmp_path, ModelError, "must have the same shape as input and output")
    assert "past_key_values.1.value" in text


# Stop tokens


@pytest.mark.parametrize("token", [70_000, -1])
def test_stop_tokens_that_the_vocabulary_lacks_name_their_file(token: int, folder: Path) -> None:
    changed(folder, lambda m: m.update(eos_token_id=[1, token]))
    text = refused(folder, ConfigError, "no such stop token", stop=None)
    assert f"{token} in {folder / GENAI}" in text
    assert opened(folder, stop=[3]).stop_tokens == (3,)


def test_the_file_of_a_plain_decoders_stop_tokens(tmp_path: Path) -> None:
    build(tmp_path, "tiny-llama", style="optimum")
    (tmp_path / "config.json").write_text('{"vocab_size": 512, "eos_token_id": 9999}')
    text = refused(tmp_path, ConfigError, "no such stop", stop=None)
    assert f"9999 in {tmp_path / 'config.json'}" in text
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 8888}')
    text = refused(tmp_path, ConfigError, "no such stop", stop=None)
    assert f"8888 in {tmp_path / 'generation_config.json'}" in text


@pytest.mark.parametrize("with_config", [False, True])
def test_generation_config_is_read_with_and_without_config(
    with_config: bool, tmp_path: Path
) -> None:
    build(tmp_path, "tiny-llama", style="optimum")
    generation = tmp_path / "generation_config.json"
    if with_config:
        (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    generation.write_text('{"eos_token_id": [7, 8]}')
    assert opened(tmp_path, stop=None).stop_tokens == (7, 8)
    generation.write_text('{"eos_token_id": null}')
    assert opened(tmp_path, stop=None).stop_tokens == ((5,) if with_config else ())
    for content, message in (
        ("{", "the configuration cannot be read"),
        ("[7]", "must be a JSON object"),
        ('{"eos_token_id": "</s>"}', "eos_token_id must be an integer or a list"),
    ):
        generation.write_text(content)
        assert str(generation) in refused(tmp_path, ModelError, message)


def test_a_stop_text_may_be_spelled_as_it_is_read(folder: Path) -> None:
    """A vocabulary has its spaces spelled in its own way: what the text is encoded as counts."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "▁pro": 1, "▁": 2, "p": 3, "r": 4, "o": 5}
    model = tokenizers.models.WordLevel(words, "<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    made.save(str(folder / "tokenizer.json"))
    assert opened(folder, stop=" pro").stop_tokens == (1,)
    assert opened(folder, stop="▁pro").stop_tokens == (1,)
    for text in ("no", " pro pro"):
        assert opened(folder, stop=[text, 3]).stop_texts == (text,)
        assert opened(folder, stop=[text, 3]).stop_tokens == (3,)
    for text in ("", "\ud800"):
        refused(folder, ConfigError, "no such stop token", stop=text)


def words(folder: Path) -> None:
    """Give a decoder a tokenizer whose tokens are the words w0, w1, ..."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({f"w{i}": i for i in range(512)}, "w0")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))


def test_a_text_of_several_tokens_ends_a_sequence(folder: Path) -> None:
    words(folder)
    g = opened(folder)
    prompt = " ".join(f"w{t}" for t in PROMPT)
    whole = g.generate(PROMPT, 8)
    stop = f"w{whole[3]} w{whole[4]}"
    at = next(i for i in range(1, 8) if whole[i - 1 : i + 1] == whole[3:5])
    assert g.generate(PROMPT, 8, stop=stop) == whole[: at + 1]
    assert g.finish_reason() == "stop"
    before = " ".join(f"w{t}" for t in whole[: at - 1])
    assert g.generate(prompt, 8, stop=stop).strip() == before
    assert "".join(g.stream(prompt, 8, stop=[stop])).strip() == before
    assert list(g.stream(PROMPT, 8, stop=stop)) == whole[: at + 1]
    # Of two sequences each ends by itself.
    both = g.generate([PROMPT, PROMPT[:1]], 8, stop=stop)
    assert both[0] == whole[: at + 1]
    assert g.generate(PROMPT, 8) == whole  # the override is over
    assert g.generate(PROMPT, 8, stop=f"w{whole[4]} w{whole[3]} never") == whole


def test_one_launch_refuses_texts_of_several_tokens(folder: Path) -> None:
    words(folder)
    with pytest.raises(ConfigError, match="stop tokens only"):
        opened(folder).generate(PROMPT, 3, stop="w1 w2", one_launch=True)
    assert len(opened(folder).generate(PROMPT, 3, stop="w1", one_launch=True)) <= 3


def test_check_refuses_what_generate_would_and_runs_nothing(built: Path) -> None:
    g = opened(built)
    g.append_tokens(PROMPT)
    runs = g.session.stats["runs"]
    for prompt, overrides, kind in (
        ([512], {}, FeedError),
        ([1] * 32, {}, FeedError),
        ([1], {"stop": 512}, ConfigError),
        ([1], {"temperature": -1.0}, ConfigError),
        ([1], {"temprature": 1.0}, ConfigError),
    ):
        with pytest.raises(kind):
            g.check(prompt, **overrides)
    g.check([[1, 2], [3]], stop=[1], temperature=1.0, one_launch=True)
    assert g.session.stats["runs"] == runs
    assert g.get_sequence(0).tolist() == PROMPT
