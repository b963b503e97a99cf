"""Operations: metrics, status page, API keys, TLS, logs."""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from monograph.errors import ConfigError
from monograph.serve.keys import ApiKeys
from monograph.serve.rpc.messages import MESSAGES, SERVICE
from monograph.serve.settings import read_settings
from tests.serve.models import affine
from tests.serve.process import ServerProcess, serving

KEY = "a-key-of-some-length"
CALL = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": list(range(8))}]}


@pytest.fixture(scope="module")
def certificate() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificate: trustme.CA
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    affine(folder / "affine.onnx")
    (folder / "keys").write_text(f"# comment\n\n{KEY}\nanother-key-of-length\n")
    issued = certificate.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (folder / "monograph.toml").write_text(
        f'[server]\napi_keys = "{folder}/keys"\ntls_cert = "{folder}/cert.pem"\n'
        f'tls_key = "{folder}/key.pem"\nlogs = "json"\nlog_requests = true\n'
    )
    context = ssl.create_default_context()
    certificate.configure_trust(context)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    before = urllib.request._opener  # type: ignore[attr-defined]
    urllib.request.install_opener(opener)
    try:
        with serving(folder, grpc=True) as made:
            yield made
    finally:
        urllib.request.install_opener(before)


def infer(server: ServerProcess, **headers: str) -> int:
    return server.get("/v2/models/affine/infer", json.dumps(CALL).encode(), **headers)[0]


def test_requests_need_a_key_and_probes_do_not(server: ServerProcess) -> None:
    assert server.url.startswith("https://")
    assert infer(server) == 401
    assert infer(server, Authorization="Bearer wrong-key-of-length") == 401
    assert infer(server, Authorization=f"Basic {KEY}") == 401
    assert infer(server, Authorization=f"Bearer {KEY}") == 200
    assert infer(server, X_API_Key="another-key-of-length") == 200
    assert server.get("/v2/health/live")[0] == 200
    assert server.get("/")[0] == 200
    for path in ("/v2", "/metrics", "/v2/status", "/v1/models", "/v2/models/affine"):
        assert server.get(path)[0] == 401, path


def test_grpc_needs_a_key_and_uses_the_certificate(
    server: ServerProcess, certificate: trustme.CA
) -> None:
    trusted = grpc.ssl_channel_credentials(certificate.cert_pem.bytes())
    with grpc.secure_channel(server.grpc, trusted) as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/ServerMetadata",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=MESSAGES["ServerMetadataResponse"].FromString,
        )
        with pytest.raises(grpc.RpcError) as e:
            ask(MESSAGES["Empty"](), timeout=30)
        assert e.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = [("authorization", f"Bearer {KEY}")]
        assert ask(MESSAGES["Empty"](), timeout=30, metadata=metadata).name == "monograph"


def samples(server: ServerProcess) -> dict[str, float]:
    status, body = server.get("/metrics", Authorization=f"Bearer {KEY}")
    assert status == 200
    return {
        s.name + "".join(f"|{v}" for k, v in sorted(s.labels.items()) if k in ("outcome", "le")):
        s.value
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    }  # fmt: skip


def test_metrics_count_requests_rows_and_times(server: ServerProcess) -> None:
    before = samples(server)
    for _ in range(3):
        assert infer(server, X_API_Key=KEY) == 200
    bad = json.dumps({"inputs": []}).encode()
    server.get("/v2/models/affine/infer", bad, X_API_Key=KEY)
    after = samples(server)
    for name, grown in [
        ("monograph_requests_total|success", 3), ("monograph_requests_total|invalid", 1),
        ("monograph_request_seconds_count", 3), ("monograph_batch_rows_sum", 6),
        ("monograph_batch_rows_bucket|2", 3), ("monograph_compilations_total", 0),
    ]:  # fmt: skip
        assert after[name] - before.get(name, 0) == grown, name
    assert after["monograph_ready"] == 1
    assert after["process_resident_memory_bytes"] > 1e6


def test_the_status_page_needs_nothing_from_elsewhere(server: ServerProcess) -> None:
    page = server.get("/")[1].decode()
    assert not re.findall(r"(?:src|href)=|https?://", page)
    status, body = server.get("/v2/status", X_API_Key=KEY)
    found = json.loads(body)
    assert (status, found["ready"]) == (200, True)
    (model,) = found["models"]
    assert model["state"] == "READY"
    assert np.sum([count for _, count in model["latency"]]) == model["requests"]


def test_logs_are_json_lines(server: ServerProcess) -> None:
    infer(server, X_API_Key=KEY)
    server.get("/v2/health/live")
    records = [json.loads(line) for line in server.lines if line.startswith("{")]
    paths = {(r["path"], r["status"]) for r in records if "path" in r}
    assert ("/v2/models/affine/infer", 200) in paths
    assert not any(KEY in line for line in server.lines)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text in ("", "# nothing\n", "short\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="one key a line"):
            ApiKeys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        ApiKeys(tmp_path / "none")
    with pytest.raises(ConfigError, match="certificate"):
        read_settings(tmp_path, tls_cert=path)
