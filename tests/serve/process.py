"""A server process on loopback, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START = 300.0
"""The longest wait for a server to be ready, in seconds."""


class ServerProcess:
    """`monograph serve` as a child process; its ports are free ones."""

    def __init__(self, models: Path, *options: str, grpc: bool = False, **env: str) -> None:
        rpc = ("--grpc", "0") if grpc else ()
        command = [sys.executable, "-m", "monograph", "serve", str(models), "--http", "0"]
        self.process = subprocess.Popen(
            [*command, *rpc, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
        )
        self.lines: list[str] = []
        self._announced = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._announced.wait(START):
            self.stop()
            raise AssertionError("the server did not start:\n" + "".join(self.lines))
        text = "".join(self.lines)
        found = re.search(r"https?://([\w.]+:\d+)", text)
        assert found, text
        self.url, self.address = found[0], found[1]
        rpcs = re.search(r"grpc://([\w.]+:\d+)", text)
        self.grpc = rpcs[1] if rpcs else ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening on" in line:
                self._announced.set()
        self._announced.set()

    def wait_ready(self) -> ServerProcess:
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            # Instances listen later than their parent announces the port.
            with contextlib.suppress(urllib.error.URLError):
                if self.get("/v2/health/ready")[0] == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError("the server is not ready:\n" + "".join(self.lines))

    def wait_announced(self, text: str) -> None:
        """Wait for a line of the server."""
        end = time.monotonic() + START
        while text not in "".join(self.lines):
            running = time.monotonic() < end and self.process.poll() is None
            assert running, f"no {text!r}:\n" + "".join(self.lines)
            time.sleep(0.05)

    def get(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Return status and body of a request; `data` makes it a POST."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, named)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """End the server as an operator does, and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


@contextlib.contextmanager
def serving(models: Path, *options: str, **how: Any) -> Iterator[ServerProcess]:
    made = ServerProcess(models, *options, **how)
    try:
        yield made.wait_ready()
    finally:
        made.stop()
