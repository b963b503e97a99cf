"""The figures of capture and replay held to their bars, as a page. Nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.capture_models import BITS, LOOP, YOLO
from benchmarks.gpu_report import table

Models = Mapping[str, Mapping[str, Any]]
SAME_US, MOVED_US, NUMPY_RATIO = 12.0, 40.0, 2.0
OVER_TORCH = {YOLO: 20.0, "towers_b1": 50.0, "towers_b128": 50.0}
SILERO = "silero_vad_v6"


@dataclass(frozen=True)
class Bar:
    """Something that was to be shown, what was measured of it, and whether that is enough."""

    what: str
    bar: str
    measured: str
    ok: bool | None
    """None where the models that it is about were not asked for: neither reached nor missed."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bars(models: Models) -> list[Bar]:
    """All that was to be shown; what could not be measured is not reached."""
    return [
        *_host_times(models),
        _faster(models),
        *_torch(models),
        *_few_bits(models),
        *_numpy(models),
        _bits(models),
        *(_one_launch(models, name) for name in (SILERO, LOOP)),
    ]


def ratios(figures: Mapping[str, Any]) -> tuple[float, float]:
    """Return how many times faster replay is than eager runs: waited for, and queued."""
    synced = figures["eager_synced_us"] / figures["replay_synced_us"]
    return synced, figures["eager_queued_us"] / figures["replay_queued_us"]


def _judged(
    models: Models, name: str, what: str, bar: str, judge: Callable[[Any], tuple[str, bool]]
) -> Bar:
    if name not in models:
        return Bar(what, bar, "not measured: it was not among the models", None)
    try:
        measured, ok = judge(models[name])
    except KeyError as e:
        why = models[name].get("failed") or models[name].get("torch_failed") or f"no {e.args[0]}"
        return Bar(what, bar, f"not measured: {why}", False)
    return Bar(what, bar, measured, ok)


def _host_times(models: Models) -> Iterator[Bar]:
    def same(f: Mapping[str, Any]) -> tuple[str, bool]:
        return f"{f['same_host_us']:.1f} us", f["same_host_us"] <= SAME_US

    def moved(f: Mapping[str, Any]) -> tuple[str, bool]:
        us, copies, captures = (
            f[k] for k in ("moved_host_us", "copies_when_moved", "captures_when_moved")
        )
        text = f"{us:.1f} us, {copies} copies, {captures} captures"
        sure = f["rebinds_when_moved"] > 0  # it has moved, and was replayed there
        return text, us <= MOVED_US and copies == captures == 0 and sure

    for name in (YOLO, "towers_b1"):
        what = f"host time of a run on device tensors, same addresses, {name}"
        yield _judged(models, name, what, f"<= {SAME_US:.0f} us", same)
    bar = f"<= {MOVED_US:.0f} us, no copies, no captures"
    yield _judged(models, YOLO, f"... all addresses moved, {YOLO}", bar, moved)


def _faster(models: Models) -> Bar:
    found = {n: min(ratios(f)) for n, f in models.items() if "replay_queued_us" in f}
    missing = [n for n in models if n not in found]
    if not found:
        ok = False if models else None
        return Bar("replay against eager runs, every model", "> 1x", "not measured", ok)
    slowest = min(found, key=lambda n: found[n])
    text = f"{len(found)} models, least {found[slowest]:.2f}x ({slowest})"
    text += f"; not measured: {', '.join(missing)}" if missing else ""
    ok = found[slowest] > 1 and not missing
    return Bar("replay against eager runs, every model", "> 1x", text, ok)


def _torch(models: Models) -> Iterator[Bar]:
    for name, least in OVER_TORCH.items():

        def judge(f: Mapping[str, Any], least: float = least) -> tuple[str, bool]:
            synced, queued = f["torch_ratio_synced"], f["torch_ratio_queued"]
            return f"{synced:.1f}x, {queued:.1f}x queued", min(synced, queued) >= least

        yield _judged(
            models, name, f"replay against torch eager, {name}", f">= {least:.0f}x", judge
        )


def _few_bits(models: Models) -> Iterator[Bar]:
    def judge(f: Mapping[str, Any]) -> tuple[str, bool]:
        synced, queued = ratios(f)
        captured = bool(f["stats"]["captures"]) and not f["stats"]["fallbacks"]
        return f"{synced:.2f}x, {queued:.2f}x queued", min(synced, queued) > 1 and captured

    for kind, name in BITS.items():
        yield _judged(models, name, f"replay against eager, {kind} ({name})", "> 1x", judge)


def _numpy(models: Models) -> Iterator[Bar]:
    for key, which in {"numpy": "the same arrays", "fresh": "fresh arrays"}.items():

        def judge(f: Mapping[str, Any], key: str = key) -> tuple[str, bool]:
            us, tensors = f[f"{key}_synced_us"], f["tensors_synced_us"]
            return f"{us:.1f} / {tensors:.1f} us: {us / tensors:.2f}x", us / tensors <= NUMPY_RATIO

        what = f"numpy in and out against device tensors, synced, towers_b128, {which}"
        yield _judged(models, "towers_b128", what, f"<= {NUMPY_RATIO:.0f}x", judge)


def _bits(models: Models) -> Bar:
    checked = {n: f for n, f in models.items() if "equal_bits" in f}
    missing = [n for n in models if n not in checked]
    wrong = [n for n, f in checked.items() if not f["equal_bits"]]
    least = min((f["inputs"] for f in checked.values()), default=0)
    text = f"{len(checked) - len(wrong)} of {len(models)} models, {least} inputs each"
    text += f"; differ: {', '.join(wrong)}" if wrong else ""
    text += f"; not measured: {', '.join(missing)}" if missing else ""
    ok = None if not models else not wrong and not missing
    return Bar("bit-identical to eager runs", "all, 100 random inputs", text, ok)


def _one_launch(models: Models, name: str) -> Bar:
    def judge(f: Mapping[str, Any]) -> tuple[str, bool]:
        stats = f["stats"]
        launches, captures = stats["launches_per_run"], stats["captures"] or 0
        fallbacks = sum((stats["fallbacks"] or {}).values())
        text = f"{launches} a run, {captures} captures, {fallbacks} fallbacks"
        return text, launches == 1 and captures > 0 and fallbacks == 0

    return _judged(models, name, f"{name} captured as one launch", "1 launch", judge)


def page(record: Mapping[str, Any]) -> str:
    """Markdown: the bars, then the figures of every model."""
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    models: Models = record["models"]
    judged = [["to show", "bar", "measured", ""]]
    judged += [
        [b["what"], b["bar"], b["measured"], {True: "ok", False: "NO", None: "-"}[b["ok"]]]
        for b in record["bars"]
    ]
    lines = [
        f"# Capture and replay, {record['date']}",
        "",
        f"{record['device']}; {versions}; Python {record['python']};"
        f" kernels tuned: {record['tune']}.",
        "",
        *table(judged),
        "",
        "us, medians of rounds in which the contenders take turns. host: what a run costs the host;"
        " synced: until the device is done; queued: one of many back to back.",
        "",
        *table(_rows(models)),
    ]
    notes = [f"- {n}: {f['failed']}" for n, f in models.items() if "failed" in f]
    notes += [
        f"- {n}, torch: {f['torch_failed']}" for n, f in models.items() if "torch_failed" in f
    ]
    for name, f in models.items():
        stats = f.get("stats", {})
        notes += [f"- {name}, not captured {n} times: {w}" for w, n in _counted(stats, "fallbacks")]
        notes += [f"- {name}, copied {n} times: {w}" for w, n in _counted(stats, "staged_copies")]
    return "\n".join([*lines, *(["", *notes] if notes else []), ""])


def _counted(stats: Mapping[str, Any], what: str) -> list[tuple[str, int]]:
    return list((stats.get(what) or {}).items())


COLUMNS = {
    "kernels": "kernels",
    "same_host_us": "same host",
    "moved_host_us": "moved host",
    "eager_host_us": "eager host",
    "replay_synced_us": "replay synced",
    "eager_synced_us": "eager synced",
    "replay_queued_us": "replay queued",
    "eager_queued_us": "eager queued",
    "torch_synced_us": "torch synced",
    "torch_queued_us": "torch queued",
    "numpy_synced_us": "numpy synced",
    "fresh_synced_us": "fresh numpy synced",
}


def _rows(models: Models) -> list[list[str]]:
    rows = [["model", *COLUMNS.values(), "x synced", "x queued", "launches", "same bits"]]
    for name, f in models.items():
        figures = [_figure(f.get(key)) for key in COLUMNS]
        found = ratios(f) if "replay_queued_us" in f else None
        times = ["-", "-"] if found is None else [f"{r:.2f}" for r in found]
        launches = str(f.get("stats", {}).get("launches_per_run", "-"))
        bits = {True: "yes", False: "NO", None: "-"}[f.get("equal_bits")]
        rows.append([name, *figures, *times, launches, bits])
    return rows


def _figure(x: Any) -> str:
    if x is None:
        return "-"
    return f"{x:.1f}" if isinstance(x, float) else str(x)
