"""Two reports side by side: what changed between their runs (`--against`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError

_BETTER_LOW = ("run_seconds", "step_seconds", "arena_bytes", "steps", "ops_after", "host_steps")
MIN_CHANGE = 0.05
"""The least relative change of a step's time that is listed."""


def read_report(path: Path) -> dict[str, Any]:
    """Read what `monograph view --json` has printed."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            "`--against` must be a file that `monograph view --json` has printed",
            given=f"{path}: {e}",
        ) from None
    if not isinstance(found, dict) or found.get("format") != 1 or "steps" not in found:
        raise ConfigError(
            "`--against` must be a file that `monograph view --json` has printed",
            expected="a report of format 1",
            given=str(path),
            hint="monograph view model.onnx --json > other.json",
        )
    return found


def compared(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what changed from one report to another: figures, rewrites, steps."""
    return {
        "model": str(before.get("model", "")),
        "version": str(before.get("version", "")),
        "target": str(before.get("target", "")),
        "machine": str(before.get("machine", "")),
        "facts": _facts(now["facts"], before.get("facts", {})),
        "rules": _rules(now["rules"], before.get("rules", [])),
        "steps": _steps(now["steps"], before["steps"]),
    }


def _facts(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[list[Any]]:
    names = [n for n in now if isinstance(now[n], (int, float)) and n in before]
    return [[n, before[n], now[n], n in _BETTER_LOW] for n in names]


def _rules(now: list[Any], before: list[Any]) -> list[list[Any]]:
    """Return the rules that fired another number of times: name, before, now."""
    old = {r["name"]: r["fired"] for r in before}
    new = {r["name"]: r["fired"] for r in now}
    names = dict.fromkeys([*new, *old])
    return [[n, old.get(n, 0), new.get(n, 0)] for n in names if old.get(n, 0) != new.get(n, 0)]


def _steps(now: list[Any], before: list[Any]) -> list[dict[str, Any]]:
    """Return the steps that changed, by their ONNX nodes: new, gone, or of another time."""
    old, new = _by_nodes(before), _by_nodes(now)
    found = []
    for key in dict.fromkeys([*new, *old]):
        a, b = old.get(key), new.get(key)
        one = (b or a or (0, {}))[1]
        times = [None if x is None else x[1].get("seconds") for x in (a, b)]
        told = {
            "nodes": list(key[0]),
            "kind": one.get("kind", ""),
            "step": None if b is None else b[0],
            "before": times[0],
            "now": times[1],
            "is": "new" if a is None else "gone" if b is None else "changed",
        }
        if a is None or b is None or _differ(*times):
            found.append(told)
    return sorted(found, key=lambda s: -abs((s["now"] or 0.0) - (s["before"] or 0.0)))[:200]


def _by_nodes(steps: list[Any]) -> dict[tuple[Any, ...], tuple[int, Any]]:
    """Return the steps with their numbers by nodes, kind, and the order among equal ones."""
    seen = Counter[tuple[Any, ...]]()
    found = {}
    for number, step in enumerate(steps):
        key = (tuple(step.get("origin", ())), str(step.get("kind", "")))
        found[*key, seen[key]] = (number, step)
        seen[key] += 1
    return found


def _differ(before: float | None, now: float | None) -> bool:
    return bool(before and now and abs(now / before - 1) > MIN_CHANGE)
