"""The runs of one model: a queue, and batches of what waits while others run.

A model whose runs are short runs in the thread of the event loop, right after the requests of one
turn of the loop have been read: a change of threads would take longer than the run. Other models
run in workers (see `batch_workers`), each of which takes a batch of what waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monograph.ir import Array
from monograph.serve.batch_limit import BatchLimit
from monograph.serve.batch_workers import BatchWorker, BatchWorkers
from monograph.serve.batches import Arrays, BatchAxes, Buffers, Waiting, choose, group_of, parted
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.settings import Limits
from monograph.serve.statistics import ModelStatistics
from monograph.serve.tracing import CURRENT

SHORT = 300e-6
"""Runs up to this many seconds stay in the thread of the event loop."""
IDLE_LOOKS, LOOK_SECONDS = 3, 0.02
"""A runner is idle when it had no request at so many looks; a request may be on its way."""
_log = logging.getLogger("monograph.serve")
Answer = list[Array] | RequestError


@dataclass(slots=True)
class Batch:
    """The requests of a run, and those whose deadline passed before it."""

    live: list[Waiting]
    late: list[Waiting]
    buffers: Buffers | None
    started: float = 0.0


class Runner:
    """Runs the requests of a model. `submit` is called in an event loop."""

    def __init__(
        self,
        run: Callable[[Arrays], list[Array]],
        outputs: Sequence[str],
        statistics: ModelStatistics,
        limits: Limits,
        axes: BatchAxes | None = None,
        max_batch: int = 1,
        name: str = "",
        workers: int = 1,
        expect: Callable[[int], None] = lambda more: None,
    ) -> None:
        """workers: the most runs at a time. expect: is told of changes of their usual number."""
        self.axes = axes
        self.waiting_bytes = 0
        self._run = run
        self._names = tuple(outputs)
        self._statistics = statistics
        self._limits = limits
        self._limit = BatchLimit(max_batch)
        self._queue: list[Waiting] = []
        self._lock = threading.Lock()
        """Held while the queue and the statistics change."""
        self._typical = SHORT
        self._scheduled = False
        self._closed = False
        self._running = 0
        """The requests that run."""
        self._busy = 0
        """The runs at this moment."""
        self._max_batch = max_batch
        self._buffers: list[Buffers] = []
        """The buffers of no run."""
        self.workers = BatchWorkers(f"run {name}", workers, self._work, expect)

    @property
    def depth(self) -> int:
        """The number of requests that wait."""
        return len(self._queue)

    @property
    def short(self) -> bool:
        """True if runs stay in the thread of the event loop."""
        return self._typical < SHORT

    @property
    def pending(self) -> int:
        """The number of requests that wait or run."""
        return len(self._queue) + self._running

    async def submit(self, feeds: Arrays, deadline: float) -> list[Array]:
        """Return the outputs for checked feeds; `deadline` is a time of `time.monotonic`."""
        loop = asyncio.get_running_loop()
        group, rows = group_of(feeds, self.axes)
        size = sum([x.nbytes for x in feeds.values()])
        answer: Future[list[Array]] = loop.create_future()
        timer = self.enqueue(
            Waiting(
                feeds, answer, loop, group, rows, size, time.monotonic(), deadline, CURRENT.get()
            )
        )  # fmt: skip
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()

    def enqueue(self, waiting: Waiting) -> TimerHandle | None:
        """Queue a request, in the thread of its event loop; return the timer of its deadline."""
        loop = waiting.loop
        with self._lock:
            self._check_room(waiting.nbytes)
            self._queue.append(waiting)
            self.waiting_bytes += waiting.nbytes
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn)
        if self._typical < SHORT:
            return None
        return loop.call_later(waiting.deadline - waiting.arrived, _expire, waiting)

    def close(self) -> None:
        """End the threads after the requests that wait; those that take too long are refused."""
        end = time.monotonic() + self._limits.drain_seconds
        idle = 0
        while idle < IDLE_LOOKS and time.monotonic() < end:
            idle = 0 if self.pending else idle + 1
            time.sleep(LOOK_SECONDS)
        with self._lock:
            self._closed = True
            left, self._queue = self._queue, []
            self.waiting_bytes = 0
            threads = self.workers.close()
        self._deliver([(w, _unloaded()) for w in left])
        for thread in threads:
            if threading.current_thread() is not thread:
                thread.join(max(end - time.monotonic(), LOOK_SECONDS))

    def _check_room(self, size: int) -> None:
        if self._closed:
            raise _unloaded()
        full = len(self._queue) >= self._limits.queue
        if full or (self._queue and self.waiting_bytes + size > self._limits.queue_bytes):
            self._statistics.failed(Failure.FULL.name.lower(), 0.0)
            raise RequestError(
                Failure.FULL, f"the queue of the model is full ({len(self._queue)} requests)"
            )

    def _turn(self) -> None:
        """Run what has come in this turn of the event loop, or have a worker run it."""
        with self._lock:
            self._scheduled = False
            batch = self._next() if self._typical < SHORT else None
        found = [] if batch is None else self._run_batch(batch)
        with self._lock:
            if batch is not None:
                self._end(batch, found)
            # If several groups wait, the loop reads other requests in between.
            if self._queue:
                self.workers.call()
        self._deliver(found)

    def _work(self, worker: BatchWorker) -> None:
        """Run batches in a worker as long as requests wait."""
        with self._lock:
            batch = self._next(worker)
        while batch is not None:
            found = self._run_batch(batch)
            with self._lock:
                self._end(batch, found)
                # The worker rests before a client has its answer, and sends its next request.
                batch = self._next(worker)
            self._deliver(found)

    def _next(self, worker: BatchWorker | None = None) -> Batch | None:
        """Take the next batch, with the lock held; a worker rests if there is none for it."""
        if not self._queue or self._closed or self._busy >= self.workers.most:
            if worker is not None:
                self.workers.rest(worker)
            return None
        live, late = self._take()
        self._busy += 1
        if self._queue and self._busy < self.workers.most:
            self.workers.call()
        return Batch(live, late, self._buffers.pop() if self._buffers else None)

    def _run_batch(self, batch: Batch) -> list[tuple[Waiting, Answer]]:
        """Run a batch and return the answers to its requests."""
        self._deliver([(w, _expired()) for w in batch.late])
        live = batch.live
        if not live:
            return []
        batch.started = time.monotonic()
        if batch.buffers is None and self.axes is not None:
            batch.buffers = Buffers(self.axes, self._max_batch)
        try:
            answers: list[Answer] = [*self._answers(live, batch.buffers)]
        except Exception as error:
            answers = self._one_by_one(live, error)
        return list(zip(live, answers, strict=True))

    def _end(self, batch: Batch, found: Sequence[tuple[Waiting, Answer]]) -> None:
        """Count a batch that has run, with the lock held."""
        self._busy -= 1
        self._running -= len(batch.live)
        if batch.buffers is not None:
            self._buffers.append(batch.buffers)
        self._count(found, batch.started)

    def _count(self, found: Sequence[tuple[Waiting, Answer]], started: float) -> None:
        """Count the requests of a batch."""
        ended = time.monotonic()
        for w, answer in found:
            self._statistics.queue.add(started - w.arrived)
            took = ended - w.arrived
            if w.span is not None:
                w.span.step("queue", w.arrived, started)
                w.span.step("run", started, ended, requests=len(found), rows=w.rows)
            if isinstance(answer, RequestError):
                self._statistics.failed(answer.kind.name.lower(), took)
            else:
                self._statistics.succeeded(took)

    def _take(self) -> tuple[list[Waiting], list[Waiting]]:
        """Take a batch from the queue, and the requests whose deadline has passed.

        Requests that nobody waits for any more are dropped.
        """
        now = time.monotonic()
        kept: list[Waiting] = []
        late: list[Waiting] = []
        for w in self._queue:
            if w.answer.done():
                self.waiting_bytes -= w.nbytes
            elif w.deadline < now:
                self.waiting_bytes -= w.nbytes
                self._statistics.failed(Failure.EXPIRED.name.lower(), now - w.arrived)
                late.append(w)
            else:
                kept.append(w)
        self._queue = kept
        batch = choose(kept, self._limit) if kept else []
        for w in batch:
            self.waiting_bytes -= w.nbytes
        self._running += len(batch)
        return batch, late

    def _answers(self, batch: list[Waiting], buffers: Buffers | None) -> list[list[Array]]:
        """Run a batch."""
        if len(batch) == 1 or buffers is None:
            return [self._timed(_aligned(batch[0].feeds), max(batch[0].rows, 1))]
        before = time.perf_counter()
        rows = sum(w.rows for w in batch)
        feeds = buffers.joined(batch, rows)
        joined = time.perf_counter()
        outputs = self._timed(feeds, rows)
        after = time.perf_counter()
        found = parted(batch, outputs, self._names, buffers.axes)
        with self._lock:
            self._statistics.compute_input.add(joined - before, len(batch))
            self._statistics.compute_output.add(time.perf_counter() - after, len(batch))
        return found

    def _timed(self, feeds: Arrays, rows: int) -> list[Array]:
        """Run feeds and count the run."""
        before = time.perf_counter()
        outputs = self._run(feeds)
        took = time.perf_counter() - before
        with self._lock:
            self._typical += (took - self._typical) / 4
            self._statistics.ran(rows, took)
            # Workers at work divide the processors.
            self._limit.ran(rows, took / max(self.workers.active, 1))
        return outputs

    def _one_by_one(self, batch: list[Waiting], error: Exception) -> list[Answer]:
        """Answer the requests of a batch that failed: each alone, so that one fails by itself."""
        if len(batch) == 1:
            found = as_request_error(error)
            if found.kind is Failure.INTERNAL:
                _log.exception("a run failed", exc_info=error)
            return [found]
        return [answer for w in batch for answer in self._alone(w)]

    def _alone(self, w: Waiting) -> list[Answer]:
        try:
            return [*self._answers([w], None)]
        except Exception as error:
            return self._one_by_one([w], error)

    def _deliver(self, found: Sequence[tuple[Waiting, Answer]]) -> None:
        """Hand answers to the event loop; at once where this is its thread."""
        try:
            current: AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            current = None
        if not found:
            return
        loop = found[0][0].loop
        if loop is current:
            _answer(found)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_answer, found)


def _aligned(feeds: Arrays) -> Arrays:
    """Return feeds whose elements lie where a processor may read them."""
    if all(x.flags.aligned for x in feeds.values()):
        return feeds
    return {name: x if x.flags.aligned else x.copy() for name, x in feeds.items()}


def _answer(found: Sequence[tuple[Waiting, Answer]]) -> None:
    for waiting, answer in found:
        if waiting.answer.done():
            continue
        if isinstance(answer, RequestError):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)


def _expire(waiting: Waiting) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(_expired())


def _expired() -> RequestError:
    return RequestError(Failure.EXPIRED, "the deadline of the request has passed")


def _unloaded() -> RequestError:
    return RequestError(Failure.UNAVAILABLE, "the model is being unloaded")
