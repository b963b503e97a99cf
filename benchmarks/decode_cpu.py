"""Decoding on the CPU beside onnxruntime: tokens a second of the same file with the same threads.

    python -m benchmarks.decode_cpu [--shape llama-100m] [--formats int4 int4-128 f32] [--threads 2]

Both sides decode greedily from one token on, a token a call, over caches of one fixed length that
are updated in place: onnxruntime with IO binding and present bound to the memory of past, Monograph
as a `Generator` (and as a `Session` with donated state, with --session). They take turns, a few
tokens each, and medians are compared. Wall time is what counts; the time of the process's threads
is printed beside it, for a machine that others use too.
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
FIRST, TURN = 7, 8
"""The token to begin with, and how many a turn makes."""


def onnxruntime_step(model: Path, s: Shape, length: int, threads: int) -> Step:
    """onnxruntime at its best: bound memory, present in the place of past."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    half = "float16" in session.get_outputs()[0].type
    dtype = np.float16 if half else np.float32
    for layer in range(s.layers):
        for part in ("key", "value"):
            cache = np.zeros((1, s.groups, length, s.head_size), dtype)
            state = ort.OrtValue.ortvalue_from_numpy(cache)
            binding.bind_ortvalue_input(f"past_key_values.{layer}.{part}", state)
            binding.bind_ortvalue_output(f"present.{layer}.{part}", state)
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

    return step


def session_step(model: Path, s: Shape, length: int, threads: int) -> Step:
    """A session with donated state; the attention mask is as long as the caches from the start."""
    kinds = [(i, p) for i in range(s.layers) for p in ("key", "value")]
    donate = {f"present.{i}.{p}": f"past_key_values.{i}.{p}" for i, p in kinds}
    session = monograph.load(model, target="cpu", threads=threads, donate=donate)
    names = [o.name for o in session.outputs]
    needs = {i.name for i in session.inputs}
    logits = next(o.dtype for o in session.outputs if o.name == "logits")
    assert logits is not None
    shape = (1, s.groups, length, s.head_size)
    states = {past: np.zeros(shape, logits.numpy) for past in donate.values()}
    mask = np.zeros((1, length), np.int64)

    def step(token: int, position: int) -> int:
        mask[:, : position + 1], mask[:, position + 1 :] = 1, 0
        feeds = {"input_ids": np.array([[token]]), "attention_mask": mask, **states}
        if "position_ids" in needs:
            feeds["position_ids"] = np.array([[position]])
        made = dict(zip(names, session.run(feeds), strict=True))
        states.update({past: made[present] for present, past in donate.items()})
        return int(made["logits"][0, 0].argmax())

    return step


def generator_step(model: Path, length: int, threads: int) -> Step:
    """What users call. It keeps the tokens itself, and begins with the first."""
    made = monograph.Generator(model.parent, "cpu", max_length=length, stop=(), threads=threads)
    made.append_tokens([FIRST])

    def step(token: int, position: int) -> int:
        made.generate_next_token()
        return int(made.get_next_tokens()[0])

    return step


PAUSE_SECONDS = 0.05
"""After which no thread of the other side is awake any more."""


@dataclass
class Side:
    """One contender: what it has made so far, and the seconds that its turns took."""

    step: Step
    tokens: list[int] = field(default_factory=lambda: [FIRST])
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def make(self, count: int) -> None:
        for _ in range(count):
            self.tokens.append(self.step(self.tokens[-1], len(self.tokens) - 1))

    def turn(self) -> None:
        """Some tokens, timed, behind a pause and one that is not.

        The other side had the caches, and its threads may go on to look for work for a while.
        """
        time.sleep(PAUSE_SECONDS)
        self.make(1)
        start, used = time.perf_counter(), time.process_time()
        self.make(TURN)
        self.wall.append((time.perf_counter() - start) / TURN)
        self.cpu.append((time.process_time() - used) / TURN)

    def report(self) -> dict[str, float]:
        wall, cpu = statistics.median(self.wall), statistics.median(self.cpu)
        return {"tokens_per_s": 1 / wall, "ms": wall * 1e3, "cpu_ms": cpu * 1e3}


def compare(sides: dict[str, Side], position: int, rounds: int) -> dict[str, Any]:
    """All sides from a position on: what each took, and how much longer onnxruntime did."""
    for side in sides.values():
        side.wall, side.cpu = [], []
        side.make(max(position + 1 - len(side.tokens), 0))
    for _ in range(rounds):
        for side in sides.values():
            side.turn()
    theirs = sides["onnxruntime"]
    found: dict[str, Any] = {"position": position}
    for name, side in sides.items():
        ratios = [b / a for a, b in zip(side.wall, theirs.wall, strict=True)]
        found[name] = {
            **side.report(),
            "ratio": statistics.median(ratios),
            "cpu_ratio": statistics.median(theirs.cpu) / statistics.median(side.cpu),
            "same_tokens": side.tokens == theirs.tokens,
        }
    return found


def show(form: str, row: dict[str, Any]) -> None:
    for name, r in row.items():
        if isinstance(r, dict):
            beside = f"{r['ratio']:5.2f}x wall {r['cpu_ratio']:5.2f}x cpu"
            same = "" if r["same_tokens"] else "  other tokens"
            print(
                f"{form:12} {row['position']:5}  {name:12} {r['tokens_per_s']:7.1f} tokens/s"
                f" {r['ms']:7.2f} ms {r['cpu_ms']:7.2f} ms cpu  {beside}{same}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="llama-100m", choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=["int4", "int4-128", "f32"])
    parser.add_argument("--accuracy-level", type=int, default=4, help="of MatMulNBits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024, help="of the caches")
    parser.add_argument("--positions", nargs="+", type=int, default=[32, 512])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--session", action="store_true", help="time a plain session too")
    parser.add_argument("--folder", type=Path, help="keep models here, and use those found")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    for name in a.formats:
        if name not in PRESETS:
            parser.error(f"no format {name!r}; there are {', '.join(sorted(PRESETS))}")
    if max(a.positions) + (TURN + 1) * a.rounds + 1 > a.length:
        parser.error("the caches are too short for the last position and its rounds")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in a.formats:
            folder = (a.folder or Path(temporary)) / f"{a.shape}-{name}-{a.accuracy_level}"
            if not (folder / "model.onnx").exists():
                build(folder, a.shape, preset(name, accuracy=a.accuracy_level))
            s, model = shape_of(a.shape), folder / "model.onnx"
            sides = {"monograph": Side(generator_step(model, a.length, a.threads))}
            if a.session:
                sides["session"] = Side(session_step(model, s, a.length, a.threads))
            sides["onnxruntime"] = Side(onnxruntime_step(model, s, a.length, a.threads))
            results[name] = []
            for position in sorted(a.positions):
                results[name].append(compare(sides, position, a.rounds))
                show(name, results[name][-1])
    if a.json:
        a.json.write_text(json.dumps({"threads": a.threads, "formats": results}, indent=1))


if __name__ == "__main__":
    main()
