"""Several server processes on one port: started, watched, restarted, and ended together.

The kernel spreads connections over the processes. Each has its own models; constants in the cache
are mapped into memory and shared. A process that dies loses the requests that it had.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from monograph.errors import ConfigError
from monograph.runtime.cpu.threads import available_threads
from monograph.serve.settings import ServerSettings
from monograph.serve.sockets import address_of, bind

SHORTEST, LONGEST = 0.5, 30.0
"""Seconds before a process that died is started again; each death doubles them."""
STEADY = 60.0
"""A process that has lived for so many seconds did not die at its start."""


@dataclass
class _Instance:
    number: int
    process: SpawnProcess
    started: float
    delay: float = SHORTEST


def supervise(settings: ServerSettings, announce: Callable[[str], None]) -> int:
    """Run the instances until SIGTERM or SIGINT; return the exit code."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("this system cannot share a port between processes")
    reserved = [
        bind(settings.host, p, True) for p in (settings.http, settings.grpc) if p is not None
    ]
    ports = iter([s.getsockname()[1] for s in reserved])
    http = None if settings.http is None else next(ports)
    grpc = None if settings.grpc is None else next(ports)
    settings = replace(
        settings, http=http, grpc=grpc, defaults=_shared(settings.defaults, settings.instances),
        by_model={n: _shared(m, settings.instances) for n, m in settings.by_model.items()},
    )  # fmt: skip
    stopping = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.append(True))
    kinds = [k for k, p in (("http", settings.http), ("grpc", settings.grpc)) if p is not None]
    listed = " and ".join(f"{k}://{address_of(s)}" for k, s in zip(kinds, reserved, strict=True))
    running = [_start(settings, i) for i in range(settings.instances)]
    announce(f"listening on {listed} with {settings.instances} instances")
    while not stopping:
        wait([i.process.sentinel for i in running], 0.2)
        for instance in running:
            if not stopping and not instance.process.is_alive():
                _restart(settings, instance, announce)
    for instance in running:
        instance.process.terminate()
    for instance in running:
        instance.process.join(settings.limits.drain_seconds + 10)
    for s in reserved:
        s.close()
    return 0


def _shared(model: Any, instances: int) -> Any:
    """Return the settings of a model with its share of the threads."""
    return replace(model, threads=model.threads or max(1, available_threads() // instances))


def _start(settings: ServerSettings, number: int) -> _Instance:
    process = multiprocessing.get_context("spawn").Process(
        target=run_instance, args=(settings, number), name=f"instance {number}"
    )
    process.start()
    return _Instance(number, process, time.monotonic())


def _restart(
    settings: ServerSettings, instance: _Instance, announce: Callable[[str], None]
) -> None:
    """Start an instance again after a pause, which grows if it dies at its start."""
    code = instance.process.exitcode
    steady = time.monotonic() - instance.started > STEADY
    delay = SHORTEST if steady else instance.delay
    announce(f"instance {instance.number} ended with {code}; it starts again in {delay:g} s")
    time.sleep(delay)
    made = _start(settings, instance.number)
    instance.process, instance.started = made.process, made.started
    instance.delay = min(2 * delay, LONGEST)


def run_instance(settings: ServerSettings, number: int) -> None:
    """Serve as one of several processes."""
    from monograph.serve.server import serve_here

    serve_here(settings, lambda line: print(f"instance {number}: {line}", flush=True))
