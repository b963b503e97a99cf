"""The record of `benchmarks.decode_gpu`: part by part, so that what fails costs no other part."""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_report import table

OURS = "monograph"


@dataclass
class Record:
    """The measurements so far, written to disk after every part."""

    path: Path
    """Of the files, without suffix."""
    limit: float
    began: float = field(default_factory=time.perf_counter)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.limit - (time.perf_counter() - self.began)

    @contextmanager
    def part(self, of: str, name: str) -> Iterator[dict[str, Any]]:
        """One part of a format, which may fail."""
        found = self._of(of)
        began = time.perf_counter()
        try:
            yield found
        except Exception as e:  # whatever it is, the other parts are measured
            found["failed"][name] = f"{type(e).__name__}: {e}"[:400]
            traceback.print_exc()
        found["seconds"][name] = round(time.perf_counter() - began, 2)
        print(f"{of}, {name}: {found['seconds'][name]} s {found['failed'].get(name, '')}")
        self.save()

    def has_time(self, of: str, name: str, needs: float) -> bool:
        """Tell whether so many seconds are left; if not, the record names the missing part.

        No part of `part`: the body of a `with` cannot be left out.
        """
        if self.left >= needs:
            return True
        why = f"skipped: {self.left:.0f} s left, {needs:.0f} wanted"
        self._of(of)["failed"][name] = why
        print(f"{of}, {name}: {why}")
        self.save()
        return False

    def _of(self, form: str) -> dict[str, Any]:
        formats: dict[str, dict[str, Any]] = self.data.setdefault("formats", {})
        return formats.setdefault(form, {"seconds": {}, "failed": {}})

    def save(self) -> None:
        self.path.with_suffix(".json").write_text(json.dumps(self.data, indent=1))
        self.path.with_suffix(".md").write_text(report(self.data))


def brief(found: Any) -> Any:
    """Return the results, with copies counted by their reasons: the record has them by port."""
    if not isinstance(found, dict) or not found.get("staged_copies"):
        return found
    ports, copies = Counter[str](), Counter[str]()
    for staged, count in found["staged_copies"].items():
        why = staged.partition(": ")[2] or staged
        ports[why] += 1
        copies[why] += count
    told = [f"{why}: {copies[why]} copies of {ports[why]} ports" for why in ports]
    return {**found, "staged_copies": "; ".join(told)}


def report(data: dict[str, Any]) -> str:
    """The record as a page."""
    lines = [f"# Decoding on a GPU, {data.get('date', '')}", ""]
    lines += [f"{data.get('device', '')}; {data.get('shape', '')}; batch 1.", ""]
    if "bandwidth" in data:
        lines += [f"Reads at {data['bandwidth'] / 1e12:.2f} TB/s at best.", ""]
    for form, found in data.get("formats", {}).items():
        lines += [f"## {form}", ""]
        names = list(dict.fromkeys(
            n for at in found.get("positions", {}).values() for n in at["device_us"]
        ))  # fmt: skip
        rows = [["device us per token", *(f"at {p}" for p in found.get("positions", {}))]]
        for name in names:
            cells = [at["device_us"].get(name) for at in found["positions"].values()]
            rows.append([name, *("" if c is None else f"{c:.1f}" for c in cells)])
        for key, label in (("floor_us", "floor"), ("of_floor", "fraction of the floor")):
            cells = [at.get(key, "") for at in found.get("positions", {}).values()]
            rows.append([label, *map(str, cells)])
        at_all = found.get("positions", {}).values()
        synced = [at.get("synced_us", {}).get(OURS, "") for at in at_all]
        rows.append(["monograph, waited for", *map(str, synced)])
        generated = [at.get("generated_us", "") for at in at_all]
        rows.append(["monograph, from token to token", *map(str, generated)])
        lines += [*table(rows), ""]
        facts = ("stats", "same_tokens", "distinct_tokens", "same_tokens_in_one_launch")
        for key in (*facts, "one_launch", "stages", "seconds", "failed"):
            if key in found:
                lines.append(f"- {key.replace('_', ' ')}: {brief(found[key])}")
        lines.append("")
    return "\n".join(lines)
