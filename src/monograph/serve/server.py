"""The server process: sockets, the event loop, loading, signals and draining."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import uvicorn

from monograph.errors import ConfigError
from monograph.serve.http.app import HttpApp
from monograph.serve.http.connections import limited_connections
from monograph.serve.keys import ApiKeys
from monograph.serve.logs import set_up_logs
from monograph.serve.protocol import Protocol2
from monograph.serve.repository import Repository
from monograph.serve.rpc.service import make_server
from monograph.serve.settings import ServerSettings
from monograph.serve.sockets import address_of, listen, url_host

_log = logging.getLogger("monograph.serve")
_POLL = 0.02


class _Uvicorn(uvicorn.Server):
    """Uvicorn without signal handlers: the server drains before it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """A server of models; `run` returns after SIGTERM or SIGINT."""

    def __init__(self, settings: ServerSettings, announce: Callable[[str], None]) -> None:
        self.settings = settings
        self.repository = Repository(settings)
        self.protocol = Protocol2(self.repository)
        self._keys = ApiKeys(settings.api_keys)
        self.app = HttpApp(self.protocol, self._keys)
        self._announce = announce
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal comes, then finish the requests that run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        addresses = []
        shared = self.settings.instances > 1
        http: asyncio.Task[None] | None = None
        server: _Uvicorn | None = None
        if self.settings.http is not None:
            listening = listen(self.settings.host, self.settings.http, shared)
            scheme = "https" if self.settings.tls_cert else "http"
            addresses.append(f"{scheme}://{address_of(listening)}")
            server = _Uvicorn(self._uvicorn_config())
            http = asyncio.create_task(server.serve(sockets=[listening]))
        rpc = None
        if self.settings.grpc is not None:
            rpc = make_server(self.protocol, self.settings.limits, self._keys, shared)
            address = f"{url_host(self.settings.host)}:{self.settings.grpc}"
            try:
                port = self._add_port(rpc, address)
            except RuntimeError:
                raise ConfigError("the server cannot listen", given=address) from None
            await rpc.start()
            addresses.append(f"grpc://{url_host(self.settings.host)}:{port}")
        self._announce(f"listening on {' and '.join(addresses)}")
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        await self._stop.wait()
        await self._drain()
        if server is not None and http is not None:
            server.should_exit = True
            await http
        if rpc is not None:
            await rpc.stop(self.settings.limits.drain_seconds)
        await loading
        await asyncio.to_thread(self.repository.close)

    def _add_port(self, rpc: Any, address: str) -> int:
        """Let the server of gRPC listen, by TLS if there is a certificate."""
        cert, key = self.settings.tls_cert, self.settings.tls_key
        if cert is None or key is None:
            return int(rpc.add_insecure_port(address))
        pair = (key.read_bytes(), cert.read_bytes())
        return int(rpc.add_secure_port(address, grpc.ssl_server_credentials([pair])))

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

    def _uvicorn_config(self) -> uvicorn.Config:
        limits = self.settings.limits
        return uvicorn.Config(
            self.app,
            http=limited_connections(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ssl_certfile=self.settings.tls_cert,
            ssl_keyfile=self.settings.tls_key,
            limit_concurrency=limits.connections,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(limits.drain_seconds) or 1,
        )


def serve(settings: ServerSettings, announce: Callable[[str], None] | None = None) -> None:
    """Serve models until SIGTERM or SIGINT, in one process or several."""
    if settings.instances > 1:
        from monograph.serve.instances import supervise

        supervise(settings, announce or _print)
    else:
        serve_here(settings, announce or _print)


def serve_here(settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Serve models in this process."""
    set_up_logs(settings.logs)

    async def run() -> None:
        await Server(settings, announce).run()

    if sys.platform == "win32":
        asyncio.run(run())
        return
    import uvloop

    uvloop.run(run())


def _print(line: str) -> None:
    print(line, flush=True)
