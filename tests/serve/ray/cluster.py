"""A cluster of Ray on one machine, with the application on it; nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it")

from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

START = 300.0
"""The longest wait for a cluster to be ready, in seconds."""
NODE = {
    "num_cpus": 4,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
}


class RayApplication:
    """The application on a cluster of several nodes; requests go to the proxy of the first."""

    def __init__(self, models: Path, nodes: int) -> None:
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=NODE)
        try:
            self._start(models, nodes)
        except BaseException:
            self.close()
            raise

    def _start(self, models: Path, nodes: int) -> None:
        from monograph.serve.ray import app

        self.others = [self.cluster.add_node(**NODE) for _ in range(nodes - 1)]
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        with contextlib.suppress(TimeoutError):  # the proxy goes on to start
            serve.start("HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"models": str(models)}), name="monograph", route_prefix="/")
        self.url = f"http://127.0.0.1:{port}"

    def wait_ready(self, path: str) -> None:
        end = time.monotonic() + START
        while time.monotonic() < end:
            with contextlib.suppress(urllib.error.URLError):
                if self.get(path)[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the application is not ready: {self.get('/v2/repository/index')}")

    def get(self, path: str, data: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of a request; `data` makes it a POST."""
        try:
            request = urllib.request.Request(self.url + path, data)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read()

    def processes(self, node: Any) -> list[psutil.Process]:
        """Return the processes of a node: its raylet, and the workers that hold replicas."""
        found = []
        for kind in node.all_processes.values():
            for process in kind:
                with contextlib.suppress(psutil.NoSuchProcess):
                    own = psutil.Process(process.process.pid)
                    found += [own, *own.children(recursive=True)]
        return found

    def stop(self, processes: list[psutil.Process]) -> None:
        """Stop processes until `go_on`."""
        _send(processes, signal.SIGSTOP)

    def go_on(self, processes: list[psutil.Process]) -> None:
        """Let processes go on that were stopped."""
        _send(processes, signal.SIGCONT)

    def kill(self, node: Any, processes: list[psutil.Process]) -> None:
        """End a node, with its processes, at once, as if its power failed."""
        _send(processes, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


TOKEN = secrets.token_hex(32)


def environment() -> dict[str, str]:
    """Variables of Ray's processes; the token of the cluster is that of this test.

    Ray gives up proxies and workers that start slowly, as they do on a busy machine, and lets its
    workers yield to all other work.
    """
    return {
        "RAY_worker_niceness": "0",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "240",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
        "RAY_worker_register_timeout_seconds": "240",
    }


@contextlib.contextmanager
def running(
    models: Path, nodes: int = 1, ready: str = "/v2/health/ready"
) -> Iterator[RayApplication]:
    """Run the application until the block ends."""
    os.environ.update(environment())
    made = RayApplication(models, nodes)
    try:
        made.wait_ready(ready)
        yield made
    finally:
        made.close()
