"""Decoders to generate with, and the plain way to do so: a past that grows by a row each token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph import Generator
from monograph.errors import MonographError

STYLES = ("genai", "optimum")
WIDTH, HEADS, SIZE, VOCABULARY, CONTEXT = 32, 2, 16, 64, 48


def refused(folder: Path, kind: type[MonographError], text: str, **options: Any) -> str:
    """Return what is said where a decoder cannot be opened: for users, not for us."""
    with pytest.raises(kind, match=text) as caught:
        opened(folder, **options)
    assert "internal" not in str(caught.value)
    return str(caught.value)


def opened(folder: Path, target: str = "reference", **options: Any) -> Generator:
    """A generator that goes on until it is full, a small one unless said."""
    return Generator(folder, target, **{"max_length": 32, "stop": (), **options})


def plainly(
    model: Path,
    prompt: list[int],
    count: int,
    target: str = "reference",
    stop: tuple[int, ...] = (),
) -> list[int]:
    """Greedy tokens of a decoder as it was exported: every token takes a longer past."""
    session = monograph.load(model, target=target)
    inputs = {p.name: p for p in session.inputs}
    past = {
        n: np.zeros((1, p.shape[1], 0, p.shape[3]), p.dtype.numpy)  # type: ignore[index,union-attr]
        for n, p in inputs.items()
        if n.startswith("past")
    }
    tokens, new = list(prompt), list(prompt)
    for turn in range(count):
        feeds: dict[str, Any] = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.arange(len(tokens) - len(new), len(tokens))[None],
            "use_cache_branch": np.array([turn > 0]),
        }
        feeds = {n: x for n, x in feeds.items() if n in inputs} | past
        names = [p.name for p in session.outputs]
        made = dict(zip(names, session.run(feeds), strict=True))
        past = {n: made[n.replace("past_key_values", "present")] for n in past}
        new = [int(made["logits"][0, -1].argmax())]
        tokens += new
        if new[0] in stop:
            break
    return tokens[len(prompt) :]


def counting_decoder(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A decoder that counts its positions itself, and cuts its mask from a triangle: as GPT-2's.

    changes: `axis` of the join of past and new rows; `extra` inputs; `split` puts the new rows
    first; `positions=True` takes position_ids; `offset` is added to positions; `mask` (of `MASKS`)
    and `window` are how keys are hidden; `bias=True` adds how far away keys are.
    """
    w = _Weights(np.random.default_rng(seed))
    nodes = w.nodes
    make = helper.make_node
    places = "position_ids"
    w.node("Shape", ["input_ids"], "ids_shape")
    w.node("Gather", ["ids_shape", w.ints(1)], "length", axis=0)
    w.node("Shape", ["past_key_values.0.key"], "past_shape")
    w.node("Gather", ["past_shape", w.ints(2)], "past_length", axis=0)
    w.node("Add", ["past_length", "length"], "total")
    if not changes.get("positions"):
        offset = w.ints(changes.get("offset", 0))
        w.node("Add", ["past_length", offset], "first_place")
        w.node("Add", ["total", offset], "last_place")
        w.node("Range", ["first_place", "last_place", w.ints(1)], "counted")
        w.node("Unsqueeze", ["counted", w.ints([0])], "places")
        places = "places"
    w.node("Gather", [w.drawn("wte", VOCABULARY, WIDTH), "input_ids"], "tokens_in")
    w.node("Gather", [w.drawn("wpe", CONTEXT, WIDTH), places], "places_in")
    w.node("Add", ["tokens_in", "places_in"], "x")
    w.node("Unsqueeze", ["past_length", w.ints([0])], "first")
    w.node("Unsqueeze", ["total", w.ints([0])], "last")
    MASKS[changes.get("mask", "buffer")](w, changes.get("window", CONTEXT))
    shape = w.ints([0, 0, HEADS, SIZE])
    for part in ("query", "key", "value"):
        w.node("MatMul", ["x", w.drawn(part, WIDTH, WIDTH)], f"{part}_flat")
        w.node("Reshape", [f"{part}_flat", shape], f"{part}_split")
        w.node("Transpose", [f"{part}_split"], f"{part}_new", perm=[0, 2, 1, 3])
    for part in ("key", "value"):
        joined = [f"past_key_values.0.{part}", f"{part}_new"]
        joined = joined[::-1] if changes.get("split") else joined
        w.node("Concat", joined, f"present.0.{part}", axis=changes.get("axis", 2))
    w.node("Transpose", ["present.0.key"], "key_turned", perm=[0, 1, 3, 2])
    w.node("MatMul", ["query_new", "key_turned"], "products")
    w.node("Div", ["products", w.tensor("root", np.float32(SIZE**0.5))], "scaled")
    if changes.get("bias"):
        w.node("Sub", [w.ints(1), "total"], "farthest")
        w.node("Range", ["farthest", w.ints(1), w.ints(1)], "far")
        w.node("Cast", ["far"], "distances", to=TensorProto.FLOAT)
        w.node("Mul", ["distances", w.tensor("slope", np.float32(0.5))], "slopes")
        w.node("Add", ["scaled", "slopes"], "biased")
    scaled = "biased" if changes.get("bias") else "scaled"
    w.node("Where", ["mask", scaled, w.tensor("lowest", np.float32(-1e9))], "scores")
    w.node("Softmax", ["scores"], "shares", axis=-1)
    w.node("MatMul", ["shares", "present.0.value"], "mixed")
    w.node("Transpose", ["mixed"], "mixed_turned", perm=[0, 2, 1, 3])
    w.node("Reshape", ["mixed_turned", w.ints([0, 0, WIDTH])], "mixed_flat")
    w.node("Add", ["mixed_flat", "x"], "y")
    nodes.append(make("MatMul", ["y", w.drawn("head", WIDTH, VOCABULARY)], ["logits"]))
    info, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    rows = ["batch", HEADS, "past", SIZE]
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    if changes.get("positions"):
        inputs.append(info("position_ids", TensorProto.INT64, ["batch", "sequence"]))
    inputs += [info(f"past_key_values.0.{p}", floats, rows) for p in ("key", "value")]
    inputs += [info(n, floats, [1]) for n in changes.get("extra", ())]
    outputs = [info("logits", floats, ["batch", "sequence", VOCABULARY])]
    outputs += [
        info(f"present.0.{p}", floats, ["batch", HEADS, "total", SIZE]) for p in ("key", "value")
    ]
    graph = helper.make_graph(nodes, "counting", inputs, outputs, w.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


class _Weights:
    """Nodes and tensors of a graph that is being written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.tensors: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))

    def tensor(self, name: str, data: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def ints(self, values: Any) -> str:
        return self.tensor(f"ints{len(self.tensors)}", np.array(values, np.int64))

    def drawn(self, name: str, *shape: int) -> str:
        scale = 1.0 if name.startswith("wt") else 0.7 if name == "wpe" else shape[0] ** -0.5
        return self.tensor(name, (scale * self.rng.standard_normal(shape)).astype(np.float32))


def _buffer(w: _Weights, window: int) -> None:
    """A band of a buffer, cut at the past: GPT-Neo."""
    band = np.tri(CONTEXT, dtype=bool) & ~np.tri(CONTEXT, k=-window, dtype=bool)
    w.node("Slice", [w.tensor("triangle", band[None, None]), "first", "last", w.ints([2])], "rows")
    w.node("Slice", ["rows", w.ints([0]), "last", w.ints([3])], "mask")


def _band(w: _Weights, window: int) -> None:
    """Two triangles with diagonals at the past: Mistral, Qwen2."""
    w.node("Unsqueeze", ["length", w.ints([0])], "lengths")
    w.node("Concat", ["lengths", "last"], "sizes", axis=0)
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    w.node("ConstantOfShape", ["sizes"], "all", value=one)
    w.node("Trilu", ["all", "past_length"], "lower", upper=0)
    w.node("Sub", ["past_length", w.ints(window - 1)], "farthest_key")
    w.node("Trilu", ["lower", "farthest_key"], "band", upper=1)
    w.node("Cast", ["band"], "mask", to=TensorProto.BOOL)


def _compared(w: _Weights, queries: str, window: int) -> None:
    w.node("Range", [w.ints(0), "total", w.ints(1)], "keys")
    w.node("LessOrEqual", ["keys", queries], "before")
    w.node("Sub", [queries, w.ints(window)], "too_far")
    w.node("Greater", ["keys", "too_far"], "near")
    w.node("And", ["before", "near"], "mask")


def _added(w: _Weights, window: int) -> None:
    """Counts from 0, with the past added."""
    w.node("Range", [w.ints(0), "length", w.ints(1)], "steps")
    w.node("Add", ["steps", "past_length"], "row")
    w.node("Unsqueeze", ["row", w.ints([1])], "queries")
    _compared(w, "queries", window)


def _sliced(w: _Weights, window: int) -> None:
    """Return what counts keys, from the past on; and once more up to its end."""
    w.node("Range", [w.ints(0), "total", w.ints(1)], "indices")
    w.node("Slice", ["indices", "first", "last", w.ints([0])], "row")
    w.node("Slice", ["indices", "first", w.ints([np.iinfo(np.int64).max]), w.ints([0])], "same")
    w.node("Max", ["row", "same"], "either")
    w.node("Unsqueeze", ["either", w.ints([1])], "queries")
    _compared(w, "queries", window)


def _placed(w: _Weights, window: int) -> None:
    """Keys by their rows, queries by position_ids."""
    w.node("Unsqueeze", ["position_ids", w.ints([1, 3])], "queries")
    _compared(w, "queries", window)


def _from_behind(w: _Weights, window: int) -> None:
    """Return what counts keys, its last rows: nothing says that these depend on the past."""
    w.node("Range", [w.ints(0), "total", w.ints(1)], "indices")
    w.node("Sub", [w.ints(0), "length"], "back")
    w.node("Unsqueeze", ["back", w.ints([0])], "backs")
    w.node("Slice", ["indices", "backs", w.ints([np.iinfo(np.int64).max]), w.ints([0])], "row")
    w.node("Unsqueeze", ["row", w.ints([1])], "queries")
    _compared(w, "queries", window)


MASKS: dict[str, Callable[[_Weights, int], None]] = {
    "buffer": _buffer,
    "band": _band,
    "added": _added,
    "sliced": _sliced,
    "placed": _placed,
    "from behind": _from_behind,
}
"""The ways in which exporters mask keys."""
