"""Runs steps: feeds tokens in buckets, keeps the cache, and hands out what was chosen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from monograph.config import Config
from monograph.errors import ConfigError, FeedError
from monograph.frontend.onnx import ModelFile
from monograph.generate.arrays import Arrays, arrays_of
from monograph.generate.buckets import check_buckets, make_buckets
from monograph.generate.decoder import Decoder
from monograph.generate.folder import Settings
from monograph.generate.loop import LoopModel, build_loop
from monograph.generate.sampling import SEEN, Sampling, Shape
from monograph.generate.stats import add_up
from monograph.generate.step import (
    COUNT,
    LOGITS,
    NEXT,
    NEXT_POSITION,
    POSITION,
    START,
    TOKENS,
    Step,
    build_step,
)
from monograph.ir import Array
from monograph.runtime.progress import Progress
from monograph.runtime.source import Source
from monograph.session import Session

_LOOKUPS = ("Gather", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding")
"""Ops that read only rows of their tables."""
_HALVES = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1)
"""Types that have two elements in a byte."""
_FLOATS = {"temperature", "top_p", "penalty"}


class RewrittenSource(Source):
    """A model that was made of a file: its weights may lie beside that file."""

    def __init__(self, model: onnx.ModelProto, directory: Path) -> None:
        super().__init__(model)
        self._model = model
        self.directory = directory
        self.digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()

    def read(self) -> ModelFile:
        return ModelFile(self._model, self.directory)


@dataclass
class Timing:
    """What was run so far, and how long it took."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    prefill_runs: int = 0
    decode_seconds: float = 0.0
    decode_runs: int = 0
    """Steps; those of a loop too."""
    decode_launches: int = 0


class Engine:
    """A decoder on a target, with room for a batch of sequences."""

    def __init__(
        self,
        settings: Settings,
        config: Config,
        maximum: int,
        buckets: Sequence[int] | int | None,
        logits: bool,
        progress: Progress | None,
    ) -> None:
        lengths = check_buckets(buckets)
        self._settings = settings
        self._config = config
        self._progress = progress
        self.maximum = maximum
        self.logits_wanted = logits
        self.timing = Timing()
        self._shape: Shape | None = None
        self._loop: tuple[LoopModel, Session] | None = None
        self._before: dict[str, Any] = {}
        """What sessions did that are no longer at hand."""
        self.step: Step
        self.session: Session
        self._arrays: Arrays
        self.choose(Shape())
        self.decoder: Decoder = self.step.decoder
        self.buckets = make_buckets(lengths, maximum, self.decoder.single)
        self.state: dict[str, Any] = {}
        self.batch = 0
        self._data: dict[str, Any] = {}
        self._next: Any = None
        self._position: Any = None
        self._ones: Any = None
        self._runs = 0
        self._filled = 0
        self._start: list[int] = []
        """Of aligned rows: how far the cache is filled, and where each row begins."""
        self._started: Any = None
        self._last: list[int] = []
        """The last token of each row, which pads rows that have no more."""
        self.logits: Any = None
        self.last_feeds: dict[str, Any] = {}
        """What the last run was given; its caches hold what that run made of them."""

    def choose(self, shape: Shape) -> None:
        """Makes the session whose steps choose tokens in this way, unless it is the one at hand."""
        if shape == self._shape:
            return
        step = build_step(self._settings, self.maximum, shape, self.logits_wanted)
        source = RewrittenSource(step.model, step.directory)
        session = Session(source, self._config, {}, dict(step.donate), self._progress)
        if self._shape is not None:
            self._before = self.stats()
        self.session = session
        self._shape, self.step, self._loop = shape, step, None
        self._arrays = arrays_of(self.session)

    def stats(self) -> dict[str, Any]:
        """What all sessions have done so far, as `Session.stats` has it."""
        loops = [] if self._loop is None else [self._loop[1].stats]
        return add_up([*([self._before] if self._before else []), self.session.stats, *loops])

    def start(self, batch: int, sampling: Sampling) -> None:
        """Room for a batch of sequences that nothing is known of yet; old room is used again."""
        self.choose(sampling.shape)
        if batch != self.batch or not self.state:
            self.state = {
                c.past: self._arrays.zeros(
                    (batch, c.heads, self.maximum, c.size),
                    np.dtype(helper.tensor_dtype_to_np_dtype(c.dtype)),
                )
                for c in self.decoder.caches
            }
            self._ones = self._arrays.put(np.ones(batch, np.int64))
        self.batch = batch
        self._last = [0] * batch
        self._start, self._filled = [0] * batch, 0
        self._started = self._arrays.put(np.zeros(batch, np.int64))
        self._next = self._position = None
        self.set_data(sampling, [[] for _ in range(batch)])

    def set_data(self, sampling: Sampling, fed: Sequence[Sequence[int]]) -> None:
        """What the sampler goes by, with the tokens that the cache holds."""
        self.choose(sampling.shape)
        self._data = {
            name: self._arrays.put(np.array([x], np.float32 if name in _FLOATS else np.int64))
            for name, x in sampling.data().items()
        }
        self.state.pop(SEEN, None)
        if sampling.shape.penalised:
            seen = np.zeros((self.batch, self.decoder.vocabulary), np.uint8)
            for row, tokens in zip(seen, fed, strict=True):
                row[list(tokens)] = 1
            self.state[SEEN] = self._arrays.put(seen)

    def decode(self) -> Array:
        """Feeds what the last run chose; what it chose is [batch]."""
        assert self._next is not None
        began = time.perf_counter()
        chosen = self._run(self._next, self._position, self._ones)
        self._filled += 1
        self.timing.decode_seconds += time.perf_counter() - began
        self.timing.decode_runs += 1
        self.timing.decode_launches += 1
        return chosen

    def loop(self, turns: int, stop: Sequence[int], ended: Sequence[bool]) -> Array:
        """Goes on from what the last run chose, in one launch; what it chose is [batch, turns].

        It ends behind so many turns, or when every row has had a stop token; rows that `ended`
        before stay as they are.
        """
        assert self._next is not None
        session = self.loop_session()
        assert self._loop is not None
        loop, _ = self._loop
        began = time.perf_counter()
        put = self._arrays.put
        feeds = {
            "first.tokens": self._next,
            "first.position": self._position,
            "first.ended": put(np.array(ended, np.bool_)),
            "first.made": self._arrays.zeros((self.batch, self.maximum), np.dtype(np.int64)),
            "turns": put(np.array([turns], np.int64)),
            "stop": put(np.array(list(stop) or [-1], np.int64)),
            **{outer: self.state[name] for outer, name in loop.state.items()},
            **self._data,
        }
        if self.step.aligned:
            feeds[START] = self._started
        places = {new: feeds[old] for new, old in loop.donate.items()}
        outputs = [p.name for p in session.outputs]
        self._next = None
        found = dict(zip(outputs, session.run(feeds, out=places), strict=True))
        self._next, self._position = found["last.tokens"], found["last.position"]
        count = int(self._arrays.get(found["made_turns"])[0])
        self._filled += count
        self.logits = None
        self.timing.decode_seconds += time.perf_counter() - began
        self.timing.decode_runs += count
        self.timing.decode_launches += 1
        return self._arrays.get(found["all_made"])[:, :count].copy()

    def loop_session(self) -> Session:
        """What makes many tokens in one launch."""
        if self._loop is None:
            made = build_loop(self.step)
            source = RewrittenSource(made.model, made.directory)
            session = Session(source, self._config, {}, made.donate, self._progress)
            self._loop = made, session
        return self._loop[1]

    def can_decode(self) -> bool:
        """Whether the last run chose a token for every row from its last real one."""
        return self._next is not None

    def forget(self) -> None:
        """What was chosen is not what comes next."""
        self._next = None

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """Refuses sequences of unequal lengths where the decoder cannot tell them apart."""
        if self.step.aligned and self.decoder.positions is None and len(set(lengths)) > 1:
            raise FeedError(
                "the decoder counts positions itself: sequences of a batch are equally long",
                expected="as many tokens in each",
                given=list(lengths),
                hint="export the decoder with position_ids, or run the prompts one by one",
            )

    def feed(self, rows: Sequence[Sequence[int]], position: Array, prompt: bool = False) -> Array:
        """Feeds each row from a position on, and counts the positions up.

        A row is all of a sequence; what lies before its position is in the cache. A position at
        the end leaves the row as it is. The result is what was chosen behind the last token of
        each row that was fed. A `prompt` counts as one however short it is.
        """
        began = time.perf_counter()
        left = [list(row[int(p) :]) for row, p in zip(rows, position, strict=True)]
        fed, runs = sum(map(len, left)), self._runs
        if self.step.aligned:
            chosen = self._feed_aligned(rows, left, position)
        else:
            chosen = self._feed_free(left, position)
        runs = self._runs - runs
        if not (runs == 1 and all(left)):
            self._next = None
        seconds = time.perf_counter() - began
        if prompt or fed > self.batch:
            self.timing.prefill_seconds += seconds
            self.timing.prefill_runs += runs
            self.timing.prefill_tokens += fed
        else:
            self.timing.decode_seconds += seconds
            self.timing.decode_runs += runs
            self.timing.decode_launches += runs
        return chosen

    def _feed_free(self, left: list[list[int]], position: Array) -> Array:
        """Rows have positions of their own, and padding behind them."""
        chosen = np.zeros(self.batch, np.int64)
        done = [0] * self.batch
        put = self._arrays.put
        while any(n < len(row) for n, row in zip(done, left, strict=True)):
            rest = [row[n:] for n, row in zip(done, left, strict=True)]
            size = self.bucket(max(map(len, rest)), self.maximum - int(position.max()))
            count = np.array([min(len(row), size) for row in rest], np.int64)
            tokens = np.zeros((self.batch, size), np.int64)
            for b, row in enumerate(rest):
                # Padding is a token of the row itself: none is seen that was not there.
                tokens[b] = (row[:size] + [row[0]] * size)[:size] if row else self._last[b]
                if row:
                    self._last[b] = row[count[b] - 1]
            made = self._run(put(tokens), put(position), put(count))
            for b, row in enumerate(rest):
                if 0 < len(row) <= size:
                    chosen[b] = made[b]
                position[b] += count[b]
                done[b] += int(count[b])
        return chosen

    def _feed_aligned(
        self, rows: Sequence[Sequence[int]], left: list[list[int]], position: Array
    ) -> Array:
        """All rows are at one position, and padding lies in front of short ones.

        Where they are not, because some were done before others, all are fed anew.
        """
        going = [b for b, row in enumerate(left) if row]
        places = {(int(position[b]) + self._start[b], len(left[b])) for b in going}
        place, _ = max(places)
        if len(places) == 1 and place <= self._filled:
            self._filled = place  # less than before where sequences were rewound
        else:
            longest = max(map(len, rows))
            position[going] = 0  # nothing holds any more, should a run fail
            self._start = [longest - len(row) for row in rows]
            left = [[row[0]] * n + list(row) for n, row in zip(self._start, rows, strict=True)]
            self._filled = 0
        length = max(map(len, left))
        table = np.array([row or [self._last[b]] * length for b, row in enumerate(left)], np.int64)
        made = np.zeros(self.batch, np.int64)
        put = self._arrays.put
        self._started = put(np.array(self._start, np.int64))
        while table.shape[1]:
            size = self.bucket(table.shape[1], self.maximum - self._filled)
            count = min(size, table.shape[1])
            padding = np.repeat(table[:, :1], size - count, 1)
            tokens = np.concatenate([table[:, :count], padding], 1)
            places_ = np.full(self.batch, self._filled, np.int64)
            made = self._run(put(tokens), put(places_), put(np.full(self.batch, count, np.int64)))
            self._filled += count
            self._last = [int(t) for t in table[:, count - 1]]
            table = table[:, count:]
        for b in range(self.batch):
            if left[b]:
                position[b] = len(rows[b])
        return made

    def bucket(self, wanted: int, room: int) -> int:
        """How many tokens to feed at once: all of them if some bucket has room for that."""
        fitting = [b for b in self.buckets if b <= room]
        return next((b for b in fitting if b >= wanted), max(b for b in fitting if b <= wanted))

    def _run(self, tokens: Any, position: Any, count: Any) -> Array:
        feeds = {TOKENS: tokens, POSITION: position, COUNT: count, **self.state, **self._data}
        if self.step.aligned:
            feeds[START] = self._started
        self.last_feeds = feeds
        self._next = None  # until the run has come to its end
        places = {present: self.state[past] for present, past in self.step.donate.items()}
        made = dict(zip(self._outputs, self.session.run(feeds, out=places), strict=True))
        self._runs += 1
        self._next, self._position = made[NEXT], made[NEXT_POSITION]
        self.logits = made.get(LOGITS)
        return self._arrays.get(self._next).reshape(-1).copy()

    @property
    def _outputs(self) -> list[str]:
        return [p.name for p in self.session.outputs]

    def read_logits(self) -> Array:
        """The logits behind the last run, [batch, vocabulary]."""
        if self.logits is None:
            raise ConfigError(
                "the logits were not asked for", hint="make the Generator with logits=True"
            )
        return self._arrays.get(self.logits)

    def place(self, position: int) -> None:
        """Lets the next step go on as if so many tokens were in the cache; for measurements."""
        self._next = self._arrays.put(np.zeros((self.batch, 1), np.int64))
        self._position = self._arrays.put(np.full(self.batch, position, np.int64))
        self._filled = position

    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads whole, as the file has them: no lookup tables."""
        graph = self.step.model.graph
        read = {n for node in graph.node if node.op_type not in _LOOKUPS for n in node.input}
        own = [t for t in graph.initializer if t.name in read and not t.name.startswith("~")]
        return sum(map(_bytes, own))

    def cache_bytes(self, position: int) -> int:
        """Bytes of the cache that attention reads behind so many tokens."""
        rows = sum(
            c.heads * c.size * np.dtype(helper.tensor_dtype_to_np_dtype(c.dtype)).itemsize
            for c in self.decoder.caches
        )
        return int(rows) * position * self.batch


def _bytes(tensor: onnx.TensorProto) -> int:
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.data_type in _HALVES:
        return (count + 1) // 2
    return count * int(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize)
