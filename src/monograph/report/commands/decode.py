"""The commands `monograph generate` and `monograph bench` of a decoder: times and floors.

A token cannot take less time than reading the weights and the cache once: the floor. How many bytes
a second that is, is measured here, as the best of several reads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console

from monograph.errors import ConfigError
from monograph.generate import Generator
from monograph.generate.engine.runner import StepRunner
from monograph.generate.rewrite.sampling import Sampling
from monograph.report.commands.bench import OVER_BYTES, measure_bandwidth
from monograph.report.render.console import table
from monograph.report.render.tables import count_text, seconds_text

STEPS, WARM_UPS = 32, 3
"""The number of timed steps at a position, and of the warm-up steps before."""
ROUND = 8
"""The largest number of steps that are timed together."""
POSITIONS = (16, 512)
"""The default positions."""
READ_SECONDS = 1.0
"""The seconds of uninterrupted reads that measure the bandwidth of memory. After a pause memory
needs tenths of a second to reach full speed."""
READS = 6
"""The number of measurements of a GPU's bandwidth."""
READ_BYTES = 1 << 29
"""The bytes of GPU memory to read: more than any cache holds."""
STOP, LIMIT, LENGTH = "stop_token", "max_new_tokens", "max_length"
"""The reasons why a generation ends."""


@dataclass(frozen=True)
class Decoding:
    """The times of a generation."""

    target: str
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_runs: int
    launches_per_token: float
    bytes_per_token: int
    """The bytes of weights and cache that a token reads, in the middle of the generation."""
    bytes_per_second: float
    stopped: str
    """STOP, LIMIT or LENGTH."""
    stop_token: int | None

    @property
    def tokens_per_second(self) -> float | None:
        """Return the rate; None if the prefill made the only token."""
        return self.decode_runs / self.decode_seconds if self.decode_runs else None

    @property
    def of_floor(self) -> float | None:
        """Return the floor divided by the time of a token; 1 means as fast as memory allows."""
        rate = self.tokens_per_second
        return None if rate is None else self.bytes_per_token / self.bytes_per_second * rate

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
            "stopped": self.stopped,
            "stop_token": self.stop_token,
        }


@dataclass(frozen=True)
class AtPosition:
    """The time of a decode step at a position."""

    position: int
    seconds: float
    """The median time from token to token."""
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


def measured(generator: Generator, prompt_tokens: int, new_tokens: int, limit: int) -> Decoding:
    """Return the times of the last generation of a generator.

    limit: how many tokens were asked for, 0 for as many as there is room for.
    """
    engine = generator.engine
    timing = engine.timing
    middle = prompt_tokens + new_tokens // 2
    stopped = generator.finish_reason() == "stop"
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
        STOP if stopped else LIMIT if new_tokens == limit else LENGTH,
        int(generator.get_sequence(0)[-1]) if stopped else None,
    )


def launches(generator: Generator) -> float:
    """Return the launches per token; below 1 if one launch makes many tokens."""
    engine, timing = generator.engine, generator.engine.timing
    if timing.decode_launches and timing.decode_runs > timing.decode_launches:
        each = engine.loop_session().stats["launches_per_run"]
        return float(each * timing.decode_launches / timing.decode_runs)
    stats = generator.session.stats
    if stats.get("replays", 0) + stats.get("captures", 0) >= stats["runs"] > 0:
        return 1.0
    if generator.session.config.target == "reference":
        return 0.0  # nothing is launched
    return float(generator.session.executable(engine.last_feeds).launches)


def bandwidth(generator: Generator) -> float:
    """Return the peak bandwidth of the target's memory in bytes per second."""
    session = generator.session
    if session.gpu is None:
        return measure_bandwidth(session.threads or 1, READ_SECONDS)
    import torch

    from monograph.runtime.gpu.profiling import measure_ceilings
    from monograph.runtime.gpu.target import GpuBackend

    if not isinstance(session.gpu, GpuBackend):
        return measure_bandwidth(session.threads or 1, READ_SECONDS)
    device = session.gpu.device
    copied = measure_ceilings(device, torch.float16).bytes_per_second
    return max(copied, _read_by_gpu(device)) if device.measures else copied


def _read_by_gpu(device: Any) -> float:
    """Return the read bandwidth in bytes per second; a copy is slower than a read."""
    import torch

    with device.active():
        data = torch.ones(READ_BYTES // 2, dtype=torch.float16, device=device.place)
        matrix, vector = data.view(-1, 4096), data[:4096]
        wide = data.view(torch.float32)
        works: tuple[Callable[[], Any], ...] = (lambda: torch.mv(matrix, vector), wide.sum)
        best = 0.0
        for work in works:
            for _ in range(READS):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                work()
                stop.record()
                stop.synchronize()
                best = max(best, data.nbytes / (start.elapsed_time(stop) * 1e-3))
    return best


def usual_positions(maximum: int) -> list[int]:
    """Return the default positions that leave room for all timed steps."""
    last = max(0, maximum - WARM_UPS - STEPS)
    return sorted({min(position, last) for position in POSITIONS})


def bench_decoder(
    generator: Generator, positions: Sequence[int], batch: int, note: Any, steps: int = STEPS
) -> DecodeBench:
    """Time decode steps at positions; the content of the cache does not matter."""
    engine = generator.engine
    hint = generator.more_room()
    if engine.maximum <= WARM_UPS:
        raise ConfigError(
            "the cache must have room for the timed steps",
            expected=f"room for {WARM_UPS + 1} tokens at least",
            given=engine.maximum,
            hint=hint,
        )
    for position in positions:
        if not 0 <= position <= engine.maximum - WARM_UPS - 1:
            raise ConfigError(
                "a position must leave room for the timed steps",
                expected=f"0..{engine.maximum - WARM_UPS - 1}",
                given=position,
                hint=hint,
            )
    engine.start(batch, Sampling())
    found = []
    for position in positions:
        count = min(steps, engine.maximum - position - WARM_UPS)
        if count < steps:
            note(f"{count} steps fit behind position {position}")
        engine.place(position)
        _seconds(engine, WARM_UPS)
        rounds = -(-count // ROUND)
        ends = [count * number // rounds for number in range(rounds + 1)]
        times = [_seconds(engine, end - first) / (end - first) for first, end in pairwise(ends)]
        moved = engine.weight_bytes() + engine.cache_bytes(position)
        found.append(AtPosition(position, statistics.median(times), min(times), moved))
    target = generator.session.config.target
    return DecodeBench(target, batch, launches(generator), bandwidth(generator), tuple(found))


def _seconds(engine: StepRunner, count: int) -> float:
    """Return the seconds of consecutive steps, from the first start to the last token.

    On a GPU steps overlap, so the time of a single step is unknown.
    """
    began = time.perf_counter()
    for left in reversed(range(count)):
        engine.decode(further=left > 0)
    return time.perf_counter() - began


def decoding_lines(found: Decoding) -> list[str]:
    """Return the lines that are printed after a generation."""
    rate, share = found.tokens_per_second, found.of_floor
    decoded = f"decode: {count_text(found.new_tokens, 'token')}"
    if rate is not None:
        decoded += f", {rate:.1f} a second, {_launches_text(found.launches_per_token)}"
    memory = (
        f"memory: {found.bytes_per_token / 1e6:.1f} MB a token at"
        f" {found.bytes_per_second / 1e9:.1f} GB/s is the floor"
    )
    if share is not None:
        memory += f"; {share:.0%} of it" + (f" ({OVER_BYTES})" if share > 1 else "")
    why = {
        STOP: f"at stop token {found.stop_token}",
        LIMIT: f"at the limit of {count_text(found.new_tokens, 'new token')}",
        LENGTH: f"at the maximum length, {found.prompt_tokens + found.new_tokens} tokens",
    }
    prompt = count_text(found.prompt_tokens, "token")
    return [
        f"prompt: {prompt} in {seconds_text(found.prefill_seconds)}",
        decoded,
        memory,
        f"stopped: {why[found.stopped]}",
    ]


def _launches_text(count: float) -> str:
    if not count:
        return "nothing is launched"
    return "1 launch a token" if count == 1 else f"{count:.3g} launches a token"


def show_decode_bench(out: Console, name: str, found: DecodeBench) -> None:
    title = f"{name} on {found.target}, batch {found.batch}"
    columns = ("position", "median", "fastest", "tokens a second", "of the floor")
    rows = table(title, *columns, right=tuple(range(5)))
    shares = [s.bytes / found.bytes_per_second / s.seconds for s in found.steps]
    for step, share in zip(found.steps, shares, strict=True):
        rows.add_row(
            str(step.position),
            seconds_text(step.seconds),
            seconds_text(step.least),
            f"{found.batch / step.seconds:.1f}",
            f"{share:.0%}",
        )
    out.print(rows)
    out.print(
        f"{_launches_text(found.launches_per_token)}; the floor is reading weights and cache"
        f" once at {found.bytes_per_second / 1e9:.1f} GB/s"
    )
    if max(shares, default=0.0) > 1:
        out.print(OVER_BYTES)
