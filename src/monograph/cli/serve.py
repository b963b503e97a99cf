"""`monograph serve`: parsing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from monograph.cli.common import reporting
from monograph.cli.options import Debug, Target, Threads
from monograph.errors import ConfigError

INSTALL = "pip install 'monograph[serve]'"
Models = Annotated[
    Path,
    typer.Argument(
        metavar="MODELS",
        help="A folder of models, an ONNX file, a package, or a folder with a decoder.",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="The port of HTTP; 0 takes a free one.", show_default="8000"
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="The port of gRPC; 0 takes a free one.", show_default="no gRPC"
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="The address to listen on; 0.0.0.0 for all of the machine.", show_default="127.0.0.1"
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="The settings of server and models.",
        show_default="MODELS/monograph.toml, if it is there",
    ),
]
MaxBatch = Annotated[
    int | None,
    typer.Option("--max-batch", min=1, help="The most rows of a batch.", show_default="64"),
]
ParallelBatches = Annotated[
    int | None,
    typer.Option(
        "--parallel-batches",
        min=1,
        help="The most batches of a model that run beside each other on a CPU.",
        show_default="one for each thread, at most 4",
    ),
]
NoBatch = Annotated[bool, typer.Option("--no-batch", help="Run each request by itself.")]
Queue = Annotated[
    int | None,
    typer.Option(min=1, help="The most requests that wait for a model.", show_default="256"),
]
MaxBody = Annotated[
    int | None,
    typer.Option("--max-body", min=1, help="The most bytes of a body.", show_default="64 MiB"),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="The deadline of a request in seconds.", show_default="30"),
]

Instances = Annotated[
    int | None,
    typer.Option(
        min=1, help="The processes behind the port; they share the threads.", show_default="1"
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option("--api-keys", metavar="FILE", help="A file with one API key a line."),
]
Cert = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate of TLS (PEM).")]
CertKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")]
Logs = Annotated[
    str | None,
    typer.Option(metavar="text|json", help="The form of log records.", show_default="text"),
]
Traces = Annotated[
    bool, typer.Option("--traces", help="Make spans of OpenTelemetry, as its variables say.")
]


def serve(
    models: Models,
    http: Port = None,
    grpc: GrpcPort = None,
    host: Host = None,
    config: ConfigPath = None,
    target: Target = None,
    threads: Threads = None,
    max_batch: MaxBatch = None,
    parallel_batches: ParallelBatches = None,
    no_batch: NoBatch = False,
    queue: Queue = None,
    max_body: MaxBody = None,
    timeout: Timeout = None,
    instances: Instances = None,
    api_keys: Keys = None,
    tls_cert: Cert = None,
    tls_key: CertKey = None,
    logs: Logs = None,
    traces: Traces = False,
    debug: Debug = False,
) -> None:
    """Serve models over HTTP and gRPC, until SIGTERM or Ctrl-C.

    Clients of the Open Inference Protocol (Triton, KServe) reach a model at /v2/models/NAME/infer,
    those of OpenAI a decoder at /v1/chat/completions.
    Requests that wait at the same time share one run where the graph proves that rows are
    independent. GET /v2/health/ready answers 200 when all models are compiled; no request waits
    for a compilation.

    Examples:

    monograph serve model.onnx

    monograph serve models/ --http 8000 --grpc 8001 --host 0.0.0.0

    curl localhost:8000/v2/models/model/infer -d '{"inputs": [{"name": "x", "datatype": "FP32",
    "shape": [1, 2], "data": [1, 2]}]}'
    """
    with reporting(False, debug):
        try:
            from monograph.serve.server import serve as serve_models
        except ImportError as e:
            if e.name is None or e.name.startswith("monograph"):
                raise
            raise ConfigError(
                "serving needs packages that are not installed", given=e.name, hint=INSTALL
            ) from None
        from monograph.serve.settings import read_settings

        defaults = {
            "target": target, "threads": threads, "max_batch": max_batch,
            "parallel_batches": parallel_batches, "batch": False if no_batch else None,
        }  # fmt: skip
        limits = {"queue": queue, "body_bytes": max_body, "request_seconds": timeout}
        server: dict[str, Any] = {
            "http": http, "grpc": grpc, "host": host, "api_keys": api_keys, "tls_cert": tls_cert,
            "tls_key": tls_key, "logs": logs, "instances": instances,
            "traces": traces or None,
        }  # fmt: skip
        settings = read_settings(models, config, **server, defaults=defaults, limits=limits)
        serve_models(settings)
