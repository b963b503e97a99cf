"""The threads of a model in which batches run beside each other.

The worker that was used last is woken first, so that requests which follow each other stay with
one worker, whose runs may use all processors. Where several workers are busy, each one runs on its
part of the processors: threads of one run would wait for each other where another run delays one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

MOST = 4
"""The most workers of a model that are made without being asked for."""
LINGER = 0.02
"""The seconds after a run in which a worker still counts as one that is at work."""


class BatchWorker:
    """A thread that takes work as long as there is some, and then sleeps."""

    def __init__(self, workers: BatchWorkers, number: int) -> None:
        self._workers = workers
        self._more = threading.Semaphore(1)
        self._counted = False
        self.thread = threading.Thread(
            target=self._work, name=f"{workers.name} {number}", daemon=True
        )
        self.thread.start()

    def wake(self) -> None:
        """Let the worker look for work."""
        self._more.release()

    def _work(self) -> None:
        while True:
            if not self._more.acquire(timeout=LINGER if self._counted else None):
                self._count(False)
                continue
            if self._workers.closed:
                self._count(False)
                return
            self._count(True)
            self._workers.work(self)

    def _count(self, at_work: bool) -> None:
        """Count the worker among those at work, or no longer."""
        if at_work != self._counted:
            self._counted = at_work
            self._workers.count(1 if at_work else -1)


class BatchWorkers:
    """Up to `most` threads, each started when it is first needed.

    The lock belongs to the caller, and guards the work as well: it is held in `call` and `rest`.
    """

    def __init__(
        self,
        name: str,
        most: int,
        work: Callable[[BatchWorker], None],
        expect: Callable[[int], None],
    ) -> None:
        """work: does what there is, and ends with `rest`. expect: is told how many more workers are
        at work.
        """
        self.name, self.most, self.work = name, most, work
        self.active = 0
        """The workers at work."""
        self.closed = False
        self._expect = expect
        self._all: list[BatchWorker] = []
        self._resting: list[BatchWorker] = []
        self._counting = threading.Lock()

    def call(self) -> None:
        """Have a worker look for work: one that rests, or a new one; the others look anyway."""
        if self._resting:
            self._resting.pop().wake()
        elif len(self._all) < self.most and not self.closed:
            self._all.append(BatchWorker(self, len(self._all)))

    def rest(self, worker: BatchWorker) -> None:
        """Note that a worker found no more work."""
        self._resting.append(worker)

    def count(self, more: int) -> None:
        """Change the number of workers at work."""
        with self._counting:
            self.active += more
            if self.most > 1:
                self._expect(more)

    def close(self) -> list[threading.Thread]:
        """End the workers that rest, and others after their work; return the threads."""
        self.closed = True
        for worker in self._all:
            worker.wake()
        return [worker.thread for worker in self._all]
