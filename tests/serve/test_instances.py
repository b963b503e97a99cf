"""Several processes behind a front: nothing is lost when one of them dies or drains."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.runtime.cpu.threads import available_threads
from monograph.serve.front.processes import shared_settings
from monograph.serve.settings import ModelSettings, ServerSettings
from tests.serve.models import WEIGHTS, affine
from tests.serve.process import START, ServerProcess, serving
from tests.serve.test_process import ask
from tests.serve.test_triton_grpc import inputs_for

triton = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[http]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    affine(folder / "affine.onnx")
    affine(folder / "other.onnx")
    with serving(folder, "--instances", "2", grpc=True) as made:
        wait_for(made, 2)
        yield made


def children(server: ServerProcess) -> set[int]:
    """Return the processes of the instances."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    lines = {int(p): Path(f"/proc/{p}/cmdline").read_bytes() for p in path.read_text().split()}
    return {pid for pid, line in lines.items() if b"spawn_main" in line}


def ready(server: ServerProcess) -> set[str]:
    """Return the numbers of the instances that answer."""
    text = server.get("/metrics")[1].decode()
    return set(re.findall(r'monograph_ready\{instance="(\d)"\} 1', text))


def wait_for(server: ServerProcess, count: int) -> None:
    end = time.monotonic() + START
    while len(ready(server)) < count:
        assert time.monotonic() < end, "".join(server.lines)
        time.sleep(0.05)


def under_load(server: ServerProcess, disturb: Any, count: int = 1000) -> None:
    """Send requests while something happens; each must have its right answer."""
    begun = threading.Event()

    def one(i: int) -> tuple[int, bool]:
        if i > count // 10:
            begun.set()
        return ask(server, i)

    def late() -> None:
        begun.wait(START)
        disturb()

    busy = threading.Thread(target=late)
    busy.start()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(count)))
    busy.join()
    assert found == [(200, True)] * count


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_lost_when_an_instance_ends(server: ServerProcess, number: int) -> None:
    """Requests of a process that dies are sent to the other one; it is started again."""
    wait_for(server, 2)
    before = children(server)
    under_load(server, lambda: os.kill(min(before), number))
    wait_for(server, 2)
    assert len(children(server) - before) == 1
    assert "starts again" in "".join(server.lines)


def test_calls_of_grpc_and_streams_survive_an_instance(server: ServerProcess) -> None:
    wait_for(server, 2)
    client = triton.InferenceServerClient(server.grpc)
    found: list[Any] = []
    client.start_stream(lambda result, error: found.append((result, error)))
    for i in range(60):
        if i == 20:
            os.kill(min(children(server)), signal.SIGKILL)
        x = np.full((1, 4), i, np.float32)
        assert np.array_equal(client.infer("affine", inputs_for(x)).as_numpy("y"), x @ WEIGHTS)
        client.async_stream_infer("affine", inputs_for(x), request_id=str(i))
    client.stop_stream()
    client.close()
    assert [r.get_response().id for r, e in found if e is None] == [str(i) for i in range(60)]
    with grpc.insecure_channel(server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as e:
            channel.unary_unary("/inference.GRPCInferenceService/None")(b"")
        assert e.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_all_instances_load_and_tell_of_themselves(server: ServerProcess) -> None:
    wait_for(server, 2)
    assert server.get("/v2/repository/models/other/unload", b"")[0] == 200
    assert {server.get("/v2/models/other/ready")[0] for _ in range(8)} == {503}
    assert server.get("/v2/repository/models/other/load", b"")[0] == 200
    assert {server.get("/v2/models/other/ready")[0] for _ in range(8)} == {200}
    assert server.get("/v2/repository/models/none/load", b"")[0] == 404
    status = json.loads(server.get("/v2/status")[1])
    assert {m["version"] for m in status["models"]} == {"1, instance 0", "1, instance 1"}
    text = server.get("/metrics")[1].decode()
    assert text.count("# TYPE monograph_requests_total ") == 1
    for path, wanted in [("/v2", 200), ("/nothing", 404), ("/", 200), ("/v1/models", 200)]:
        assert server.get(path)[0] == wanted, path


def test_instances_share_the_threads_of_the_quota(tmp_path: Path) -> None:
    most = available_threads()
    settings = ServerSettings(tmp_path, instances=most)
    assert shared_settings(settings).defaults.threads == 1
    with pytest.raises(ConfigError, match="more threads"):
        shared_settings(replace(settings, defaults=ModelSettings(threads=2)))
