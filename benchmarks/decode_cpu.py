"""Decoding on the CPU beside onnxruntime: tokens a second of the same file with the same threads.

    python -m benchmarks.decode_cpu [--shape llama-100m] [--formats int4 int4-128 f32] [--threads 2]

Both sides decode greedily, one token a call, over caches of one fixed length that are updated in
place: onnxruntime with IO binding and present bound to the memory of past, Monograph with donated
state. They take turns, a few tokens each, and medians are compared. Wall time is what counts; the
time of the process's threads is printed beside it, for a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import monograph
from benchmarks.decoder_shapes import SHAPES, Shape, shape_of
from benchmarks.decoder_weights import PRESETS, preset
from benchmarks.decoders import build

Step = Callable[[int, int], int]
"""(token, its position) -> the next token"""


def onnxruntime_step(model: Path, s: Shape, length: int, threads: int) -> Step:
    """onnxruntime at its best: bound memory, present in the place of past."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    dtype = np.float32 if "float)" in session.get_outputs()[0].type else np.float16
    held = []
    for layer in range(s.layers):
        for part in ("key", "value"):
            cache = np.zeros((1, s.groups, length, s.head_size), dtype)
            state = ort.OrtValue.ortvalue_from_numpy(cache)
            binding.bind_ortvalue_input(f"past_key_values.{layer}.{part}", state)
            binding.bind_ortvalue_output(f"present.{layer}.{part}", state)
            held.append(state)
    logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, s.vocab), dtype))
    binding.bind_ortvalue_output("logits", logits)
    mask = np.ones((1, length), np.int64)
    needs = {i.name for i in session.get_inputs()}

    def step(token: int, position: int) -> int:
        binding.bind_cpu_input("input_ids", np.array([[token]]))
        binding.bind_cpu_input("attention_mask", mask[:, : position + 1])
        if "position_ids" in needs:
            binding.bind_cpu_input("position_ids", np.array([[position]]))
        session.run_with_iobinding(binding)
        return int(logits.numpy()[0, 0].argmax())

    step.held = held  # type: ignore[attr-defined]
    return step


def monograph_step(model: Path, s: Shape, length: int, threads: int, **options: Any) -> Step:
    """A session with donated state; the attention mask is as long as the caches from the start."""
    kinds = [(i, p) for i in range(s.layers) for p in ("key", "value")]
    donate = {f"present.{i}.{p}": f"past_key_values.{i}.{p}" for i, p in kinds}
    session = monograph.load(model, target="cpu", threads=threads, donate=donate, **options)
    half = next(o for o in session.outputs if o.name == "logits").dtype.name == "f16"
    dtype = np.float16 if half else np.float32
    states = {past: np.zeros((1, s.groups, length, s.head_size), dtype) for past in donate.values()}
    mask = np.zeros((1, length), np.int64)
    names = [o.name for o in session.outputs]
    needs = {i.name for i in session.inputs}

    def step(token: int, position: int) -> int:
        mask[:, : position + 1], mask[:, position + 1 :] = 1, 0
        feeds = {"input_ids": np.array([[token]]), "attention_mask": mask, **states}
        if "position_ids" in needs:
            feeds["position_ids"] = np.array([[position]])
        made = dict(zip(names, session.run(feeds), strict=True))
        states.update({past: made[present] for present, past in donate.items()})
        return int(made["logits"][0, 0].argmax())

    step.session = session  # type: ignore[attr-defined]
    return step


@dataclass
class Side:
    """One contender: its step, and the seconds that its turns took."""

    step: Step
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def turn(self, position: int, count: int) -> None:
        """Decodes some tokens after a position; the first of them is not timed."""
        token = self.step(7, position)
        start, used = time.perf_counter(), time.process_time()
        self.tokens = []
        for i in range(1, count + 1):
            token = self.step(token, position + i)
            self.tokens.append(token)
        self.wall.append((time.perf_counter() - start) / count)
        self.cpu.append((time.process_time() - used) / count)

    def report(self) -> dict[str, float]:
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        return {"tokens_per_s": 1 / wall, "ms": wall * 1e3, "cpu_ms": cpu * 1e3}


def compare(
    model: Path, shape: Shape, length: int, threads: int, positions: list[int], rounds: int
) -> list[dict[str, Any]]:
    """A row for each position."""
    sides = {
        "monograph": monograph_step(model, shape, length, threads),
        "onnxruntime": onnxruntime_step(model, shape, length, threads),
    }
    rows = []
    for position in positions:
        contenders = {name: Side(step) for name, step in sides.items()}
        for _ in range(rounds):
            for side in contenders.values():
                side.turn(position, 8)
        found = {name: side.report() for name, side in contenders.items()}
        ours, theirs = contenders["monograph"], contenders["onnxruntime"]
        ratios = [b / a for a, b in zip(ours.wall, theirs.wall, strict=True)]
        rows.append(
            {
                "position": position,
                **found,
                "ratio": statistics.median(ratios),
                "cpu_ratio": found["onnxruntime"]["cpu_ms"] / found["monograph"]["cpu_ms"],
                "same_tokens": ours.tokens == theirs.tokens,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="llama-100m", choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=["int4", "int4-128", "f32"])
    parser.add_argument("--accuracy-level", type=int, default=4, help="of MatMulNBits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024, help="of the caches")
    parser.add_argument("--positions", nargs="+", type=int, default=[32, 512])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="keep models here, and use those found")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in a.formats:
            if name not in PRESETS:
                parser.error(f"no format {name!r}; there are {', '.join(sorted(PRESETS))}")
            folder = (a.folder or Path(temporary)) / f"{a.shape}-{name}-{a.accuracy_level}"
            if not (folder / "model.onnx").exists():
                build(folder, a.shape, preset(name, accuracy=a.accuracy_level))
            shape, model = shape_of(a.shape), folder / "model.onnx"
            rows = compare(model, shape, a.length, a.threads, a.positions, a.rounds)
            results[name] = rows
            for r in rows:
                print(
                    f"{name:12} at {r['position']:5}: monograph"
                    f" {r['monograph']['tokens_per_s']:7.1f} tokens/s"
                    f" ({r['monograph']['cpu_ms']:6.2f} ms cpu), onnxruntime"
                    f" {r['onnxruntime']['tokens_per_s']:7.1f}"
                    f" ({r['onnxruntime']['cpu_ms']:6.2f} ms cpu); {r['ratio']:.2f}x wall,"
                    f" {r['cpu_ratio']:.2f}x cpu; same tokens: {r['same_tokens']}",
                    flush=True,
                )
    if a.json:
        a.json.write_text(json.dumps({"threads": a.threads, "formats": results}, indent=1))


if __name__ == "__main__":
    main()
