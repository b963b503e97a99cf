"""Runs that were started and not waited for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

from monograph.errors import ExecutionError
from monograph.runtime.forking import ForkLock


class Pending:
    """The outputs of a run that may not have ended yet."""

    def __init__(
        self,
        finish: Callable[[], list[Any]],
        done: Callable[[], bool],
        repeatable: bool = False,
        enqueued: list[Any] | None = None,
    ) -> None:
        """`repeatable`: whether `finish` may be called again after it was interrupted."""
        self.enqueued = enqueued
        """Tensors that the run fills, for work that is enqueued behind it before anybody waits;
        None where the outputs are only known when it has ended."""
        self._finish: Callable[[], list[Any]] | None = finish
        self._done = done
        self._repeatable = repeatable
        self._found: list[Any] = []
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a run that was started is neither copied nor pickled: one waits for it",
            hint="copy or pickle what result() gives",
        )

    def done(self) -> bool:
        """Return True if `result` would not wait."""
        return self._finish is None or self._done()

    def result(self) -> list[Any]:
        """Return the outputs, after a wait for arrays on the host; streams order tensors."""
        with self._lock:
            if self._finish is not None:
                try:
                    self._found = self._finish()
                except Exception as error:  # the same for everyone who asks
                    self._error = error
                except BaseException:
                    if not self._repeatable:
                        self._finish, self._error = None, interrupted()
                    raise
                self._finish = None
            if self._error is not None:
                raise self._error
            return self._found

    def then(self, change: Callable[[list[Any]], list[Any]]) -> Pending:
        """Return the same run with its outputs changed when they are asked for."""
        return Pending(lambda: change(self.result()), self.done)


def interrupted() -> ExecutionError:
    """Return the error of a run whose wait was interrupted."""
    return ExecutionError(
        "waiting for this run was interrupted, and its outputs are lost", hint="run it again"
    )


def ready(found: list[Any]) -> Pending:
    """Return a run that has ended."""
    return Pending(lambda: found, lambda: True)


class Worker:
    """A thread that makes the asynchronous runs of a session, one after the other."""

    def __init__(self) -> None:
        self._process = 0
        self._threads: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        self._lock = ForkLock()

    def start(self, run: Callable[[], list[Any]]) -> Pending:
        """Queue a run behind all earlier ones."""
        with self._lock:
            if self._threads is None or self._process != os.getpid():
                # A forked child has none of its parent's threads.
                self._threads = ThreadPoolExecutor(1, "monograph")
                self._process = os.getpid()
            future: Future[list[Any]] = self._threads.submit(run)
            self._last = future
        process = os.getpid()

        def finish() -> list[Any]:
            if os.getpid() != process:  # whose thread would never end it
                raise ExecutionError(
                    "a run that was started before a fork ends in the parent only",
                    hint="start it in the child, or ask for its result before the fork",
                )
            return future.result()

        return Pending(finish, lambda: os.getpid() != process or future.done(), True)

    def close(self) -> None:
        """Wait for the runs queued so far, and end the thread."""
        self.wait()
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None and self._process == os.getpid():
            threads.shutdown()

    def wait(self) -> None:
        """Wait for the runs queued so far, whatever their result."""
        last = self._last
        if last is not None and self._process == os.getpid():
            last.exception()
            if self._last is last:
                self._last = None  # it holds the outputs
