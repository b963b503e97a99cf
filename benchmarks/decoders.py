"""Decoders of published shapes with random weights, written as ONNX.

    python -m benchmarks.decoders FOLDER --shape llama-1b --format int4-f16
    python -m benchmarks.decoders FOLDER --shape llama-1b --width 3072 --heads 24 --layers 28

A folder holds `genai_config.json`, `model.onnx` and `model.onnx.data`, as onnxruntime-genai's model
builder writes them, or (`--style optimum`) a plain graph with past_key_values in and present out.
Weights are scaled so that numbers stay of order one and greedy output does not run in a circle.
The head is no copy of the embedding: a random model that shared them would repeat its input.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.decoder_parts import HEAD_GAIN, QUERY_GAIN, mlp, rotary_tables
from benchmarks.decoder_plain import plain_decoder
from benchmarks.decoder_shapes import FREE, SHAPES, Shape, changed, shape_of
from benchmarks.decoder_weights import PRESETS, Format, preset
from benchmarks.decoder_writer import MICROSOFT, TYPES, Writer


def build(
    folder: str | Path, shape: str | Shape, form: str | Format = "f32", *, style: str = "genai",
    fused_rotary: bool = True, merged: bool = False, seed: int = 0,
) -> Path:  # fmt: skip
    """Writes a decoder and returns its folder; the same arguments give the same bytes.

    `style` is genai or optimum. `fused_rotary` lets GroupQueryAttention turn queries and keys;
    without it RotaryEmbedding does, by position_ids. `merged` wraps the graph in an If by
    use_cache_branch (optimum).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = shape_of(shape) if isinstance(shape, str) else shape
    form = preset(form) if isinstance(form, str) else form
    opset = 23 if form.kind == "fp4" else 21
    with (folder / "model.onnx.data").open("wb") as data:
        w = Writer(data, form, seed, opset)
        if style == "optimum":
            model = plain_decoder(w, shape, merged)
        elif style == "genai":
            _Genai(w, shape, fused_rotary and shape.rotary).write()
            model = w.model()
            config = genai_config(shape, fused_rotary and shape.rotary)
            (folder / "genai_config.json").write_text(json.dumps(config, indent=4))
        else:
            raise ValueError(f"style is genai or optimum, not {style!r}")
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    return folder


class _Genai:
    """One decoder in the form of onnxruntime-genai's builder."""

    def __init__(self, w: Writer, shape: Shape, fused: bool) -> None:
        self.w, self.s, self.fused = w, shape, fused

    def write(self) -> None:
        w, s = self.w, self.s
        ids = w.input("input_ids", TYPES["i64"], ["batch_size", "sequence_length"])
        mask = w.input("attention_mask", TYPES["i64"], ["batch_size", "total_sequence_length"])
        self.positions = ""
        if not self.fused:
            dims: list[int | str] = ["batch_size", "sequence_length"]
            self.positions = w.input("position_ids", TYPES["i64"], dims)
        logits = ["batch_size", "sequence_length", s.vocab]
        w.output("logits", w.float_type, [*logits])
        for layer in range(s.layers):
            for part in ("key", "value"):
                for side, length in (("past_key_values", "past"), ("present", "total")):
                    port = w.input if length == "past" else w.output
                    dims = ["batch_size", s.groups, f"{length}_sequence_length", s.head_size]
                    port(f"{side}.{layer}.{part}", w.float_type, dims)
        self._lengths(mask)
        if s.rotary:
            self.tables = rotary_tables(w, s)
        residual, branch = self._embedded(ids), ""
        for layer in range(s.layers):
            residual, branch = self._layer(layer, residual, branch)
        x, _ = self._norm(f"model.layers.{s.layers}.final_norm_layernorm", residual, branch)
        head_gain = {"lm_head": HEAD_GAIN}
        last = "" if s.final_softcap else "logits"
        y = w.linear(x, "head", s.width, {"lm_head": s.vocab}, head_gain, head=True, result=last)
        if s.final_softcap:
            cap = w.number(s.final_softcap)
            w.node("Mul", w.node("Tanh", w.node("Div", y, cap)), cap, result="logits")

    def _lengths(self, mask: str) -> None:
        """Return how many keys count in each row, less one; and the length of the mask."""
        w = self.w
        one = w.ints(1)
        counted = w.node("Sub", w.node("ReduceSum", mask, one, keepdims=0), one)
        self.counts = w.node("Cast", counted, to=TYPES["i32"])
        total = w.node("Gather", w.node("Shape", mask), w.integer(1), axis=0)
        self.total = w.node("Cast", total, to=TYPES["i32"])

    def _embedded(self, ids: str) -> str:
        w, s = self.w, self.s
        scaled = s.family == "gemma2"
        deviation = s.width**-0.5 if scaled else 1.0
        x = w.embedding("model.embed_tokens.weight", ids, s.vocab, s.width, deviation)
        if scaled:
            x = w.node("Mul", x, w.number(s.width**0.5))
        if s.family == "gpt2":
            table = w.table("model.embed_positions.weight", s.context, s.width, 0.3)
            x = w.node("Add", x, w.node("Gather", table, self.positions))
        return x

    def _norm(self, name: str, x: str, skip: str = "") -> tuple[str, str]:
        """(x + skip normalised, x + skip)"""
        w, s = self.w, self.s
        weights = [w.vector(f"{name}.weight", s.width, 1.0, 0.1)]
        kind = "SimplifiedLayerNormalization"
        if s.family == "gpt2":
            kind = "LayerNormalization"
            weights.append(w.vector(f"{name}.bias", s.width, 0.0, 0.1))
        if skip:
            y, total = w.several(
                f"Skip{kind}", x, skip, *weights, results=("", "-", "-", ""), domain=MICROSOFT,
                epsilon=s.epsilon,
            )[::3]  # fmt: skip
            return y, total
        return w.node(kind, x, *weights, axis=-1, epsilon=s.epsilon, stash_type=1), x

    def _layer(self, layer: int, residual: str, branch: str) -> tuple[str, str]:
        name = f"model.layers.{layer}"
        w = self.w
        w.prefix = f"/{name.replace('.', '/', 1)}"
        after = self.s.family == "gemma2"
        x, residual = self._norm(f"{name}.input_layernorm", residual, branch)
        branch = self._attention(layer, name, x)
        if after:
            branch, _ = self._norm(f"{name}.post_attention_layernorm", branch)
        second = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        x, residual = self._norm(f"{name}.{second}", residual, branch)
        branch = mlp(w, self.s, f"{name}.mlp", x)
        if after:
            branch, _ = self._norm(f"{name}.post_feedforward_layernorm", branch)
        return residual, branch

    def _attention(self, layer: int, name: str, x: str) -> str:
        w, s = self.w, self.s
        sizes = {"q_proj": s.heads, "k_proj": s.groups, "v_proj": s.groups}
        sizes = {part: count * s.head_size for part, count in sizes.items()}
        attn, gain = f"{name}.attn", {"q_proj": QUERY_GAIN}
        if self.fused or not s.rotary:
            packed = w.linear(x, attn, s.width, sizes, gain, bias=s.bias)
            heads = [packed, "", ""]
        else:
            heads = [
                w.linear(x, attn, s.width, {part: size}, gain, bias=s.bias)
                for part, size in sizes.items()
            ]
            for i, count in ((0, s.heads), (1, s.groups)):
                heads[i] = w.node(
                    "RotaryEmbedding", heads[i], self.positions, *self.tables, domain=MICROSOFT,
                    num_heads=count, interleaved=0,
                )  # fmt: skip
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        new = [f"present.{layer}.{part}" for part in ("key", "value")]
        tables = self.tables if self.fused else ()
        y, *_ = w.several(
            "GroupQueryAttention", *heads, *past, self.counts, self.total, *tables,
            results=("", *new), domain=MICROSOFT, num_heads=s.heads, kv_num_heads=s.groups,
            scale=s.head_size**-0.5, local_window_size=s.layer_window(layer) or -1,
            softcap=s.softcap, do_rotary=int(self.fused), rotary_interleaved=0,
        )  # fmt: skip
        out = {"o_proj": s.width}
        return w.linear(y, attn, s.heads * s.head_size, out, bias=s.family == "gpt2")


def genai_config(s: Shape, fused: bool) -> dict[str, Any]:
    """Return what onnxruntime-genai reads beside the graph."""
    inputs = {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    if not fused:
        inputs["position_ids"] = "position_ids"
    outputs = {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    }
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": s.head_size,
        "hidden_size": s.width,
        "inputs": inputs,
        "outputs": outputs,
        "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers,
        "num_key_value_heads": s.groups,
    }
    model = {
        "bos_token_id": 0,
        "context_length": s.context,
        "decoder": decoder,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "type": s.family,
        "vocab_size": s.vocab,
    }
    search = {
        "do_sample": False,
        "max_length": s.context,
        "min_length": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
    return {"model": model, "search": search}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a decoder with random weights as ONNX.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--format", default="f16", choices=sorted(PRESETS))
    parser.add_argument("--style", default="genai", choices=("genai", "optimum"))
    for name in FREE:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, metavar="N", help="other than the shape's")
    parser.add_argument("--accuracy-level", type=int, default=0, help="of MatMulNBits")
    parser.add_argument("--embedding", default="", choices=("", "int4"))
    parser.add_argument("--separate-rotary", action="store_true")
    parser.add_argument("--merged", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args(arguments)
    try:
        shape = changed(shape_of(a.shape), **{name: getattr(a, name) for name in FREE})
    except ValueError as e:
        parser.error(str(e))
    form = preset(a.format, accuracy=a.accuracy_level, embedding=a.embedding)
    build(
        a.folder, shape, form, style=a.style, fused_rotary=not a.separate_rotary,
        merged=a.merged, seed=a.seed,
    )  # fmt: skip
    print(f"{a.folder}: {shape.parameters / 1e6:.0f} million numbers read for each token")


if __name__ == "__main__":
    main()
