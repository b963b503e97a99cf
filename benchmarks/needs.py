"""What benchmarks need beside Monograph: said before the first model, not once for each."""

from __future__ import annotations

from monograph.errors import ConfigError
from monograph.runtime.gpu.driver.device_discovery import INSTALL, need


def need_torch() -> None:
    """Ends the program with one message where the extra `gpu` is not installed."""
    try:
        need("torch", "triton")
    except ConfigError:
        message = f"this measures on a GPU, and needs torch and triton: {INSTALL}"
        raise SystemExit(message) from None
