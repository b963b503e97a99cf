"""The server process: sockets, the event loop, loading, signals and draining."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from monograph.serve.http.app import HttpApp
from monograph.serve.keys import ApiKeys
from monograph.serve.listening import Listening
from monograph.serve.logs import set_up_logs
from monograph.serve.protocol import Protocol2
from monograph.serve.repository import Repository
from monograph.serve.rpc.service import make_server
from monograph.serve.settings import ServerSettings
from monograph.serve.tracing import make_traces

_log = logging.getLogger("monograph.serve")
_POLL = 0.02


class Server:
    """A server of models; `run` returns after SIGTERM or SIGINT."""

    def __init__(
        self,
        settings: ServerSettings,
        announce: Callable[[str], None],
        sockets: tuple[Path, Path] | None = None,
    ) -> None:
        self.settings = settings
        self.repository = Repository(settings)
        self.protocol = Protocol2(self.repository)
        self._keys = ApiKeys(settings.api_keys)
        self._traces = make_traces(settings.traces)
        self.app = HttpApp(self.protocol, self._keys, self._traces)
        self._announce = announce
        self._listening = Listening(settings, sockets)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal comes, then finish the requests that run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        listening = self._listening
        if self.settings.http is not None or not listening.addresses_are_public:
            listening.add_http(self.app, self.app.repeats)
        if self.settings.grpc is not None:
            rpc = make_server(self.protocol, self.settings.limits, self._keys, self._traces)
            await listening.add_grpc(rpc)
        if listening.addresses:
            self._announce(f"listening on {' and '.join(listening.addresses)}")
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        await self._stop.wait()
        await self._drain()
        await listening.stop()
        await loading
        await asyncio.to_thread(self.repository.close)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def _load(self) -> None:
        started = time.monotonic()
        self.repository.load_all()
        count = len(self.repository.models())
        self._announce(f"{count} models are ready after {time.monotonic() - started:.1f} s")

    async def _drain(self) -> None:
        """Refuse new requests, and wait for those that run."""
        self.repository.draining = True
        self._announce("draining")
        end = time.monotonic() + self.settings.limits.drain_seconds
        while self.repository.pending and time.monotonic() < end:
            await asyncio.sleep(_POLL)


def serve(settings: ServerSettings, announce: Callable[[str], None] | None = None) -> None:
    """Serve models until SIGTERM or SIGINT, in one process or several."""
    if settings.instances > 1:
        from monograph.serve.front.server import supervise

        supervise(settings, announce or _print)
    else:
        serve_here(settings, announce or _print)


def serve_here(
    settings: ServerSettings,
    announce: Callable[[str], None],
    sockets: tuple[Path, Path] | None = None,
) -> None:
    """Serve models in this process.

    sockets: paths for HTTP and gRPC of a process behind a front, instead of ports.
    """
    set_up_logs(settings.logs)

    async def run() -> None:
        await Server(settings, announce, sockets).run()

    if sys.platform == "win32":
        asyncio.run(run())
        return
    import uvloop

    uvloop.run(run())


def _print(line: str) -> None:
    print(line, flush=True)
