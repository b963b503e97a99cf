"""A FastAPI service of a text recogniser, and its clients, in processes of their own.

python -m benchmarks.many_shapes_service '{"port": 8000, "clients": 8, ...}' runs the clients.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def serve(run: Callable[[dict[str, Any]], Any], given: Mapping[str, Any]) -> list[float]:
    """Serve lines of random widths to clients for a while; return the latencies that they saw.

    Requests run in the threads that FastAPI has for functions that wait.
    """
    import uvicorn
    from fastapi import FastAPI

    _, most = given["widths"]
    line = np.random.default_rng(given["seed"]).random((1, 3, 48, most), np.float32)
    app = FastAPI()

    @app.get("/")
    def recognise(width: int) -> dict[str, int]:
        (found,) = run({"x": np.ascontiguousarray(line[..., :width])})
        return {"size": int(found.size)}

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    asked = json.dumps({**given, "port": listening.getsockname()[1]})
    latencies: list[float] = []

    def clients() -> None:
        command = [sys.executable, "-m", "benchmarks.many_shapes_service", asked]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            latencies.extend(json.loads(done.stdout))
        finally:
            server.should_exit = True

    waiting = threading.Thread(target=clients)
    waiting.start()
    server.run(sockets=[listening])
    waiting.join()
    return latencies


def client(given: Mapping[str, Any], number: int, end: float, latencies: list[float]) -> None:
    """Ask for one line after another, over one connection."""
    draw = np.random.default_rng([given["seed"], number])
    first, last = given["widths"]
    connection = http.client.HTTPConnection("127.0.0.1", given["port"])
    while (started := time.perf_counter()) < end:
        connection.request("GET", f"/?width={draw.integers(first, last + 1)}")
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the service answered {answer.status}: {content[:200]!r}")
        latencies.append(time.perf_counter() - started)


def main() -> None:
    given = json.loads(sys.argv[1])
    latencies: list[list[float]] = [[] for _ in range(given["clients"])]
    end = time.perf_counter() + given["seconds"]
    threads = [
        threading.Thread(target=client, args=(given, n, end, own))
        for n, own in enumerate(latencies)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([one for own in latencies for one in own]))


if __name__ == "__main__":
    main()
