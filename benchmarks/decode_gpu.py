"""Decoding on a GPU beside torch: device time of a token, launches, the fraction of the floor.

    python -m benchmarks.decode_gpu --results DIR [--shape llama-1b] [--formats f16,int4-f16-zp]
        [--positions 512,2000] [--limit 240]
    python -m benchmarks.decode_gpu --results DIR --dry-run   # tiny, no GPU: do the parts fit?

A format is built, opened and measured by parts: what fails or finds no time left is said, and the
rest is kept, part by part, in decode-gpu-FORMATS-DEVICE.json and .md. Contenders take turns;
figures are medians. A step is measured at a position that does not move, on the same memory every
time: replays are queued back to back and timed by events; once by themselves, and once in turns
with torch, behind whose work the device may be slower. The floor is what reading the weights and
the cache once takes, by the best bandwidth that a read of a few gigabytes was seen to have.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.decode_gpu_record import OURS, Record, brief
from benchmarks.decoder_shapes import SHAPES, Shape, shape_of
from benchmarks.decoder_weights import PRESETS
from benchmarks.needs import result_path

BUILT = Path(__file__).parent.parent / "build" / "benchmarks"
OUR_EAGER = "monograph, capture off"
GREEDY, LOOPED, GENERATED = 96, 256, 32
"""Tokens that are compared, those of one launch, and those that come one by one."""
BESIDE = f"{OURS}, beside torch"
COMPILING = 45.0
"""Seconds that torch takes to compile a step, about."""
Run = Callable[[], Any]


@dataclass
class Stages:
    """Seconds of each stage of opening a model, as its progress tells."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: str = ""
    began: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if self.last:
            self.seconds[self.last] = self.seconds.get(self.last, 0.0) + now - self.began
        self.last, self.began = stage.partition(" ")[0], now

    def told(self) -> dict[str, float]:
        self("", 0, 0)
        self.last = ""
        return {name: round(s, 2) for name, s in self.seconds.items()}


class Decoding:
    """A decoder on the device: its step at positions, replayed and launched kernel by kernel."""

    def __init__(
        self,
        folder: Path,
        maximum: int,
        dry: bool,
        results: Path,
        rows: int = 1,
        tune: str = "fast",
    ) -> None:
        import monograph

        self.dry, self.stages = dry, Stages()
        self.generator = monograph.Generator(
            folder, "gpu:interpreter" if dry else "gpu", max_length=maximum, stop=(), tune=tune,
            tuning_cache=str(results / "tuning.json"), cache_dir="", progress=self.stages,
        )  # fmt: skip
        self.engine = self.generator.engine
        self.resize(rows)

    def resize(self, rows: int) -> None:
        """Decode so many rows at once from now on."""
        from monograph.generate.rewrite.sampling import Sampling

        self.engine.start(rows, Sampling())
        self.engine.place(0)
        self.engine.decode()  # has everything compiled, tuned and captured
        self.executable: Any = self.generator.session.executable(self.feeds(0))

    def feeds(self, position: int) -> dict[str, Any]:
        """Return what a step takes behind so many tokens."""
        self.engine.place(position)
        return {n: x.clone() if n in _SMALL else x for n, x in self._given().items()}

    def _given(self) -> dict[str, Any]:
        engine = self.engine
        small = dict(zip(_SMALL, (engine._next, engine._position, engine._ones), strict=True))
        return {**small, **engine.state}

    def places(self) -> dict[str, Any]:
        """The caches, which are written over."""
        return {new: self.engine.state[old] for new, old in self.engine.step.donate.items()}

    def replayed(self, position: int) -> Run:
        """Queues one step; nothing is waited for."""
        feeds, places = self.feeds(position), self.places()
        self.executable.run(feeds, places)
        if self.dry:  # without graphs there is nothing quicker than a run
            return lambda: self.executable.run(feeds, places)

        def run() -> None:
            if self.executable.try_start(feeds, places) is None:
                raise RuntimeError("a step did not take the short way")

        return run

    def launched(self, position: int) -> Run:
        """Queues one step kernel by kernel."""
        from monograph.runtime.gpu.tensors import raw

        feeds, places = self.feeds(position), self.places()
        bare = getattr(self.executable, "executable", self.executable)
        outputs = bare.output_tensors(feeds, dict(feeds), places)
        ports = {f"input:{n}": raw(x) for n, x in feeds.items()}
        ports |= {f"output:{n}": raw(x) for n, x in outputs.items()}
        return lambda: bare.launch(ports)

    def waited(self, position: int) -> Run:
        """A step as a generator makes it: checked, and its token on the host."""
        feeds, places, session = self.feeds(position), self.places(), self.generator.session
        chosen = [p.name for p in session.outputs].index("next")
        return lambda: session.run(feeds, out=places)[chosen].cpu()

    def generated(self, position: int, count: int) -> float:
        """us from token to token as a generation gets them, each on the host before the next."""
        self.engine.place(position)
        began = time.perf_counter()
        for left in reversed(range(count)):
            self.engine.decode(further=left > 0)
        return (time.perf_counter() - began) / count * 1e6

    def greedy(self, captured: bool, count: int) -> list[int]:
        """Tokens from the first position on."""
        bare = getattr(self.executable, "executable", self.executable)
        way = self.executable if captured else bare
        names = [p.name for p in self.generator.session.outputs]
        feeds, places, made = self.feeds(0), self.places(), []
        for _ in range(count):
            found = dict(zip(names, way.run(feeds, places), strict=True))
            feeds |= {"tokens": found["next"], "position": found["next_position"]}
            made.append(int(found["next"].reshape(-1)[0]))
        return made

    def looped(self, position: int, count: int) -> list[int]:
        """The same in one launch."""
        self.engine.place(position)
        made = self.engine.loop(count, (), [False])
        return [int(t) for t in made[0]]

    def stats(self) -> dict[str, Any]:
        wanted = (
            "launches_per_run", "kernels_per_run", "captures", "replays", "staged_copies",
            "fallbacks", "donation_copies", "tuned", "device_bytes",
        )  # fmt: skip
        return {n: x for n, x in self.generator.session.stats.items() if n in wanted}


_SMALL = ("tokens", "position", "count")


class Times:
    """Contenders taking turns."""

    def __init__(self, dry: bool) -> None:
        import torch

        from benchmarks.gpu_timing import Clock

        place = torch.device("cpu") if dry else torch.device("cuda", torch.cuda.current_device())
        self.clock = Clock(place, short=dry)
        self.rounds, self.seconds = (1, 0.0) if dry else (11, 0.03)

    def interleaved(self, runs: dict[str, Run], each: bool = False) -> dict[str, float]:
        """Medians in us: of runs queued back to back, or of runs waited for one by one."""
        counts = {}
        for name, run in runs.items():
            run()
            self.clock.synchronise()
            once = self.clock._round(run, 1)
            counts[name] = max(1, min(200, int(self.seconds * 1e6 / max(once, 1.0))))
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.rounds):
            for name, run in runs.items():
                timed = self._synced if each else self.clock._round
                found[name].append(timed(run, counts[name]))
        return {name: round(statistics.median(times), 2) for name, times in found.items()}

    def _synced(self, run: Run, count: int) -> float:
        self.clock.synchronise()
        began = time.perf_counter()
        for _ in range(count):
            run()
            self.clock.synchronise()
        return (time.perf_counter() - began) / count * 1e6


def measure(record: Record, form: str, a: argparse.Namespace) -> None:
    """Everything of one format."""
    from benchmarks import decode_gpu_torch
    from benchmarks.decoders import build

    shape, times = _shape(a), Times(a.dry_run)
    folder = BUILT / f"decode-{a.shape}-{shape.layers}-{shape.vocab}-{form}"
    decoding: Decoding | None = None
    with record.part(form, "build"):
        if not (folder / "genai_config.json").exists() or not (folder / "model.onnx").exists():
            build(folder, shape, form)
    with record.part(form, "open") as found:
        decoding = Decoding(folder, a.maximum, a.dry_run, record.results)
        found["stages"] = decoding.stages.told()
        print(f"{form}, stages: {found['stages']}")
    if decoding is not None:
        _measure_ours(record, form, a, decoding, times)
        _measure_loop(record, form, a, decoding)
    peers: dict[str, Callable[[int], Run]] = {}
    for name, make in decode_gpu_torch.contenders(shape, form, a.maximum, a.dry_run):
        if not record.has_time(form, f"make {name}", 20.0):
            continue
        with record.part(form, f"make {name}"):
            peers[name] = make()
    for position in a.positions:
        if not record.has_time(form, f"beside torch at {position}", 10.0):
            continue
        with record.part(form, f"beside torch at {position}") as found:
            runs: dict[str, Run] = {}
            if decoding is not None:
                runs = {BESIDE: decoding.replayed(position)}
            for name, at in peers.items():
                needs = COMPILING if "compile" in name else 0.0
                if record.has_time(form, f"{name} at {position}", needs):
                    with record.part(form, f"{name} at {position}"):
                        runs[name] = at(position)
            at_position = found.setdefault("positions", {}).setdefault(str(position), {})
            at_position.setdefault("device_us", {}).update(times.interleaved(runs))


def _measure_ours(
    record: Record, form: str, a: argparse.Namespace, decoding: Decoding, times: Times
) -> None:
    """Device and host time of our step, and whether both ways give the same tokens."""
    with record.part(form, "floor") as found:
        if "bandwidth" not in record.data:
            record.data["bandwidth"] = bandwidth(a.dry_run)
        found["weight_bytes"] = decoding.engine.weight_bytes()
    for position in a.positions:
        with record.part(form, f"step at {position}") as found:
            runs = {OURS: decoding.replayed(position), OUR_EAGER: decoding.launched(position)}
            device = times.interleaved(runs)
            synced = times.interleaved({OURS: decoding.waited(position)}, each=True)
            count = max(1, min(GENERATED, a.maximum - position - 1))
            rounds = [decoding.generated(position, count) for _ in range(times.rounds)]
            read = decoding.engine.weight_bytes() + decoding.engine.cache_bytes(position)
            floor = read / record.data["bandwidth"] * 1e6
            found.setdefault("positions", {})[str(position)] = {
                "device_us": device,
                "synced_us": synced,
                "generated_us": round(statistics.median(rounds), 2),
                "read_bytes": read,
                "floor_us": round(floor, 2),
                "of_floor": round(floor / device[OURS], 4),
            }
            found["stats"] = decoding.stats()
            print(f"{form} at {position}: {device}, synced {synced}, floor {floor:.1f} us")
    with record.part(form, "tokens, captured or not") as found:
        count = 4 if a.dry_run else GREEDY
        captured, eager = (decoding.greedy(c, count) for c in (True, False))
        found["same_tokens"] = captured == eager
        found["distinct_tokens"] = len(set(captured))
        found["tokens"] = captured


def _measure_loop(record: Record, form: str, a: argparse.Namespace, decoding: Decoding) -> None:
    """A whole generation in one launch."""
    position = a.positions[0]
    if not record.has_time(form, "one launch", 30.0):
        return
    with record.part(form, "one launch") as found:
        count = 4 if a.dry_run else min(LOOPED, a.maximum - position - 1)
        tokens = decoding.looped(0, len(found.get("tokens", ())) or count)
        found["same_tokens_in_one_launch"] = tokens == found.get("tokens")
        loop = decoding.engine._loop
        assert loop is not None
        before, seconds = loop[1].stats, []
        for _ in range(1 if a.dry_run else 5):
            began = time.perf_counter()
            decoding.looped(position, count)  # ends with its tokens on the host
            seconds.append(time.perf_counter() - began)
        stats = loop[1].stats
        counted = {n: stats[n] - before[n] for n in ("runs", "replays", "donation_copies")}
        found["one_launch"] = {
            "us_per_token": round(statistics.median(seconds) / count * 1e6, 2),
            "tokens": count,
            "replays_per_generation": counted["replays"] / counted["runs"],
            "caches_copied_by_the_host": counted["donation_copies"],
            "fallbacks": stats["fallbacks"],
            "staged_copies": stats["staged_copies"],
        }
        print(f"{form}, one launch: {brief(found['one_launch'])}")


def bandwidth(dry: bool) -> float:
    """Bytes a second of the best of three reads of memory that no cache holds."""
    import torch

    if dry:
        return 1e10
    data = torch.ones(1 << 30, dtype=torch.float16, device="cuda")
    matrix, vector = data.view(-1, 4096), data[:4096]
    other = torch.empty_like(data)
    reads: dict[Run, int] = {
        lambda: torch.mv(matrix, vector): data.nbytes,
        lambda: data.view(torch.float32).sum(): data.nbytes,
        lambda: other.copy_(data): 2 * data.nbytes,
    }
    best = 0.0
    for run, nbytes in reads.items():
        for _ in range(6):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            best = max(best, nbytes / (start.elapsed_time(stop) * 1e-3))
    return best


def _shape(a: argparse.Namespace) -> Shape:
    shape = shape_of(a.shape)
    return replace(shape, layers=a.layers or shape.layers, vocab=a.vocab or shape.vocab)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--formats", default="f16,int4-f16-zp")
    parser.add_argument("--positions", default="512,2000")
    parser.add_argument("--maximum", type=int, default=2304, help="length of the caches")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds; parts behind it wait")
    parser.add_argument("--layers", type=int, default=0, help="other than the shape's")
    parser.add_argument("--vocab", type=int, default=0, help="other than the shape's")
    parser.add_argument("--dry-run", action="store_true", help="tiny, by Triton's interpreter")
    a = parser.parse_args()
    a.formats = a.formats.split(",")
    a.positions = [int(p) for p in a.positions.split(",")]
    if unknown := [f for f in a.formats if f not in PRESETS]:
        parser.error(f"no formats {unknown}; there are {', '.join(sorted(PRESETS))}")
    if a.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
        a.shape, a.layers, a.vocab, a.positions, a.maximum = "tiny-llama", 1, 64, [5], 16
    return a


def main() -> None:
    a = _arguments()
    import torch

    device = "Triton's interpreter" if a.dry_run else torch.cuda.get_device_name()
    path = result_path(a.results, f"decode-gpu-{'-'.join(a.formats)}", device)
    record = Record(path, a.limit)
    record.data |= {
        "date": date.today().isoformat(), "device": device, "shape": a.shape,
        "torch": torch.__version__, "maximum": a.maximum,
    }  # fmt: skip
    for form in a.formats:
        measure(record, form, a)
        if not a.dry_run:
            torch.cuda.empty_cache()
    record.save()
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
