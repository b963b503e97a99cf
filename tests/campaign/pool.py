"""Worker processes of a campaign: one that dies or hangs is a finding, and another follows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.campaign.worker import receive, send

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds that a case may take on all its sides, without those that it waits for a core."""
RENEWED = 400
"""Cases after which a worker makes room for a fresh one: what libraries hold is given back."""
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


LEAST_WAIT, MOST_WAIT = 0.1, 1.0
"""Seconds between two looks at a process that may take too long."""


def waited_for_cores(pid: int) -> float:
    """Return the seconds that a process was ready and had no core: other load is no hang.

    That of the thread that waited longest; 0 where the system does not tell.
    """
    longest = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
            longest = max(longest, int(path.read_text().split()[1]))
    return longest / 1e9


class Worker:
    """One process, started when it is first asked."""

    def __init__(self, sides: Sequence[str], patience: float = PATIENCE) -> None:
        self.sides, self.patience = tuple(sides), patience
        self.process: subprocess.Popen[bytes] | None = None
        self.served = 0

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **QUIET}
        if any(side.startswith("interpreter") for side in self.sides):
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, "-W", "ignore", "-m", "tests.campaign.worker", *self.sides]
        self.served = 0
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=ROOT, env=environment,
        )  # fmt: skip

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request; {"died": ...} where the process ended over it, or hangs."""
        if self.process is not None and self.served >= RENEWED:
            self.stop()
        if self.process is None:
            self.process = self.start()
        self.served += 1
        process, side, reply = self.process, "generator", {}
        hung, over = threading.Event(), threading.Event()
        watch = threading.Thread(target=self._watch, args=(process, hung, over), daemon=True)
        watch.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, {"sides": self.sides, **request})
            while "begins" in (reply := receive(process.stdout) or {}):
                side = reply["begins"]
        except (BrokenPipeError, EOFError):
            reply = {}
        finally:
            over.set()
            watch.join()
        if reply:
            return dict(reply)
        status = process.wait()
        self.process = None
        if hung.is_set():
            return {"died": "hang", "side": side, "why": f"took more than {self.patience:.0f} s"}
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return {"died": "crash", "side": side, "why": f"the process died: {name}"}

    def _watch(
        self, process: subprocess.Popen[bytes], hung: threading.Event, over: threading.Event
    ) -> None:
        """Kill a process that takes too long over its case.

        A look that comes late was stopped itself, as the process was (`kill -STOP`, a machine that
        sleeps): what is beyond two waits does not count.
        """
        left, looked, waited = self.patience, time.monotonic(), waited_for_cores(process.pid)
        while not over.wait(min(max(left, LEAST_WAIT), MOST_WAIT)):
            now, waits = time.monotonic(), waited_for_cores(process.pid)
            left -= max(min(now - looked, 2 * MOST_WAIT) - (waits - waited), 0)
            looked, waited = now, waits
            if left <= 0:
                hung.set()
                process.kill()
                return

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self.process is None:
            return
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.kill()
        self.process.wait()
        self.process = None


def share(
    jobs: int,
    sides: Sequence[str],
    requests: Iterable[dict[str, Any]],
    take: Callable[[dict[str, Any], dict[str, Any], Worker], None],
    patience: float = PATIENCE,
) -> None:
    """Has workers answer requests; `take` gets a request, its reply and the worker, one by one."""
    todo, lock, errors = iter(requests), threading.Lock(), list[BaseException]()

    def work() -> None:
        worker = Worker(sides, patience)
        try:
            while not errors:
                with lock:
                    request = next(todo, None)
                if request is None:
                    return
                reply = worker.ask(request)
                take(request, reply, worker)
        except BaseException as e:
            errors.append(e)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
