"""Generations with their times, and decoding at given positions, beside what memory allows.

A token cannot take less time than reading the weights and the cache once: the floor. How many bytes
a second that is, is measured here, with kernels of our own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from monograph.errors import ConfigError
from monograph.generate import Generator
from monograph.generate.sampling import Sampling
from monograph.report.bench import measure_peaks
from monograph.report.tables import table

STEPS = 32
"""Steps that are timed at a position, and the ones before them that are not."""
WARM_UPS = 3


@dataclass(frozen=True)
class Decoding:
    """What a generation took."""

    target: str
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_runs: int
    launches_per_token: float
    bytes_per_token: int
    """Weights and cache that a token reads, at the middle of the generation."""
    bytes_per_second: float

    @property
    def tokens_per_second(self) -> float:
        return self.decode_runs / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def of_floor(self) -> float:
        """The least time for a token beside the time it took: 1 is as fast as memory allows."""
        floor = self.bytes_per_token / self.bytes_per_second
        return floor * self.tokens_per_second

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.tokens_per_second,
            "launches_per_token": self.launches_per_token,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_second": self.bytes_per_second,
            "of_floor": self.of_floor,
        }


@dataclass(frozen=True)
class AtPosition:
    """A decode step behind so many tokens."""

    position: int
    seconds: float
    """The median."""
    least: float
    bytes: int


@dataclass(frozen=True)
class DecodeBench:
    """Decode steps at several positions."""

    target: str
    batch: int
    launches_per_token: float
    bytes_per_second: float
    steps: tuple[AtPosition, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "batch": self.batch,
            "launches_per_token": self.launches_per_token,
            "bytes_per_second": self.bytes_per_second,
            "positions": [
                {
                    "position": s.position,
                    "median": s.seconds,
                    "min": s.least,
                    "tokens_per_second": self.batch / s.seconds,
                    "bytes": s.bytes,
                    "of_floor": s.bytes / self.bytes_per_second / s.seconds,
                }
                for s in self.steps
            ],
        }


def measured(generator: Generator, prompt_tokens: int, new_tokens: int) -> Decoding:
    """What the generation that a generator has just made took."""
    engine = generator.engine
    timing = engine.timing
    middle = prompt_tokens + new_tokens // 2
    return Decoding(
        generator.session.config.target,
        prompt_tokens,
        new_tokens,
        timing.prefill_seconds,
        timing.decode_seconds,
        timing.decode_runs,
        launches(generator),
        engine.weight_bytes() + engine.cache_bytes(middle),
        bandwidth(generator),
    )


def launches(generator: Generator) -> float:
    """Launches of a step, or the share of one where many tokens were made in one launch."""
    engine = generator.engine
    if engine.timing.decode_launches and engine.timing.decode_runs > engine.timing.decode_launches:
        return engine.timing.decode_launches / engine.timing.decode_runs
    stats = generator.session.stats
    if stats.get("replays", 0) + stats.get("captures", 0) >= stats["runs"] > 0:
        return 1.0
    if generator.session.config.target == "reference":
        return 0.0  # nothing is launched
    return float(generator.session.executable(engine.last_feeds).launches)


def bandwidth(generator: Generator) -> float:
    """Bytes a second that the memory of the target gives."""
    session = generator.session
    if session.gpu is None or session.gpu.place is None:
        return measure_peaks(session.threads or 1).bytes_per_second
    import torch

    from monograph.runtime.gpu.profiling import measure_ceilings

    device: Any = session.gpu.device  # type: ignore[union-attr]
    return measure_ceilings(device, torch.float16).bytes_per_second


def bench_decoder(
    generator: Generator, positions: Sequence[int], batch: int, note: Any, steps: int = STEPS
) -> DecodeBench:
    """Times decode steps at positions; what the cache holds there does not matter."""
    engine = generator.engine
    for position in positions:
        if not 0 <= position <= engine.maximum - WARM_UPS - 1:
            raise ConfigError(
                "there is no such position to measure at",
                expected=f"0..{engine.maximum - WARM_UPS - 1}",
                given=position,
                hint="raise --max-length",
            )
    engine.start(batch, Sampling())
    found = []
    for position in positions:
        count = min(steps, engine.maximum - position - WARM_UPS)
        if count < steps:
            note(f"{count} steps fit behind position {position}")
        engine.place(position)
        for _ in range(WARM_UPS):
            engine.decode()
        times = []
        for _ in range(count):
            began = time.perf_counter()
            engine.decode()
            times.append(time.perf_counter() - began)
        moved = engine.weight_bytes() + engine.cache_bytes(position)
        found.append(AtPosition(position, statistics.median(times), min(times), moved))
    target = generator.session.config.target
    return DecodeBench(target, batch, launches(generator), bandwidth(generator), tuple(found))


def decoding_lines(found: Decoding) -> list[str]:
    """What people read behind a generation."""
    return [
        f"prompt: {found.prompt_tokens} tokens in {found.prefill_seconds * 1e3:.1f} ms",
        f"decode: {found.new_tokens} tokens, {found.tokens_per_second:.1f} a second,"
        f" {found.launches_per_token:.3g} launches a token",
        f"memory: {found.bytes_per_token / 1e6:.1f} MB a token at"
        f" {found.bytes_per_second / 1e9:.1f} GB/s is the floor; {found.of_floor:.0%} of it",
    ]


def show_decode_bench(out: Console, name: str, found: DecodeBench) -> None:
    title = f"{name} on {found.target}, batch {found.batch}"
    columns = ("position", "median", "fastest", "tokens a second", "of the floor")
    rows = table(title, *columns, right=tuple(range(5)))
    for step in found.steps:
        share = step.bytes / found.bytes_per_second / step.seconds
        rows.add_row(
            str(step.position),
            f"{step.seconds * 1e6:.0f} us",
            f"{step.least * 1e6:.0f} us",
            f"{found.batch / step.seconds:.1f}",
            f"{share:.0%}",
        )
    out.print(rows)
    out.print(
        f"{found.launches_per_token:.3g} launches a token; the floor is reading weights and cache"
        f" once at {found.bytes_per_second / 1e9:.1f} GB/s"
    )
