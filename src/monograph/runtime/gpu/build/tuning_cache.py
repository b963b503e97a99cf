"""Measured winners on disk: JSON that people can read and share.

    {"monograph tuning": 1,
     "measured": {"NVIDIA H200, driver 12.8, monograph 0.1.0, triton 3.6.0, torch 2.9.0": {
       "8c1f...": {"problem": "dot(f16[1, 1024], ...) -> f16[1, 1024]", "winner": "gemv 8x256",
                   "default": "gemv 4x128", "mode": "fast", "us": {"gemv 8x256": 3.1, ...}}}}}

A measurement holds for one device, one driver and one set of versions: others are kept beside it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import monograph
from monograph.config import Config
from monograph.errors import ConfigError
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.atomic_write import replacing

FORMAT = 1
_KIND = "monograph tuning"
_log = logging.getLogger("monograph")
Entry: TypeAlias = dict[str, Any]
FAST, FULL = "fast", "full"


def environment_of(device: Device) -> str:
    """What a measurement holds for."""
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
    """The winners of problems, by the environment that they were measured in."""

    path: Path | None
    measured: dict[str, dict[str, Entry]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> TuningCache:
        """The cache in a file, empty where there is none; a file of another kind is refused."""
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
                hint="mend or delete the file, or name another one with tuning_cache",
            ) from None

    def of(self, environment: str) -> dict[str, Entry]:
        """The winners in an environment."""
        return self.measured.setdefault(environment, {})

    def refresh(self) -> None:
        """Takes over what others have measured since the file was read."""
        if self.path is not None and self.path.exists():
            self._adopt(TuningCache.open(self.path).measured)

    def save(self) -> None:
        """Writes the file in one piece; what others wrote meanwhile is kept, and used here too.

        So all processes that share a file use the same kernels, though they measure at once.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone_in(self.path.parent):
                self.refresh()
                self._write(self.path)
        except OSError as e:
            _log.warning("the tuning cache %s cannot be written: %s", self.path, e.strerror)

    def _adopt(self, others: dict[str, dict[str, Entry]]) -> None:
        """Of two measurements of a problem the one on disk holds, unless it has tried less."""
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
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other process, and no other thread, writes in a folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _entries(found: Any) -> dict[str, Entry]:
    """Entries of a file, each with a winner among what was measured."""
    entries = {str(k): dict(v) for k, v in found.items()}
    for problem, entry in entries.items():
        if entry["winner"] not in entry["us"]:
            raise ValueError(f"the winner of {problem} was not measured")
    return entries


def cache_path(config: Config) -> Path | None:
    """Where winners are kept; None where nothing is kept between processes."""
    if config.tuning_cache:
        return Path(config.tuning_cache).expanduser()
    if not config.cache_dir:
        return None
    return Path(config.cache_dir).expanduser() / "tuning.json"
