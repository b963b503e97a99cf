"""Finds a decoder and reads the files beside it: sizes, stop tokens, tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monograph.errors import ModelError
from monograph.frontend.safe_open import BLOBS, hub_tree

GENAI, CONFIG, GENERATION = "genai_config.json", "config.json", "generation_config.json"
TOKENIZER = "tokenizer.json"
WITHIN = "onnx"
"""The sub-folder of a hub model that holds the decoders."""
_MODELS = (
    "model.onnx",
    "decoder_model_merged.onnx",
    "decoder_with_past_model.onnx",
    "model_fp16.onnx",
    "model_q4.onnx",
)
"""File names of decoders with a past, as exporters write them; the first that exists counts."""


LAYERED = tuple(f"{side}_{kind}_names" for side in ("past", "present") for kind in ("key", "value"))
"""Configuration entries whose names contain the layer number."""


@dataclass(frozen=True)
class Settings:
    """The file of a decoder, and what its configuration states."""

    model: Path
    source: str = ""
    """The path of the configuration file."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Names of the graph's inputs by role, from the configuration."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    layers: int | None = None
    heads: int | None = None
    """The number of heads of keys and values."""
    head_size: int | None = None
    vocabulary: int | None = None
    context: int | None = None
    stop: tuple[int, ...] = ()
    tokenizer: Path | None = None
    stop_source: str = ""
    """The path of the file that lists the stop tokens."""
    query_heads: int | None = None
    hidden: int | None = None
    """The width of the values between layers."""
    window: int | None = None
    """The window of attention in some layers."""


def find_decoder(given: str | os.PathLike[str]) -> Settings:
    """Find the decoder in a folder, or at a path."""
    path = _path(given)
    folder = path if path.is_dir() else path.parent
    named = None if path.is_dir() else path
    genai = folder / GENAI
    if _is(genai) and (named is None or named.name == _decoder(genai).get("filename")):
        return _from_genai(folder)
    return _from_config(named or _find_model(folder))


def _path(given: Any) -> Path:
    """Return the given path; raise an error if it is none, or does not exist."""
    try:
        text = os.fspath(given)
        if not isinstance(text, str) or not text:
            raise TypeError
    except TypeError:
        raise ModelError(
            "a decoder must be a folder, or the path of an ONNX file",
            expected="a path",
            given=repr(given) if isinstance(given, str) else type(given).__name__,
        ) from None
    path = Path(text)
    try:
        there = path.exists()
    except (OSError, ValueError) as e:  # names that no file can have, folders without permission
        raise ModelError(
            f"the folder or model cannot be read: {getattr(e, 'strerror', None) or e}",
            given=text if len(text) < 200 else text[:200] + "...",
        ) from e
    if not there:
        raise ModelError("there is no such folder or model", given=str(path))
    return path


def _beside(folder: Path, name: str) -> Path | None:
    """Find a file beside a decoder: in its folder, or in the one that contains it as `onnx/`."""
    whole = Path(os.path.abspath(folder))
    places = (folder, whole.parent) if whole.name == WITHIN else (folder,)
    return next((place / name for place in places if _is(place / name)), None)


def _is(path: Path) -> bool:
    return path.is_file()


def _find_model(folder: Path) -> Path:
    places = [d / name for d in (folder, folder / WITHIN) for name in _MODELS]
    found = [f for f in places if _is(f)] or sorted(folder.glob("*.onnx"))
    if not found:
        raise ModelError(
            "there is no decoder in the folder",
            expected=f"{GENAI}, or one of {', '.join(_MODELS[:3])}",
            given=str(folder),
            hint="export it with onnxruntime-genai's builder, or with optimum-cli export onnx",
        )
    return found[0]


def _decoder(genai: Path) -> dict[str, Any]:
    model = _dict(_read(genai).get("model", {}), genai, "model")
    return _dict(model.get("decoder", {}), genai, "model.decoder")


def _from_genai(folder: Path) -> Settings:
    file = folder / GENAI
    model = _dict(_read(file).get("model", {}), file, "model")
    decoder = _decoder(file)
    if not decoder:
        raise ModelError("there is no decoder in the folder", given=f"{file}: no model.decoder")
    name = decoder.get("filename")
    if not isinstance(name, str) or not name:
        raise ModelError(
            "the configuration does not name the file of the decoder",
            expected="model.decoder.filename: the name of an ONNX file in its folder",
            given=f"{file}: " + ("no filename" if name is None else f"filename: {name!r}"),
        )
    window = _dict(decoder.get("sliding_window") or {}, file, "model.decoder.sliding_window")
    return Settings(
        _inside(folder, name, file),
        str(file),
        _names(decoder, "inputs", file),
        _names(decoder, "outputs", file),
        _int(decoder, "num_hidden_layers", file),
        _int(decoder, "num_key_value_heads", file),
        _int(decoder, "head_size", file),
        _int(model, "vocab_size", file),
        _int(model, "context_length", file, 2),
        _ids(model.get("eos_token_id"), file),
        _beside(folder, TOKENIZER),
        str(file),
        _int(decoder, "num_attention_heads", file),
        _int(decoder, "hidden_size", file),
        _int(window, "window_size", file),
    )


def _inside(folder: Path, name: str, file: Path) -> Path:
    """Return the file of that name in the folder; reject others, because the name is untrusted."""
    path = folder / name
    try:
        real, base = path.resolve(), folder.resolve()
        tree = hub_tree(base)
        inside = real.is_relative_to(base) or (tree is not None and real.parent == tree / BLOBS)
    except (OSError, RuntimeError, ValueError):  # circular links, names that no file can have
        inside = False
    if not inside:
        raise ModelError(
            "the configuration names a decoder outside of its folder",
            expected=f"a file in {folder}",
            given=f"{name!r} in {file}",
            hint="copy what links lead to into the folder" if path.is_symlink() else None,
        )
    if not _is(path):
        raise ModelError(
            "the decoder that the configuration names is missing",
            expected=f"{name!r} by {file}",
            given=str(path),
        )
    return path


def _names(decoder: dict[str, Any], which: str, file: Path) -> dict[str, str]:
    """Return the names of inputs or outputs by role; names of caches contain the layer as %d."""
    found = _dict(decoder.get(which, {}), file, f"model.decoder.{which}")
    for role, name in found.items():
        if not isinstance(name, str):
            raise ModelError(
                "names of inputs and outputs must be strings",
                given=f"{which}.{role}: {name!r} in {file}",
            )
        if role in LAYERED and (name.count("%") != 1 or "%d" not in name):
            raise ModelError(
                "the name of a cache must contain %d once, for the layer",
                expected="past_key_values.%d.key",
                given=f"{which}.{role}: {name!r} in {file}",
            )
    return found


def _from_config(model: Path) -> Settings:
    """Read the settings of a hub model from the configuration beside the graph."""
    folder = model.parent
    tokenizer = _beside(folder, TOKENIZER)
    stop, stop_source = _hub_stops(folder)
    file = _beside(folder, CONFIG)
    if file is None:
        return Settings(model, stop=stop, tokenizer=tokenizer, stop_source=stop_source)
    config = _read(file)
    heads = _int(config, "num_attention_heads", file) or _int(config, "n_head", file)
    hidden = _int(config, "hidden_size", file) or _int(config, "n_embd", file)
    size = _int(config, "head_dim", file)
    if size is None and heads and hidden:
        size = hidden // heads
    return Settings(
        model,
        str(file),
        layers=_int(config, "num_hidden_layers", file) or _int(config, "n_layer", file),
        heads=_int(config, "num_key_value_heads", file) or heads,
        head_size=size,
        vocabulary=_int(config, "vocab_size", file),
        context=_int(config, "max_position_embeddings", file, 2)
        or _int(config, "n_positions", file, 2),
        stop=stop,
        tokenizer=tokenizer,
        stop_source=stop_source,
    )


def _hub_stops(folder: Path) -> tuple[tuple[int, ...], str]:
    """Return the stop tokens of a hub model and the file that lists them; null lists none."""
    for name in (GENERATION, CONFIG):
        file = _beside(folder, name)
        value = None if file is None else _read(file).get("eos_token_id")
        if file is not None and value is not None:
            return _ids(value, file), str(file)
    return (), ""


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"the configuration cannot be read: {e}", given=str(file)) from e
    return _dict(found, file, "the file")


def _dict(found: Any, file: Path, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ModelError(f"{what} must be a JSON object", given=str(file))
    return found


def _int(found: Mapping[str, Any], name: str, file: Path, least: int = 1) -> int | None:
    value = found.get(name)
    if isinstance(value, list):  # several ids: the first counts
        value = value[0] if value else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{name} must be an integer", given=f"{value!r} in {file}")
    if value < least:
        raise ModelError(
            f"{name} is too small", expected=f"at least {least}", given=f"{value} in {file}"
        )
    return value


def _ids(value: Any, file: Path) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise ModelError(
            "eos_token_id must be an integer or a list of integers", given=f"{value!r}: {file}"
        )
    return tuple(found)
