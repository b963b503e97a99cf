"""The front process: sockets, the event loop, signals and draining of several instances."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monograph.serve.front.http import FrontApp
from monograph.serve.front.processes import POLL, Instances
from monograph.serve.front.rpc import make_front_server
from monograph.serve.keys import ApiKeys
from monograph.serve.listening import Listening
from monograph.serve.logs import set_up_logs
from monograph.serve.settings import ServerSettings


def supervise(settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Run the front and its instances until SIGTERM or SIGINT."""
    import uvloop

    set_up_logs(settings.logs)
    with tempfile.TemporaryDirectory(prefix="monograph-") as folder:  # for this user only
        uvloop.run(_run(settings, Path(folder), announce))


async def _run(settings: ServerSettings, folder: Path, announce: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    instances = Instances(settings, folder, announce)
    app = FrontApp(instances, settings.limits)
    listening = Listening(settings)
    if settings.http is not None:
        listening.add_http(app)
    if settings.grpc is not None:
        rpc = make_front_server(instances, settings.limits, ApiKeys(settings.api_keys))
        await listening.add_grpc(rpc)
    instances.start()
    count = settings.instances
    announce(f"listening on {' and '.join(listening.addresses)} with {count} instances")
    await stop.wait()
    app.draining = True
    announce("draining")
    end = time.monotonic() + settings.limits.drain_seconds
    while instances.open and time.monotonic() < end:
        await asyncio.sleep(POLL)
    await listening.stop()
    await instances.stop()
