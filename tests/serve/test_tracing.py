"""Spans of OpenTelemetry: the trace of the client, the steps of a request, errors, sampling."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.serve.rpc.messages import MESSAGES, SERVICE
from monograph.serve.tracing import make_traces, route_of
from tests.serve.models import affine, language
from tests.serve.process import ServerProcess, serving

pytest.importorskip("opentelemetry.sdk", reason="needs '.[otel]'")
messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

PARENT = "00f067aa0ba902b7"
CALL = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [*range(8)]}]}


class Collector:
    """Receives spans as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        spans, resources = self.spans, self.resources

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                found = messages.ExportTraceServiceRequest.FromString(self.rfile.read(size))
                for resource in found.resource_spans:
                    resources.append(attributes(resource.resource))
                    spans.extend(s for scope in resource.scope_spans for s in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, trace: str, count: int) -> dict[str, Any]:
        """Return the spans of a trace by name when as many have come."""
        end = time.monotonic() + 30
        while True:
            found = [s for s in self.spans if s.trace_id.hex() == trace]
            if len(found) >= count:
                assert len(found) == count, [s.name for s in found]
                return {s.name: s for s in found}
            assert time.monotonic() < end, [s.name for s in self.spans]
            time.sleep(0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in of.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[ServerProcess]:
    folder = language(tmp_path_factory.mktemp("models"))
    affine(folder / "affine.onnx")
    with (folder / "monograph.toml").open("a") as file:
        file.write("[server]\nlogs = 'json'\nlog_requests = true\n")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with serving(folder, "--traces", grpc=True, **env) as made:
        yield made


Trace = Callable[[int], tuple[str, dict[str, str]]]


def trace(number: int, sampled: bool = True) -> tuple[str, dict[str, str]]:
    """Return the id of a trace and the headers of its client."""
    id_ = f"{number:032x}"
    return id_, {"traceparent": f"00-{id_}-{PARENT}-0{int(sampled)}", "tracestate": "a=b"}


def test_a_request_is_in_the_trace_of_its_client_with_its_steps(
    server: ServerProcess, collector: Collector
) -> None:
    id_, headers = trace(1)
    body = json.dumps(CALL).encode()
    assert server.get("/v2/models/affine/versions/1/infer", body, **headers)[0] == 200
    found = collector.of(id_, 3)
    request = found.pop("POST /v2/models/{model}/versions/{version}/infer")
    assert request.parent_span_id.hex() == PARENT
    assert request.trace_state == "a=b"
    given = attributes(request)
    assert given["http.response.status_code"] == 200
    assert given["url.path"] == "/v2/models/affine/versions/1/infer"
    queue, run = found["queue"], found["run"]
    assert {queue.parent_span_id, run.parent_span_id} == {request.span_id}
    times = [
        request.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano,
        run.end_time_unix_nano, request.end_time_unix_nano,
    ]  # fmt: skip
    assert np.all(np.diff(times) > -1_000_000), times
    assert queue.end_time_unix_nano == run.start_time_unix_nano
    assert attributes(run) == {"monograph.requests": 1, "monograph.rows": 2}
    assert collector.resources[0]["service.name"] == "monograph"
    records = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert id_ in {r.get("trace_id") for r in records}


def test_errors_of_clients_are_no_errors_of_the_server(
    server: ServerProcess, collector: Collector
) -> None:
    id_, headers = trace(2)
    assert server.get("/v2/models/none/infer", b"{}", **headers)[0] == 404
    (span,) = collector.of(id_, 1).values()
    assert attributes(span)["http.response.status_code"] == 404
    assert span.status.code == 0


def test_generated_tokens_are_steps(server: ServerProcess, collector: Collector) -> None:
    id_, headers = trace(3)
    for stream in (False, True):
        call = {"model": "llama", "prompt": [5], "max_tokens": 4, "temperature": 0,
                "stream": stream}  # fmt: skip
        assert server.get("/v1/completions", json.dumps(call).encode(), **headers)[0] == 200
    found = collector.of(id_, 6)
    assert attributes(found["tokens"])["monograph.tokens"] == 4
    request = found["POST /v1/completions"]
    assert found["tokens"].parent_span_id == request.span_id
    assert found["first token"].end_time_unix_nano == found["tokens"].start_time_unix_nano


def test_calls_and_streams_of_grpc_have_spans(server: ServerProcess, collector: Collector) -> None:
    id_, headers = trace(4)
    request = MESSAGES["ModelInferRequest"](model_name="affine")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    bad = MESSAGES["ModelInferRequest"](model_name="none")
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        ask(request.SerializeToString(), metadata=[*headers.items()], timeout=30)
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        sent = iter([bad.SerializeToString()])
        assert len([*stream(sent, metadata=[*headers.items()], timeout=30)]) == 1
    found = collector.of(id_, 4)
    one = found[f"{SERVICE}/ModelInfer"]
    assert found["run"].parent_span_id == one.span_id
    assert attributes(one)["rpc.response.status_code"] == "OK"
    other = attributes(found[f"{SERVICE}/ModelStreamInfer"])
    assert other["rpc.response.status_code"] == "NOT_FOUND"


def test_a_client_that_samples_nothing_gets_no_spans(
    server: ServerProcess, collector: Collector
) -> None:
    (left, headers), (kept, others) = trace(5, False), trace(6)
    for given in (headers, others):
        assert server.get("/v2/models/affine", None, **given)[0] == 200
    assert [*collector.of(kept, 1)] == ["GET /v2/models/{model}"]
    assert collector.of(left, 0) == {}


def test_wrong_exporters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER"):
        make_traces(True)
    assert make_traces(False) is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert make_traces(True) is None


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("v2/models/a/infer", "/v2/models/{model}/infer"),
        ("v2/models/stats", "/v2/models/stats"),
        ("v2/models/a/versions/3", "/v2/models/{model}/versions/{version}"),
        ("v2/repository/models/a/load", "/v2/repository/models/{model}/load"),
        ("", "/"),
    ],
)
def test_routes_have_no_names(path: str, route: str) -> None:
    assert route_of(path.split("/")) == route
