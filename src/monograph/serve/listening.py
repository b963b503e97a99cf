"""Listeners of HTTP and gRPC: addresses, TLS, limits of connections, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import uvicorn

from monograph.errors import ConfigError
from monograph.serve.http.connections import limited_connections
from monograph.serve.http.repeated import RepeatedCalls
from monograph.serve.settings import ServerSettings
from monograph.serve.sockets import address_of, listen, listen_unix, url_host


class _Uvicorn(uvicorn.Server):
    """Uvicorn without signal handlers: the server drains before it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening:
    """The listeners of a process; on unix sockets behind a front, else on the addresses."""

    def __init__(self, settings: ServerSettings, sockets: tuple[Path, Path] | None = None) -> None:
        self.addresses: list[str] = []
        self._settings = settings
        self._sockets = sockets
        self._http: tuple[_Uvicorn, asyncio.Task[None]] | None = None
        self._rpc: Any = None

    @property
    def addresses_are_public(self) -> bool:
        """True unless the process is behind a front."""
        return self._sockets is None

    def add_http(self, app: Any, repeats: RepeatedCalls | None = None) -> None:
        """Serve an application of ASGI, and requests that come again."""
        settings = self._settings
        listening: socket.socket
        if self._sockets is not None:
            listening = listen_unix(self._sockets[0])
        else:
            assert settings.http is not None
            listening = listen(settings.host, settings.http)
            scheme = "https" if settings.tls_cert else "http"
            self.addresses.append(f"{scheme}://{address_of(listening)}")
        server = _Uvicorn(self._uvicorn_config(app, repeats))
        self._http = server, asyncio.create_task(server.serve(sockets=[listening]))

    async def add_grpc(self, rpc: Any) -> None:
        """Serve gRPC, by TLS if there is a certificate."""
        settings = self._settings
        self._rpc = rpc
        host = url_host(settings.host)
        address = f"{host}:{settings.grpc}"
        if self._sockets is not None:
            address = f"unix:{self._sockets[1]}"
        cert, key = settings.tls_cert, settings.tls_key
        try:
            if cert is None or key is None or self._sockets is not None:
                port = int(rpc.add_insecure_port(address))
            else:
                pair = (key.read_bytes(), cert.read_bytes())
                port = int(rpc.add_secure_port(address, grpc.ssl_server_credentials([pair])))
        except RuntimeError:
            raise ConfigError("the server cannot listen", given=address) from None
        await rpc.start()
        if self._sockets is None:
            self.addresses.append(f"grpc://{host}:{port}")

    async def stop(self) -> None:
        """Close the listeners after the answers that are being sent."""
        if self._http is not None:
            server, task = self._http
            server.should_exit = True
            await task
        if self._rpc is not None:
            await self._rpc.stop(self._settings.limits.drain_seconds)

    def _uvicorn_config(self, app: Any, repeats: RepeatedCalls | None) -> uvicorn.Config:
        limits = self._settings.limits
        behind = self._sockets is not None
        return uvicorn.Config(
            app,
            http=limited_connections(limits, repeats),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=behind,
            forwarded_allow_ips="*" if behind else None,
            ssl_certfile=None if behind else self._settings.tls_cert,
            ssl_keyfile=None if behind else self._settings.tls_key,
            limit_concurrency=limits.connections,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(limits.drain_seconds) or 1,
        )
