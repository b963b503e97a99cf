"""The processes behind a front: started, watched, restarted, chosen, and ended together.

Each process has its own models and listens on unix sockets. Constants in the cache are mapped into
memory and shared.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import grpc.aio

from monograph.errors import ConfigError
from monograph.runtime.cpu.threads import available_threads
from monograph.serve.failures import Failure, RequestError
from monograph.serve.front.upstream import LostConnectionError, Upstream
from monograph.serve.settings import ModelSettings, ServerSettings

SHORTEST, LONGEST = 0.5, 30.0
"""Seconds before a process that died is started again; each death doubles them."""
STEADY = 60.0
"""A process that has lived for so many seconds did not die at its start."""
POLL = 0.05
LOOK_SECONDS = 10.0
"""The time in which a process must tell that it is ready."""
LOOK_EVERY = 10
"""Polls of a process between two looks at its readiness."""


class Instance:
    """One process, its sockets, and the requests that it has."""

    def __init__(self, number: int, folder: Path, settings: ServerSettings) -> None:
        self.number = number
        self.http_path, self.grpc_path = folder / f"{number}.http", folder / f"{number}.grpc"
        self.ready = False
        self.open = 0
        """The requests that it has."""
        self.taken = 0
        """The requests that it was given."""
        self.upstream = Upstream(self.http_path)
        self.channel: Any = None
        self._settings = settings
        self.process: SpawnProcess | None = None

    def start(self) -> None:
        """Start the process."""
        for path in (self.http_path, self.grpc_path):
            path.unlink(missing_ok=True)
        if self._settings.grpc is not None:
            options = [("grpc.max_receive_message_length", -1)]
            self.channel = grpc.aio.insecure_channel(f"unix:{self.grpc_path}", options)
        self.process = multiprocessing.get_context("spawn").Process(
            target=run_instance,
            args=(self._settings, self.number, self.http_path, self.grpc_path),
            name=f"instance {self.number}",
        )
        self.process.start()

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        return self.process is not None and self.process.is_alive()

    async def look(self) -> None:
        """Find out whether the process is ready."""
        headers = [(b"host", b"instance")]
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                answer = await self.upstream.ask(b"GET", b"/v2/health/ready", headers, b"")
                await answer.read()
            self.ready = answer.status == 200
        except (LostConnectionError, TimeoutError):
            self.ready = False

    async def release(self) -> None:
        """Close the connections to a process that has ended."""
        self.ready = False
        self.upstream.close()
        if self.channel is not None:
            await self.channel.close()


class Instances:
    """All processes of a server."""

    def __init__(
        self, settings: ServerSettings, folder: Path, announce: Callable[[str], None]
    ) -> None:
        self._announce = announce
        self._wait = settings.limits.request_seconds
        self._drain = settings.limits.drain_seconds
        own = shared_settings(settings)
        self.all = [Instance(n, folder, own) for n in range(settings.instances)]
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> list[Instance]:
        """The processes that answer requests."""
        return [i for i in self.all if i.ready]

    @property
    def open(self) -> int:
        """The number of requests that the processes have."""
        return sum(i.open for i in self.all)

    def start(self) -> None:
        """Start and watch the processes."""
        self._tasks = [asyncio.create_task(self._watch(i)) for i in self.all]

    @contextmanager
    def chosen(self, avoided: Instance | None) -> Iterator[Instance]:
        """Give the ready process with the fewest requests; the avoided one if there is no other."""
        found = min(self.ready, key=lambda i: (i is avoided, i.open, i.taken))
        found.open += 1
        found.taken += 1
        try:
            yield found
        finally:
            found.open -= 1

    async def wait_ready(self) -> None:
        """Wait until a process is ready; raise an error after the time of a request."""
        end = time.monotonic() + self._wait
        while not self.ready:
            starting = any(i.alive for i in self.all) and not self._stopping
            if not starting or time.monotonic() > end:
                raise RequestError(Failure.UNAVAILABLE, "no instance is ready")
            await asyncio.sleep(POLL)

    async def stop(self) -> None:
        """End the processes; they finish the requests that they have."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for instance in self.all:
            if instance.process is not None:
                instance.process.terminate()
        for instance in self.all:
            if instance.process is not None:
                await asyncio.to_thread(instance.process.join, self._drain + 10)
                if instance.process.is_alive():
                    instance.process.kill()
            await instance.release()

    async def _watch(self, instance: Instance) -> None:
        """Start a process, and again after each end; a pause grows if it dies at its start."""
        delay = SHORTEST
        while True:
            started = time.monotonic()
            instance.start()
            looks = 0
            while instance.alive:
                if not instance.ready or looks % LOOK_EVERY == 0:
                    await instance.look()
                looks += 1
                await asyncio.sleep(POLL)
            await instance.release()
            delay = SHORTEST if time.monotonic() - started > STEADY else delay
            code = instance.process.exitcode if instance.process is not None else None
            self._announce(
                f"instance {instance.number} ended with {code}; it starts again in {delay:g} s"
            )
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST)


def shared_settings(settings: ServerSettings) -> ServerSettings:
    """Return the settings of one of several processes: each model has its share of the threads."""
    count, most = settings.instances, available_threads()

    def shared(model: ModelSettings) -> ModelSettings:
        if model.threads is not None and model.threads * count > most:
            raise ConfigError(
                "the instances need more threads than the process may use",
                expected=f"instances times threads <= {most}",
                given=f"{count} times {model.threads}",
            )
        return replace(model, threads=model.threads or max(1, most // count))

    return replace(
        settings, tls_cert=None, tls_key=None, defaults=shared(settings.defaults),
        by_model={name: shared(model) for name, model in settings.by_model.items()},
    )  # fmt: skip


def run_instance(settings: ServerSettings, number: int, http: Path, rpc: Path) -> None:
    """Serve as one of several processes."""
    from monograph.serve.server import serve_here

    def announce(line: str) -> None:
        print(f"instance {number}: {line}", flush=True)

    serve_here(settings, announce, (http, rpc))
