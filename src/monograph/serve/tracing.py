"""Spans of OpenTelemetry: one for each request, in the trace of its client, with its steps inside.

An extra, `pip install "monograph[otel]"`. Variables of OpenTelemetry say where spans go, and how
many of them: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import monograph
from monograph.errors import ConfigError

INSTALL = "pip install 'monograph[otel]'"
EXPORTER = "OTEL_TRACES_EXPORTER"
EXPORTERS = ("otlp", "console", "none")
CURRENT: ContextVar[RequestSpan | None] = ContextVar("span of the request", default=None)
"""The span of the request that a task answers."""


class RequestSpan:
    """The span of one request. Steps may be added in any thread."""

    def __init__(self, tracer: Any, span: Any) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer, self._span = tracer, span
        self._context = set_span_in_context(span)
        self._offset = time.time_ns() - time.monotonic_ns()

    @property
    def trace_id(self) -> str:
        """The id of the trace, as the header `traceparent` has it."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def set(self, **attributes: Any) -> None:
        """Set attributes; names have dots for double underscores."""
        for name, value in attributes.items():
            self._span.set_attribute(name.replace("__", "."), value)

    def failed(self, message: str) -> None:
        """Mark the request as one that the server failed to answer."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR, message))

    def step(self, name: str, started: float, ended: float, **attributes: Any) -> None:
        """Add a step between two times of `time.monotonic`."""
        made = self._tracer.start_span(name, self._context, start_time=self._ns(started))
        for key, value in attributes.items():
            made.set_attribute(f"monograph.{key}", value)
        made.end(self._ns(ended))

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset


class Traces:
    """Makes the spans of requests."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("monograph", monograph.__version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(
        self, name: str, carrier: Mapping[str, str], **attributes: Any
    ) -> Iterator[RequestSpan]:
        """Make the span of a request; the carrier has `traceparent` and `tracestate`."""
        from opentelemetry.trace import SpanKind

        context = self._propagator.extract({k.lower(): v for k, v in carrier.items()})
        raw = self._tracer.start_span(name, context, SpanKind.SERVER)
        span = RequestSpan(self._tracer, raw)
        span.set(**attributes)
        token = CURRENT.set(span)
        try:
            yield span
        finally:
            CURRENT.reset(token)
            raw.end()

    def close(self) -> None:
        """Send the spans that are left."""
        self._provider.shutdown()


def make_traces(wanted: bool) -> Traces | None:
    """Return what makes spans, as the variables of OpenTelemetry say; None if none are wanted."""
    kind = os.environ.get(EXPORTER, "otlp")
    if not wanted or kind == "none":
        return None
    if kind not in EXPORTERS:
        raise ConfigError(f"{EXPORTER} must be an exporter", expected=EXPORTERS, given=kind)
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(kind)
    except ImportError as e:
        raise ConfigError(
            "traces need packages that are not installed", given=e.name, hint=INSTALL
        ) from None
    resource = Resource.create({SERVICE_VERSION: monograph.__version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "monograph"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider)


def _exporter(kind: str) -> Any:
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def route_of(parts: list[str]) -> str:
    """Return a path without the names in it, so that spans of one operation have one name."""
    found = list(parts)
    for before, place in (("models", "{model}"), ("versions", "{version}")):
        for i, part in enumerate(parts[:-1]):
            if part == before and parts[i + 1] not in ("stats",):
                found[i + 1] = place
    return "/" + "/".join(found)
