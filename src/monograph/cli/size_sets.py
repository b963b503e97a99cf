"""Several sizes in `--dim`: lists for `compile`, lists and ranges for `bench`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from monograph.errors import ConfigError

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?\Z")


def sets_of(dims: list[str]) -> list[list[str]]:
    """Return the sets of sizes for `--dim` options, each of which may list several sizes."""
    choices = []
    for text in dims:
        name, found, sizes = text.rpartition("=")
        several = sizes.split(",") if found else []
        choices.append([f"{name}={size}" for size in several] or [text])
    return [list(chosen) for chosen in itertools.product(*choices)]


@dataclass(frozen=True)
class SizeSets:
    """The options that name one size each, and the sets of sizes of the others."""

    fixed: list[str]
    sets: list[list[str]]
    """Options with one size, set by set; empty if every option names one size."""


def bench_sets(dims: list[str], count: int) -> SizeSets:
    """Return `count` sets of sizes for `--dim` options with ranges, and every listed set.

    Ranges advance together from their lowest to their highest size; each size of a list goes with
    all others.
    """
    fixed: list[str] = []
    listed: list[str] = []
    ranges: dict[str, list[int]] = {}
    for text in dims:
        name, _, sizes = text.rpartition("=")
        if ".." in sizes:
            ranges[name] = _spread(name, sizes, count)
        else:
            (listed if "," in sizes else fixed).append(text)
    if not ranges and not listed:
        return SizeSets(fixed, [])
    most = max(map(len, ranges.values()), default=1)
    rows = [
        [f"{name}={sizes[_place(i, most, len(sizes))]}" for name, sizes in ranges.items()]
        for i in range(most)
    ]
    return SizeSets(fixed, [[*chosen, *row] for chosen in sets_of(listed) for row in rows])


def _spread(name: str, text: str, count: int) -> list[int]:
    """Return at most `count` sizes of a range, evenly spread, from the first to the last."""
    found = _RANGE.match(text)
    low, high, step = (int(part or 1) for part in found.groups()) if found else (0, 0, 0)
    if not step or low > high:
        raise ConfigError(
            f"`--dim {name}` must be LOW..HIGH or LOW..HIGH:STEP",
            expected="32..960 | 320..960:32",
            given=text,
        )
    steps = (high - low) // step
    places = {_place(i, count, steps + 1) for i in range(count)}
    return [low + step * place for place in sorted(places)]


def _place(i: int, count: int, length: int) -> int:
    """Return the place in a sequence that lies as far along it as `i` of `count`."""
    return round(i * (length - 1) / (count - 1)) if count > 1 else length - 1
