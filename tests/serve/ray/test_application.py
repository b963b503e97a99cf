"""The application on Ray answers as `monograph serve` does; Ray's commands start it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it")

from monograph.errors import ConfigError
from monograph.serve.ray import app
from monograph.serve.ray.application import deployment_name
from tests.serve.models import affine, language
from tests.serve.process import ServerProcess
from tests.serve.ray.cluster import START, RayApplication, environment, running
from tests.serve.test_remote import stateful

INPUT = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": list(range(8))}
TEXT = {"model": "llama", "prompt": "hello", "max_tokens": 8, "seed": 5}
CHAT = {
    "model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6,
    "seed": 1, "logprobs": True, "top_logprobs": 2,
}  # fmt: skip
REQUESTS: list[tuple[str, Any]] = [
    ("/v2", None),
    ("/v2/health/live", None),
    ("/v2/models/affine", None),
    ("/v2/models/affine/ready", None),
    ("/v2/models/affine/config", None),
    ("/v2/models/affine/infer", {"id": "a", "inputs": [INPUT]}),
    ("/v2/models/affine/infer", {"inputs": [INPUT | {"shape": [4, 2]}]}),
    ("/v2/models/affine/infer", {"inputs": [INPUT | {"name": "z"}]}),
    ("/v2/models/affine/infer", {"inputs": [INPUT], "outputs": [{"name": "z"}]}),
    ("/v2/models/nothing/infer", {"inputs": [INPUT]}),
    ("/v2/models/llama/infer", {"inputs": [INPUT]}),
    ("/v2/models/counter/infer", {"inputs": [INPUT]}),
    ("/v2/repository/index", {}),
    ("/v1/models", None),
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"n": 2, "stop": "x", "temperature": 0}),
    ("/v1/completions", TEXT | {"stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", TEXT | {"tools": [1]}),
    ("/v1/completions", TEXT | {"prompt": [99999]}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"model": "affine"}),
    ("/nothing", None),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = language(tmp_path_factory.mktemp("models"))
    affine(made / "affine.onnx")
    return made


@pytest.fixture(scope="module")
def refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same models, and one that cannot be served."""
    made = tmp_path_factory.mktemp("more")
    for entry in folder.iterdir():
        (made / entry.name).symlink_to(entry)
    stateful(made / "counter.mono")
    return made


@pytest.fixture(scope="module")
def server(refused: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(refused)
    try:
        wait(made.url, "/v2/models/llama/ready")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def application(refused: Path) -> Iterator[RayApplication]:
    with running(refused, ready="/v2/models/llama/ready") as made:
        yield made


def ask(url: str, path: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def wait(url: str, path: str = "/v2/health/ready") -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        try:
            if ask(url, path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url}{path} is not ready")


def without_names(body: bytes) -> Any:
    """An answer without what differs from request to request."""
    parts = body.decode().removeprefix("data: ").split("\n\ndata: ")
    found = [json.loads(p) if p.startswith(("{", "[{")) else p for p in parts]
    for part in found:
        if isinstance(part, dict) and str(part.get("id", "")).startswith(("cmpl", "chatcmpl")):
            part |= {"id": "", "created": 0}
    return found


def test_answers_are_those_of_a_server_process(
    application: RayApplication, server: ServerProcess
) -> None:
    for path, body in REQUESTS:
        here, there = ask(server.url, path, body), ask(application.url, path, body)
        assert here[0] == there[0], (path, body, here, there)
        assert without_names(here[1]) == without_names(there[1]), (path, body)


def test_a_model_with_state_is_refused_with_the_reason(application: RayApplication) -> None:
    status, body = application.get("/v2/models/counter/infer", b'{"inputs": []}')
    assert status == 503
    assert "a model with state is not served" in body.decode()
    assert application.get("/v2/health/ready")[0] == 503


def test_models_are_not_loaded_by_requests(application: RayApplication) -> None:
    status, body = application.get("/v2/repository/models/affine/load", b"{}")
    assert status == 501
    assert "deploy the application again" in body.decode()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ({}, "", "needs a folder of models"),
        ({"model": "x"}, "", "no such argument"),
        ({"models": "/nothing/here"}, "", "no such model or folder"),
        (None, '[server]\ntls_cert = "a"\ntls_key = "b"\n', "the proxies of Ray encrypt"),
        (None, "[ray.models.other]\ngpus = 1\n", "names no model of the folder"),
        (None, '[models.affine]\ndonate = { y = "x" }\n', "a model with state is not served"),
    ],
)
def test_wrong_arguments_and_settings_are_named(
    arguments: dict[str, str] | None, settings: str, message: str, tmp_path: Path
) -> None:
    affine(tmp_path / "affine.onnx")
    (tmp_path / "monograph.toml").write_text(settings)
    with pytest.raises(ConfigError, match=message):
        app({"models": str(tmp_path)} if arguments is None else arguments)


def test_any_name_of_a_model_gives_a_plain_name() -> None:
    names = ["detector", "a b", "ü#/x", "x" * 200]
    made = [deployment_name(n) for n in names]
    assert made[0] == "model-detector"
    assert len({*made}) == len(names)
    assert all(m.removeprefix("model-").isalnum() for m in made)


def test_the_command_of_ray_starts_the_example(folder: Path, tmp_path: Path) -> None:
    """`serve run` with the configuration that `serve deploy` takes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    example = Path(__file__).parents[3] / "examples" / "ray" / "serve.yaml"
    config = yaml.safe_load(example.read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["applications"][0]["args"]["models"] = str(folder)
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    with command(tmp_path, "run", "serve.yaml"):
        url = f"http://127.0.0.1:{port}"
        wait(url)
        status, body = ask(url, "/v2/models/affine/infer", {"inputs": [INPUT]})
        assert status == 200
        assert json.loads(body)["outputs"][0]["shape"] == [2, 3]


@contextlib.contextmanager
def command(folder: Path, *arguments: str) -> Iterator[None]:
    """Run Ray's `serve` until the block ends; nothing of it stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.serve.scripts", *arguments],
        cwd=folder,
        env=os.environ | environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
