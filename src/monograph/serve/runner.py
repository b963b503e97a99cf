"""The runs of one model: a queue, and batches of what waits while others run.

A model whose runs are short runs in the thread of the event loop, right after the requests of one
turn of the loop have been read: a change of threads would take longer than the run. Other models
run in lanes: threads, each of which takes a batch. Runs of several lanes share the processors
without waiting for each other, where the threads of one run would.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence

from monograph.ir import Array
from monograph.serve.batch_limit import BatchLimit
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
        lanes: int = 1,
    ) -> None:
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
        self._device = threading.Semaphore(lanes)
        """Held during runs, once for each lane."""
        self._more = threading.Semaphore(0)
        self._typical = SHORT
        self._scheduled = False
        self._closed = False
        self._running = 0
        buffers = [None if axes is None else Buffers(axes, max_batch) for _ in range(lanes + 1)]
        self._own_buffers = buffers.pop()
        """The buffers of runs in the thread of the event loop."""
        self._threads = [
            threading.Thread(target=self._work, args=(b,), name=f"run {name}", daemon=True)
            for b in buffers
        ]
        for thread in self._threads:
            thread.start()

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
        if self._typical >= SHORT:
            self._more.release()
            left = waiting.deadline - waiting.arrived
            return loop.call_later(left, _expire, waiting)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn)
        return None

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
        self._deliver([(w, _unloaded()) for w in left])
        self._more.release(len(self._threads))
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(self._limits.drain_seconds)

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
        """Run what has come in this turn of the event loop."""
        self._scheduled = False
        if self._device.acquire(blocking=False):
            try:
                self._run_next(self._own_buffers)
            finally:
                self._device.release()
        if self._queue:
            # The thread runs, or several groups wait: the loop reads other requests in between.
            self._more.release()

    def _work(self, buffers: Buffers | None) -> None:
        """Run batches as long as requests come."""
        while True:
            self._more.acquire()
            if self._closed:
                return
            while self._queue and not self._closed:
                with self._device:
                    self._run_next(buffers)

    def _run_next(self, buffers: Buffers | None) -> None:
        """Run the next batch and answer its requests."""
        with self._lock:
            live, late = self._take()
        # A client may send its next request right after this answer: the lock is free by then.
        self._deliver([(w, _expired()) for w in late])
        if not live:
            return
        started = time.monotonic()
        try:
            answers: list[Answer] = [*self._answers(live, buffers)]
        except Exception as error:
            answers = self._one_by_one(live, error)
        found = list(zip(live, answers, strict=True))
        with self._lock:
            self._count(found, started)
            self._running -= len(live)
        self._deliver(found)

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
            self._limit.ran(rows, took)
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
