"""Metrics for Prometheus, read from the statistics of models when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)  # fmt: skip
from prometheus_client.registry import Collector

from monograph.serve.repository import Repository, ServedModel
from monograph.serve.statistics import Histogram

LABELS = ("model", "version")
_HISTOGRAMS = {
    "monograph_request_seconds": ("latency", "Time from the arrival of a request to its answer."),
    "monograph_batch_rows": ("batch_rows", "Rows of each run."),
    "monograph_first_token_seconds": ("first", "Time from a request's arrival to its first token."),
    "monograph_inter_token_seconds": ("between", "Time between tokens of a request."),
}


class Metrics(Collector):
    """The metrics of a server."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return the metrics in the text form of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        models = self._repository.models()
        yield from self._counters(models)
        yield from self._gauges(models)
        for name, (attribute, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=LABELS)
            for m in models:
                found: Histogram = getattr(m.statistics, attribute)
                family.add_metric([m.name, m.version], found.cumulative(), found.total)
            yield family

    def _counters(self, models: list[ServedModel]) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "monograph_requests", "Requests by outcome.", labels=(*LABELS, "outcome")
        )
        fallbacks = CounterMetricFamily(
            "monograph_fallbacks", "Runs without compiled code for their sizes.",
            labels=(*LABELS, "reason"),
        )  # fmt: skip
        retries = CounterMetricFamily(
            "monograph_retries", "Requests that were sent to another replica.",
            labels=(*LABELS, "reason"),
        )  # fmt: skip
        single = {
            name: CounterMetricFamily(f"monograph_{name}", text, labels=LABELS)
            for name, text in (
                ("queue_seconds", "Time that requests have waited."),
                ("run_seconds", "Time that the model has run."),
                ("padding_rows", "Rows that were run and belong to no request."),
                ("tokens", "Generated tokens."),
                ("compilations", "Sets of shapes that were compiled while serving."),
                ("prompt_tokens", "Tokens of prompts."),
                ("reused_prompt_tokens", "Tokens of prompts whose rows were in the cache."),
                ("steps", "Steps that made tokens."),
            )
        }
        for m in models:
            key, s = [m.name, m.version], m.statistics
            requests.add_metric([*key, "success"], s.success.count)
            for kind, count in s.failures.items():
                requests.add_metric([*key, kind], count)
            for reason, count in m.fallbacks.items():
                fallbacks.add_metric([*key, reason], count)
            for reason, count in s.retries.items():
                retries.add_metric([*key, reason], count)
            counts = m.counts
            for name, value in (
                ("queue_seconds", s.queue.ns / 1e9),
                ("run_seconds", s.compute_infer.ns / 1e9),
                ("padding_rows", s.padding + counts.get("idle_rows", 0)),
                ("tokens", s.generated),
                ("compilations", s.compiled_aside + counts.get("compiled", 0)),
                ("prompt_tokens", counts.get("prompt_tokens", 0)),
                ("reused_prompt_tokens", counts.get("reused_tokens", 0)),
                ("steps", counts.get("steps", 0)),
            ):
                single[name].add_metric(key, value)
        yield requests
        yield fallbacks
        yield retries
        yield from single.values()

    def _gauges(self, models: list[ServedModel]) -> Iterator[Metric]:
        pending = GaugeMetricFamily(
            "monograph_pending_requests", "Requests that wait or run.", labels=LABELS
        )
        ready = GaugeMetricFamily(
            "monograph_model_ready", "1 for a model that is ready.", labels=LABELS
        )
        memory = GaugeMetricFamily(
            "monograph_memory_bytes", "Memory of a model by its use.", labels=(*LABELS, "use")
        )
        slots = GaugeMetricFamily(
            "monograph_slots", "Slots of a language model: used ones, and all.",
            labels=(*LABELS, "state"),
        )  # fmt: skip
        waiting = GaugeMetricFamily(
            "monograph_waiting_sequences", "Sequences that wait for a slot.", labels=LABELS
        )
        for m in models:
            key = [m.name, m.version]
            pending.add_metric(key, m.pending)
            for use, size in m.memory.items():
                memory.add_metric([*key, use], size)
            if counts := m.counts:
                slots.add_metric([*key, "used"], counts["active"])
                slots.add_metric([*key, "all"], counts["slots"])
                waiting.add_metric(key, counts["waiting"])
        for entry in self._repository.entries():
            found = entry.found
            ready.add_metric([found.name, found.version], float(entry.model is not None))
        yield from (pending, memory, slots, waiting, ready)
        yield GaugeMetricFamily(
            "monograph_ready", "1 if the server is ready.", value=float(self._repository.ready)
        )
