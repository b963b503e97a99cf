"""The contenders of `benchmarks.decode_cpu`, each in a process of its own.

Threads of one contender that look for work would take cores and caches from the other, so that no
two share a process, and none answers before all its threads are asleep. A process waits in a
pipe for its turns.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import monograph
from benchmarks.decoder_shapes import shape_of
from monograph.codegen.llvm.module.features import choose_features
from monograph.ir import Graph, Input, constant, tensor
from monograph.ir.dtype import f32
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceMax
from monograph.runtime.cpu.executable import compile_graph

Step = Callable[[int, int], int]
"""(token, its position) -> the next token"""
MONOGRAPH, ONNXRUNTIME = "monograph", "onnxruntime"
FIRST = 7
"""The token to begin with."""
QUIET_SECONDS, QUIET_SHARE = 0.02, 0.05
"""A process is quiet when its threads took less than this share of so long a time."""
RESTLESS_SECONDS = 5.0
"""onnxruntime's threads look for work for some 40 ms; what goes on for so long never rests."""
READ_SECONDS, READ_BYTES = 2.0, 1 << 28
"""Seconds of each kind of read, the best one counts; and its bytes, which no cache holds.
Behind a rest it takes tenths of a second, or more, until some memory gives all it has."""


@dataclass(frozen=True)
class Task:
    """The settings that all contenders of a comparison share."""

    model: Path
    shape: str
    length: int
    """Of the caches."""
    threads: int


def onnxruntime_step(task: Task) -> Step:
    """onnxruntime at its best: all memory bound once, present in the place of past."""
    import onnxruntime as ort

    s, options = shape_of(task.shape), ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = task.threads, 3
    session = ort.InferenceSession(str(task.model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    half = "float16" in session.get_outputs()[0].type
    dtype = np.float16 if half else np.float32

    def bind(name: str, data: Any, *, out: bool = False, shape: Any = None) -> None:
        put = binding.bind_output if out else binding.bind_input
        put(name, "cpu", 0, data.dtype.type, shape or data.shape, data.ctypes.data)

    caches = [np.zeros((1, s.groups, task.length, s.head_size), dtype) for _ in range(2 * s.layers)]
    for i, cache in enumerate(caches):
        place = f"{i // 2}.{('key', 'value')[i % 2]}"
        bind(f"past_key_values.{place}", cache)
        bind(f"present.{place}", cache, out=True)
    token_at, position_at = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    mask, logits = np.ones((1, task.length), np.int64), np.zeros((1, 1, s.vocab), dtype)
    bind("input_ids", token_at)
    if "position_ids" in {i.name for i in session.get_inputs()}:
        bind("position_ids", position_at)
    bind("logits", logits, out=True)

    def step(token: int, position: int, _alive: Any = caches) -> int:
        token_at[0, 0], position_at[0, 0] = token, position
        bind("attention_mask", mask, shape=(1, position + 1))
        session.run_with_iobinding(binding)
        return int(logits.argmax())

    return step


def session_step(task: Task) -> Step:
    """A session with donated state; the attention mask is as long as the caches from the start."""
    s = shape_of(task.shape)
    kinds = [(i, p) for i in range(s.layers) for p in ("key", "value")]
    donate = {f"present.{i}.{p}": f"past_key_values.{i}.{p}" for i, p in kinds}
    session = monograph.load(task.model, target="cpu", threads=task.threads, donate=donate)
    names = [o.name for o in session.outputs]
    needs = {i.name for i in session.inputs}
    logits = next(o.dtype for o in session.outputs if o.name == "logits")
    assert logits is not None
    shape = (1, s.groups, task.length, s.head_size)
    states = {past: np.zeros(shape, logits.numpy) for past in donate.values()}
    mask = np.zeros((1, task.length), np.int64)

    def step(token: int, position: int) -> int:
        mask[:, : position + 1], mask[:, position + 1 :] = 1, 0
        feeds = {"input_ids": np.array([[token]]), "attention_mask": mask, **states}
        if "position_ids" in needs:
            feeds["position_ids"] = np.array([[position]])
        made = dict(zip(names, session.run(feeds), strict=True))
        states.update({past: made[present] for present, past in donate.items()})
        return int(made["logits"][0, 0].argmax())

    return step


def generator_step(task: Task) -> Step:
    """Return steps of the public generator, which keeps the tokens and begins with the first."""
    return _Generated(task)


class _Generated:
    def __init__(self, task: Task) -> None:
        self.generator = monograph.Generator(
            task.model.parent, "cpu", max_length=task.length, stop=(), threads=task.threads
        )
        self.generator.append_tokens([FIRST])

    def __call__(self, token: int, position: int) -> int:
        self.generator.generate_next_token()
        return int(self.generator.get_next_tokens()[0])

    def weight_bytes(self) -> int:
        """Bytes of the weights that every token reads."""
        return self.generator.engine.weight_bytes()


CONTENDERS: dict[str, Callable[[Task], Step]] = {
    MONOGRAPH: generator_step,
    "session": session_step,
    ONNXRUNTIME: onnxruntime_step,
}


@dataclass
class Turn:
    """Tokens that were made, and what one of the timed ones took."""

    tokens: list[int]
    wall: float
    cpu: float


class Decoding:
    """A contender at work: what it has made so far."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.tokens = [FIRST]

    def make(self, count: int) -> None:
        for _ in range(count):
            self.tokens.append(self.step(self.tokens[-1], len(self.tokens) - 1))

    def turn(self, untimed: int, timed: int) -> Turn:
        """Some tokens that wake threads and fill caches, then some that are timed; then a rest."""
        before = len(self.tokens)
        self.make(untimed)
        start, used = time.perf_counter(), time.process_time()
        self.make(timed)
        wall, cpu = time.perf_counter() - start, time.process_time() - used
        rest()
        return Turn(self.tokens[before:], wall / max(timed, 1), cpu / max(timed, 1))


def rest() -> None:
    """Returns when no thread of this process is awake any more."""
    end = time.perf_counter() + RESTLESS_SECONDS
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(QUIET_SECONDS)
        if time.process_time() - used < QUIET_SECONDS * QUIET_SHARE:
            return
    raise RuntimeError(f"threads go on working without work for {RESTLESS_SECONDS:g} s")


def _serve(pipe: Connection, name: str, task: Task) -> None:
    """Run the process of a contender: a turn for every pair of numbers, until None comes."""
    try:
        step = CONTENDERS[name](task)
        decoding = Decoding(step)
        pipe.send(step.weight_bytes() if isinstance(step, _Generated) else 0)
        while (asked := pipe.recv()) is not None:
            pipe.send(decoding.turn(*asked))
    except Exception as e:  # whoever waits is to know
        pipe.send(e)


class Side:
    """One contender, seen from outside its process."""

    def __init__(self, name: str, task: Task) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, name, task), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.name, self.tokens, self.turns = name, [FIRST], list[Turn]()
        self.weight_bytes: int = self._answer()
        """Bytes that each token reads, as Monograph counts them; 0 from others."""

    def _answer(self) -> Any:
        try:
            found = self._pipe.recv()
        except EOFError as e:
            self._process.join()
            code = self._process.exitcode
            raise RuntimeError(f"the process of {self.name} ended with {code}") from e
        if isinstance(found, Exception):
            raise found
        return found

    def make(self, untimed: int, timed: int = 0) -> Turn:
        self._pipe.send((untimed, timed))
        found: Turn = self._answer()
        self.tokens += found.tokens
        return found

    def turn(self, untimed: int, timed: int) -> None:
        self.turns.append(self.make(untimed, timed))

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()


def _read(pipe: Connection, threads: int) -> None:
    """Reads much memory as an operand of a reduction, and as the weights of a product.

    Reads follow each other without a pause, as those of a decoder do.
    """
    side = int((READ_BYTES // f32.itemsize) ** 0.5)
    x, row = Input("x", tensor(f32, side, side))(), Input("x", tensor(f32, 1, side))()
    ones = np.ones((side, side), np.float32)
    best = float("inf")
    for feed, read in ((ones, ReduceMax((0, 1))(x)), (ones[:1], Dot()(row, constant(ones)))):
        given = x if feed is ones else row
        graph = Graph((given,), (("y", read),))
        executable = compile_graph(graph, choose_features(), threads)
        start = time.perf_counter()
        end = start + READ_SECONDS
        while start < end:
            executable.run({"x": feed})
            begun, start = start, time.perf_counter()
            best = min(best, start - begun)
    pipe.send(ones.nbytes / best)


def bandwidth(threads: int) -> float:
    """Bytes a second that memory gives so many threads, measured in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_read, args=(theirs, threads), daemon=True)
    process.start()
    theirs.close()
    found = float(ours.recv())
    process.join()
    return found
