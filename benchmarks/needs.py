"""Code that all benchmarks share: the check for torch, and the names of result files."""

from __future__ import annotations

import re
from pathlib import Path

from monograph.errors import ConfigError
from monograph.runtime.gpu.driver.device_discovery import INSTALL, need


def need_torch() -> None:
    """End the program with one message if the extra `gpu` is not installed."""
    try:
        need("torch", "triton")
    except ConfigError:
        message = f"this measures on a GPU, and needs torch and triton: {INSTALL}"
        raise SystemExit(message) from None


def result_path(folder: Path, benchmark: str, machine: str) -> Path:
    """Return the path of a benchmark's results on a machine, without suffix.

    It holds no date, so that a new run replaces the old one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = machine.partition(",")[0].lower().removeprefix("nvidia ").removeprefix("amd ")
    return folder / f"{benchmark}-{re.sub(r'[^a-z0-9]+', '-', model).strip('-')}"
