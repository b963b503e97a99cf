"""Measured winners on disk, as JSON that people can read and share, and their keys.

    {"monograph tuning": 1,
     "measured": {"NVIDIA H200, driver 12.8, monograph 0.1.0, triton 3.6.0, torch 2.9.0": {
       "8c1f...": {"problem": "dot(f16[1, 1024], ...) -> f16[1, 1024]", "winner": "gemv 8x256",
                   "default": "gemv 4x128", "mode": "fast", "us": {"gemv 8x256": 3.1, ...}}}}}

A measurement is valid for one device, one driver and one set of versions. The file keeps the
measurements of several of these environments.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import monograph
from monograph.config import Config
from monograph.errors import ConfigError
from monograph.runtime.atomic_write import replacing
from monograph.runtime.gpu.driver.devices import Device

if TYPE_CHECKING:
    from monograph.ir import Value
    from monograph.program.program import Program, Step

_NUMBER = re.compile(r"\d+")
LEAST_SIZE = 16
"""Smaller sizes are exact in a bucket: they decide which candidates there are."""
FORMAT = 1
_KIND = "monograph tuning"
_log = logging.getLogger("monograph")
Entry: TypeAlias = dict[str, Any]
FAST, FULL = "fast", "full"


def environment_of(device: Device) -> str:
    """Describe the device and the versions that a measurement is valid for."""
    versions = [f"{name} {_version(name)}" for name in ("triton", "torch")]
    about = [device.name, f"driver {device.driver}", f"monograph {monograph.__version__}"]
    return ", ".join(about + versions)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


@dataclass
class TuningCache:
    """The winners of problems, by the environment in which they were measured."""

    path: Path | None
    measured: dict[str, dict[str, Entry]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> TuningCache:
        """Read the cache from a file; a missing file is an empty cache."""
        if path is None or not path.exists():
            return cls(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data[_KIND] != FORMAT:
                raise ValueError(f"its format is {data[_KIND]!r}")
            return cls(path, {str(k): _entries(v) for k, v in data["measured"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise ConfigError(
                f"the tuning cache cannot be read: {type(e).__name__}: {e}",
                given=str(path),
                hint="repair or delete the file, or name another one with tuning_cache",
            ) from None

    def of(self, environment: str) -> dict[str, Entry]:
        """Return the winners in an environment."""
        return self.measured.setdefault(environment, {})

    def refresh(self) -> None:
        """Adopt what other processes have measured since the file was read."""
        if self.path is not None and self.path.exists():
            self._adopt(TuningCache.open(self.path).measured)

    def save(self) -> None:
        """Write the file atomically; merge what others wrote meanwhile.

        All processes that share a file therefore use the same kernels, even if they measure at
        once.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock_folder(self.path.parent):
                self.refresh()
                self._write(self.path)
        except OSError as e:
            _log.warning("the tuning cache %s cannot be written: %s", self.path, e.strerror)

    def _adopt(self, others: dict[str, dict[str, Entry]]) -> None:
        """Prefer entries on disk, unless only the own entry tried all candidates."""
        for environment, entries in others.items():
            own = self.of(environment)
            for key, entry in entries.items():
                if key not in own or own[key].get("mode") != FULL or entry.get("mode") == FULL:
                    own[key] = entry

    def _write(self, path: Path) -> None:
        ordered = {k: dict(sorted(v.items())) for k, v in sorted(self.measured.items()) if v}
        text = json.dumps({_KIND: FORMAT, "measured": ordered}, indent=1)
        with replacing(path) as file:
            file.write(f"{text}\n".encode())


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes and threads that write in it."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _entries(found: Any) -> dict[str, Entry]:
    """Check entries of a file: the winner must be among the measured candidates."""
    entries = {str(k): dict(v) for k, v in found.items()}
    for problem, entry in entries.items():
        if entry["winner"] not in entry["us"]:
            raise ValueError(f"the winner of {problem} was not measured")
    return entries


def cache_path(config: Config) -> Path | None:
    """Return the path of the tuning cache, or None if nothing is stored between processes."""
    if config.tuning_cache:
        return Path(config.tuning_cache).expanduser()
    if not config.cache_dir:
        return None
    return Path(config.cache_dir).expanduser() / "tuning.json"


def step_key(program: Program, step: Step) -> str:
    """Return a key that is equal for steps whose kernels would be equal."""
    return _digest(step_text(program, step))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class SizeBucket:
    """Steps that differ only in sizes, each by less than a factor of two."""

    key: str
    sizes: tuple[int, ...]
    """The sizes of one of these steps."""

    def distance(self, entry: Entry) -> float:
        """Return how far the sizes of a measurement in the same bucket are from these."""
        others = [int(n) for n in str(entry["sizes"]).split()]
        if len(others) != len(self.sizes):
            return math.inf
        return sum(abs(math.log(a / b)) for a, b in zip(self.sizes, others, strict=True))


def bucket_of(text: str, suffix: str = "") -> SizeBucket:
    """Return the bucket of the text of a step: of sizes only the power of two counts."""
    sizes = tuple(n for n in map(int, _NUMBER.findall(text)) if n >= LEAST_SIZE)
    coarse = _NUMBER.sub(_power, text)
    return SizeBucket(_digest(coarse) + suffix, sizes)


def _power(found: re.Match[str]) -> str:
    number = int(found[0])
    return f"~{number.bit_length()}" if number >= LEAST_SIZE else found[0]


def step_text(program: Program, step: Step) -> str:
    """Return a text that is equal for steps whose kernels would be equal.

    It covers ops, types, strides, alignment, and which operands are constant.
    """
    from monograph.program.memory.buffer_assignment import CONSTANT

    numbers: dict[Value, int] = {}
    lines = []
    for value in (*step.region.inputs, *step.region.body):
        numbers[value] = len(numbers)
        operands = ",".join(str(numbers.get(v, "-")) for v in value.inputs)
        lines.append(f"{value.op!r}({operands}):{value.type}" if operands else str(value.type))
        place = program.places.storage.get(value)
        if place is not None:
            constant = place.buffer.kind == CONSTANT
            aligned = place.offset * value.dtype.itemsize % 16 == 0
            lines.append(f"{place.strides} {constant} {aligned}")
    return "\n".join(lines)


def step_label(step: Step) -> str:
    """Describe the step for people who read the cache."""
    region = step.region
    anchor = region.anchor
    if anchor is None:
        return f"pointwise -> {region.root.type}"
    operands = ", ".join(str(v.type) for v in anchor.inputs)
    rest = f" + {len(region.epilogue)} more" if region.epilogue else ""
    return f"{anchor.op.name}({operands}) -> {region.root.type}{rest}"
