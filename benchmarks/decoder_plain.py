"""Decoders in the form of optimum's exports: plain ops, keys and values joined to the past.

Norms are arithmetic, positions are turned by computed angles, heads are repeated, and the causal
mask is made from the lengths and the attention mask. A merged file holds the graph twice, with and
without a past, and `use_cache_branch` picks one.
"""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.decoder_parts import HEAD_GAIN, QUERY_GAIN, mlp
from benchmarks.decoder_shapes import Shape
from benchmarks.decoder_writer import TYPES, Writer

END = np.iinfo(np.int64).max


def plain_decoder(w: Writer, s: Shape, merged: bool = False) -> onnx.ModelProto:
    dims: list[int | str] = ["batch_size", "sequence_length"]
    w.input("input_ids", TYPES["i64"], dims)
    total = "past_sequence_length + sequence_length"
    w.input("attention_mask", TYPES["i64"], ["batch_size", total])
    w.input("position_ids", TYPES["i64"], dims)
    w.output("logits", w.float_type, [*dims, s.vocab])
    for layer in range(s.layers):
        for part in ("key", "value"):
            sizes = ("batch_size", s.groups, "past_sequence_length", s.head_size)
            w.input(f"past_key_values.{layer}.{part}", w.float_type, [*sizes])
            sizes = ("batch_size", s.groups, total, s.head_size)
            w.output(f"present.{layer}.{part}", w.float_type, [*sizes])
    if not merged:
        _Plain(w, s, past=True).write("")
        return w.model()
    w.input("use_cache_branch", TYPES["bool"], [1])
    graphs = {}
    for side, past in (("then", True), ("else", False)):
        inner = w.branch(f"/{side}")
        _Plain(inner, s, past).write(f"{side}.")
        for o in w.outputs:
            named = onnx.ValueInfoProto()
            named.CopyFrom(o)
            named.name = f"{side}.{o.name}"
            inner.outputs.append(named)
        graphs[f"{side}_branch"] = inner.graph(f"{side}_branch")
    results = tuple(o.name for o in w.outputs)
    w.several("If", "use_cache_branch", results=results, **graphs)
    return w.model()


class _Plain:
    """One graph; `past` says whether keys and values of earlier tokens come in."""

    def __init__(self, w: Writer, s: Shape, past: bool) -> None:
        self.w, self.s, self.past = w, s, past
        self.root = w.prefix

    def write(self, stem: str) -> None:
        w, s = self.w, self.s
        self.stem = stem
        x = self._embedded()
        self._prepare()
        for layer in range(s.layers):
            w.prefix = f"{self.root}/model/layers.{layer}"
            x = self._layer(layer, x)
        w.prefix = self.root
        x = self._norm(f"model.layers.{s.layers}.final_norm_layernorm", x)
        last = "" if s.final_softcap else f"{stem}logits"
        head = {"lm_head": s.vocab}
        gain = {"lm_head": HEAD_GAIN}
        y = w.linear(x, "head", s.width, head, gain, head=True, result=last)
        if s.final_softcap:
            cap = w.number(s.final_softcap)
            w.node("Mul", w.node("Tanh", w.node("Div", y, cap)), cap, result=f"{stem}logits")

    def _embedded(self) -> str:
        w, s = self.w, self.s
        scaled = s.family == "gemma2"
        deviation = s.width**-0.5 if scaled else 1.0
        name = "model.embed_tokens.weight"
        x = w.embedding(name, "input_ids", s.vocab, s.width, deviation)
        if scaled:
            x = w.node("Mul", x, w.number(s.width**0.5))
        if s.family == "gpt2":
            table = w.table("model.embed_positions.weight", s.context, s.width, 0.3)
            x = w.node("Add", x, w.node("Gather", table, "position_ids"))
        return x

    def _size(self, x: str, axis: int) -> str:
        w = self.w
        return w.node("Gather", w.node("Shape", x), w.integer(axis), axis=0)

    def _prepare(self) -> None:
        """Sizes, the angles of the positions, and the masks."""
        w, s = self.w, self.s
        self.batch = w.node("Unsqueeze", self._size("input_ids", 0), w.ints(0))
        length = self._size("input_ids", 1)
        self.length = w.node("Unsqueeze", length, w.ints(0))
        before = self._size("past_key_values.0.key", 2) if self.past else w.integer(0)
        total = w.node("Add", before, length)
        self.total = w.node("Unsqueeze", total, w.ints(0))
        if s.rotary:
            steps = s.theta ** -(np.arange(0, s.head_size, 2) / s.head_size)
            rates = w.tensor("inverse_frequencies", steps.astype(np.float32).reshape(1, -1))
            places = w.node("Unsqueeze", "position_ids", w.ints(2))
            angles = w.node("MatMul", w.node("Cast", places, to=TYPES["f32"]), rates)
            angles = w.node("Concat", angles, angles, axis=-1)
            self.turns = [
                w.node("Unsqueeze", w.node("Cast", w.node(f, angles), to=w.float_type), w.ints(1))
                for f in ("Cos", "Sin")
            ]
        one, zero = w.integer(1), w.integer(0)
        queries = w.node("Unsqueeze", w.node("Range", before, total, one), w.ints(1))
        keys = w.node("Range", zero, total, one)
        seen = w.node("LessOrEqual", keys, queries)
        counts = w.node(
            "Cast", w.node("Unsqueeze", "attention_mask", w.ints(1, 2)), to=TYPES["bool"]
        )
        self.masks = {0: self._bias(w.node("And", seen, counts))}
        if s.window:
            near = w.node("Greater", keys, w.node("Sub", queries, w.integer(s.window)))
            local = w.node("And", w.node("And", seen, near), counts)
            self.masks[s.window] = self._bias(local)

    def _bias(self, visible: str) -> str:
        w = self.w
        lowest = float(np.finfo(w.float_numpy).min)
        return w.node("Where", visible, w.number(0.0), w.number(lowest))

    def _norm(self, name: str, x: str) -> str:
        w, s = self.w, self.s
        weight = w.vector(f"{name}.weight", s.width, 1.0, 0.1)
        if s.family == "gpt2":
            bias = w.vector(f"{name}.bias", s.width, 0.0, 0.1)
            return w.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=s.epsilon)
        two, epsilon = (w.tensor(n, np.float32(v)) for n, v in (("two", 2), ("eps", s.epsilon)))
        half = w.form.activations == "f16"
        wide = w.node("Cast", x, to=TYPES["f32"]) if half else x
        mean = w.node("ReduceMean", w.node("Pow", wide, two), w.ints(-1), keepdims=1)
        root = w.node("Sqrt", w.node("Add", mean, epsilon))
        one = w.tensor("one", np.float32(1))
        y = w.node("Mul", wide, w.node("Div", one, root))
        return w.node("Mul", weight, w.node("Cast", y, to=w.float_type) if half else y)

    def _layer(self, layer: int, x: str) -> str:
        w, name = self.w, f"model.layers.{layer}"
        after = self.s.family == "gemma2"
        branch = self._attention(layer, self._norm(f"{name}.input_layernorm", x))
        if after:
            branch = self._norm(f"{name}.post_attention_layernorm", branch)
        x = w.node("Add", x, branch)
        second = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        branch = mlp(w, self.s, f"{name}.mlp", self._norm(f"{name}.{second}", x))
        if after:
            branch = self._norm(f"{name}.post_feedforward_layernorm", branch)
        return w.node("Add", x, branch)

    def _heads(self, name: str, part: str, x: str, count: int) -> str:
        """[batch, count, length, size]"""
        w, s = self.w, self.s
        gain = {"q_proj": QUERY_GAIN}
        y = w.linear(x, name, s.width, {part: count * s.head_size}, gain, bias=s.bias)
        sizes = w.node("Concat", self.batch, self.length, w.ints(count), w.ints(-1), axis=0)
        return w.node("Transpose", w.node("Reshape", y, sizes), perm=[0, 2, 1, 3])

    def _turned(self, x: str) -> str:
        w, half = self.w, self.s.head_size // 2
        low = w.node("Slice", x, w.ints(0), w.ints(half), w.ints(3))
        high = w.node("Slice", x, w.ints(half), w.ints(END), w.ints(3))
        other = w.node("Concat", w.node("Neg", high), low, axis=-1)
        cos, sin = self.turns
        return w.node("Add", w.node("Mul", x, cos), w.node("Mul", other, sin))

    def _repeated(self, x: str) -> str:
        """Each head of keys or values as often as queries share it."""
        w, s = self.w, self.s
        each = s.heads // s.groups
        if each == 1:
            return x
        tail = (self.total, w.ints(s.head_size))
        spread = w.node("Concat", self.batch, w.ints(s.groups), w.ints(each), *tail, axis=0)
        flat = w.node("Concat", self.batch, w.ints(s.heads), *tail, axis=0)
        return w.node("Reshape", w.node("Expand", w.node("Unsqueeze", x, w.ints(2)), spread), flat)

    def _attention(self, layer: int, x: str) -> str:
        w, s = self.w, self.s
        name = f"model.layers.{layer}.attn"
        q = self._heads(name, "q_proj", x, s.heads)
        k, v = (self._heads(name, part, x, s.groups) for part in ("k_proj", "v_proj"))
        if s.rotary:
            q, k = self._turned(q), self._turned(k)
        made = []
        for part, new in (("key", k), ("value", v)):
            stored = f"{self.stem}present.{layer}.{part}"
            if self.past:
                made.append(
                    w.node("Concat", f"past_key_values.{layer}.{part}", new, result=stored, axis=-2)
                )
            else:
                made.append(w.node("Identity", new, result=stored))
        k, v = (self._repeated(x) for x in made)
        scores = w.node("MatMul", q, w.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = w.node("Mul", scores, w.number(s.head_size**-0.5))
        if s.softcap:
            cap = w.number(s.softcap)
            scores = w.node("Mul", w.node("Tanh", w.node("Div", scores, cap)), cap)
        scores = w.node("Add", scores, self.masks[s.layer_window(layer)])
        y = w.node("MatMul", w.node("Softmax", scores, axis=-1), v)
        y = w.node("Transpose", y, perm=[0, 2, 1, 3])
        width = s.heads * s.head_size
        sizes = w.node("Concat", self.batch, self.length, w.ints(width), axis=0)
        y = w.node("Reshape", y, sizes)
        return w.linear(y, name, width, {"o_proj": s.width}, bias=s.family == "gpt2")
