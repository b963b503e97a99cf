"""Runs that were started and not waited for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any, NoReturn

from monograph.errors import ExecutionError
from monograph.runtime.forking import ForkLock

_BASE_LOCK = ForkLock()
"""Held while the state of a future is made, which is short."""
_NAP = 0.0002
"""The time between two looks at a run that is waited for with a timeout, in seconds."""


class Pending(Future[list[Any]]):
    """The outputs of a run that may not have ended yet: a future that can also be awaited.

    The run ends in the caller who asks for its result. Only where somebody waits by other means
    (callbacks, `concurrent.futures.wait`, `await`), the state of the base class is made, and a
    thread of its own waits for the run. So a run that is merely started costs no lock of a future.
    """

    def __init__(
        self,
        finish: Callable[[], list[Any]],
        done: Callable[[], bool],
        repeatable: bool = False,
        enqueued: list[Any] | None = None,
        cancel: Callable[[], bool] = lambda: False,
    ) -> None:
        """`repeatable`: whether `finish` may be called again after it was interrupted."""
        self.enqueued = enqueued
        """Tensors that the run fills, for work that is enqueued behind it before anybody waits;
        None where the outputs are only known when it has ended."""
        self._finish: Callable[[], list[Any]] | None = finish
        self._is_done = done
        self._repeatable = repeatable
        self._cancel = cancel
        self._cancelled = False
        self._found: list[Any] = []
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        """Make the state of the base class when somebody waits by it."""
        if name not in ("_condition", "_state", "_result", "_exception", "_waiters"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _BASE_LOCK:
            if "_condition" not in self.__dict__:
                super().__init__()
                threading.Thread(target=self._complete, daemon=True).start()
        return self.__dict__[name]

    def _complete(self) -> None:
        """Wait for the run, and let those know who wait by the base class."""
        try:
            found = self.result()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(found)

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if self.done() else "running"
        return f"<Pending {state}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a run that was started is neither copied nor pickled: one waits for it",
            hint="copy or pickle what result() gives",
        )

    def done(self) -> bool:
        """Return True if `result` would not wait."""
        return self._finish is None or self._is_done()

    def running(self) -> bool:
        """Return True if the run has not ended; one that waits for its turn counts too."""
        return not self.done()

    def cancel(self) -> bool:
        """Cancel a run that has not begun; return False for others."""
        self._cancelled = self._cancelled or self._cancel()
        return self._cancelled

    def cancelled(self) -> bool:
        """Return True if the run was cancelled."""
        return self._cancelled

    def result(self, timeout: float | None = None) -> list[Any]:
        """Return the outputs, after a wait for arrays on the host; streams order tensors.

        timeout: the longest wait in seconds; TimeoutError is raised after it.
        """
        if timeout is not None:
            self._wait(timeout)
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

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the run, None if it has none."""
        try:
            self.result(timeout)
        except BaseException:
            if self._error is None or self._cancelled:
                raise
        return self._error

    def __await__(self) -> Generator[Any, None, list[Any]]:
        """Wait for the outputs without blocking the event loop."""
        import asyncio  # code that awaits has imported it; other code need not wait for the import

        return asyncio.wrap_future(self).__await__()

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the run has not ended after {timeout} s")
            time.sleep(min(_NAP, left))

    def then(self, change: Callable[[list[Any]], list[Any]]) -> Pending:
        """Return the same run with its outputs changed when they are asked for."""
        return Pending(lambda: change(self.result()), self.done, cancel=self.cancel)


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

        def done() -> bool:
            return os.getpid() != process or future.done()

        return Pending(finish, done, True, cancel=future.cancel)

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
            wait_for([last])
            if self._last is last:
                self._last = None  # it holds the outputs
