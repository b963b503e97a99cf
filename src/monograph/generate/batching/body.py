"""Runs a decoder on some slots of its cache: tokens in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from monograph.config import Config
from monograph.generate.batching.slots import check_memory, row_buckets
from monograph.generate.check import RewrittenSource
from monograph.generate.discover.folder import Settings
from monograph.generate.engine.arrays import Arrays, arrays_of
from monograph.generate.prompts import check_buckets, choose_bucket, make_buckets
from monograph.generate.rewrite.step import COUNT, LOGITS, POSITION, START, TOKENS, build_step
from monograph.generate.stats import cache_row_bytes
from monograph.ir import Array
from monograph.runtime.progress import Progress
from monograph.session import Session


class SlotBody:
    """A decoder without a sampler, and the cache of all slots.

    A run takes neighbouring slots. Their part of the cache is a view, so that a run writes rows of
    these slots only, and nothing is copied.
    """

    def __init__(
        self,
        settings: Settings,
        config: Config,
        maximum: int,
        slots: int,
        buckets: Sequence[int] | int | None,
        progress: Progress | None,
    ) -> None:
        lengths = check_buckets(buckets)
        self.step = build_step(settings, maximum, None)
        source = RewrittenSource(self.step.model, self.step.directory)
        self.session = Session(source, config, {}, dict(self.step.donate), progress)
        self._settings, self._config = settings, config
        self._checking: Session | None = None
        self.arrays: Arrays = arrays_of(self.session)
        self.maximum, self.slots = maximum, slots
        decoder = self.step.decoder
        self.vocabulary = decoder.vocabulary
        self.buckets = make_buckets(lengths, maximum, decoder.single)
        self.single = decoder.single
        """True if the decoder takes one token at a time."""
        self.together = not self.step.aligned
        """True if rows of a run may be at positions of their own."""
        self.row_buckets = row_buckets(slots) if self.together else (1,)
        self.row_bytes = cache_row_bytes(decoder.caches)
        self.cache_bytes = check_memory(slots, maximum, self.row_bytes, _free_bytes(self.session))
        self._state = {
            c.past: self.arrays.zeros(
                (slots, c.heads, maximum, c.size),
                np.dtype(helper.tensor_dtype_to_np_dtype(c.dtype)),
            )
            for c in decoder.caches
        }
        self._views: dict[tuple[int, int], dict[str, Any]] = {}
        self._outputs = [p.name for p in self.session.outputs]

    def run(self, first: int, tokens: Array, position: Array, count: Array) -> Any:
        """Feed tokens [rows, S] to the slots from `first` on; return logits [rows, vocabulary].

        Row b gets its tokens at `position[b]`; `count[b]` of them are real, and the logits are
        those after the last real one. Other tokens write behind them, where nothing is valid.
        """
        state = self._view(first, len(tokens))
        put = self.arrays.put
        feeds = {TOKENS: put(tokens), POSITION: put(position), COUNT: put(count), **state}
        if self.step.aligned:
            feeds[START] = put(np.zeros(len(tokens), np.int64))
        places = {present: state[past] for present, past in self.step.donate.items()}
        made = self.session.run(feeds, out=places)
        return made[self._outputs.index(LOGITS)]

    def check(self, first: int, tokens: Array, position: Array) -> list[Any]:
        """Feed tokens [rows, S] like `run`; return the logits after each, S times [rows, V].

        It has a session of its own, which is made when it is first needed.
        """
        if self._checking is None:
            step = build_step(self._settings, self.maximum, None, every=True)
            source = RewrittenSource(step.model, step.directory)
            self._checking = Session(source, self._config, {}, dict(step.donate), None)
        put, state = self.arrays.put, self._view(first, len(tokens))
        count = np.full(len(tokens), tokens.shape[1], np.int64)
        feeds = {TOKENS: put(tokens), POSITION: put(position), COUNT: put(count), **state}
        if self.step.aligned:
            feeds[START] = put(np.zeros(len(tokens), np.int64))
        places = {present: state[past] for present, past in self.step.donate.items()}
        made = self._checking.run(feeds, out=places)
        names = [p.name for p in self._checking.outputs]
        logits = made[names.index(LOGITS)]
        return [self.arrays.contiguous(logits[:, j]) for j in range(tokens.shape[1])]

    def _view(self, first: int, rows: int) -> dict[str, Any]:
        key = (first, rows)
        if key not in self._views:
            self._views[key] = {n: x[first : first + rows] for n, x in self._state.items()}
        return self._views[key]

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy the first rows of a slot to another one."""
        for cache in self._state.values():
            cache[target, :, :rows] = cache[source, :, :rows]

    def bucket(self, wanted: int, room: int) -> int:
        """Return the number of tokens to feed at once: all of them if a bucket has room."""
        return choose_bucket(self.buckets, wanted, room)

    def release(self) -> None:
        """Release the cache."""
        self._views.clear()
        self._state.clear()


def _free_bytes(session: Session) -> int | None:
    """Return the free memory of a session's device; None on the host."""
    if session.gpu is None or session.gpu.place is None:
        return None
    from monograph.runtime.gpu.target import GpuBackend

    if not isinstance(session.gpu, GpuBackend) or not session.gpu.device.measures:
        return None  # the interpreter's memory is the host's
    return session.gpu.device.free_bytes()
