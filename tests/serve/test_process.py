"""The server as a process: reload without losses, draining, limits of connections."""

from __future__ import annotations

import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.serve.settings import read_settings
from tests.serve.models import WEIGHTS, affine, repository
from tests.serve.process import ServerProcess, serving

PATH = "/v2/models/affine/infer"


def ask(server: ServerProcess, i: int, model: str = "affine") -> tuple[int, bool]:
    """Return the status of a request and True if its answer is right for one of two models."""
    x = np.full((1 + i % 4, 4), i, np.float32)
    given = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    status, body = server.get(f"/v2/models/{model}/infer", json.dumps({"inputs": [given]}).encode())
    if status != 200:
        return status, False
    found = np.array(json.loads(body)["outputs"][0]["data"], np.float32).reshape(-1, 3)
    return status, any(np.array_equal(found, x @ WEIGHTS * s) for s in (1, 2))


def test_nothing_is_lost_while_models_are_replaced(tmp_path: Path) -> None:
    """A reload swaps a model between requests; loading another disturbs nobody."""
    repository(tmp_path)
    with serving(tmp_path) as server:
        ended = threading.Event()

        def reload() -> None:
            scale = 1.0
            while not ended.is_set():
                scale = 3.0 - scale
                affine(tmp_path / "affine" / "2" / "model.onnx", scale)
                for name in ("affine", "logarithm"):
                    assert server.get(f"/v2/repository/models/{name}/load", b"")[0] == 200
                server.get("/v2/repository/models/logarithm/unload", b"")

        busy = threading.Thread(target=reload)
        busy.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda i: ask(server, i), range(1000)))
        finally:
            ended.set()
            busy.join()
        assert found == [(200, True)] * 1000


def test_sigterm_finishes_requests_and_ends_with_success(tmp_path: Path) -> None:
    affine(tmp_path / "affine.onnx")
    server = ServerProcess(tmp_path).wait_ready()
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10) as slow:
        server.signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        slow.settimeout(10)
        assert slow.recv(10) == b""
    assert "draining" in "".join(server.lines)


def test_slow_and_large_headers_are_cut_off(tmp_path: Path) -> None:
    affine(tmp_path / "affine.onnx")
    (tmp_path / "monograph.toml").write_text(
        "[limits]\nheader_seconds = 0.3\nbody_seconds = 0.3\nheader_bytes = 4000\n"
    )
    with serving(tmp_path) as server:
        host, port = server.address.split(":")
        for sent, answer in [
            (b"", b""),
            (b"GET /v2 HTTP/1.1\r\nHost:", b""),
            (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 8000, b""),
            (f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{".encode(), b"408"),
            (f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n".encode(), b"408"),
        ]:
            with socket.create_connection((host, int(port)), 10) as s:
                s.sendall(sent)
                s.settimeout(10)
                try:
                    assert answer in s.recv(100)
                except ConnectionResetError:
                    assert answer == b""
        assert server.get("/v2/health/live")[0] == 200


@pytest.mark.parametrize("text", ["[limits]\nqueu = 3\n", "[server]\nhttp = 'a'\n[", "[x]\n"])
def test_wrong_settings_are_refused_with_a_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "monograph.toml").write_text(text)
    with pytest.raises(ConfigError, match="setting"):
        read_settings(tmp_path)
