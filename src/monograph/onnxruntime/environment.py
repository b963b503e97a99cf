"""Settings of a whole process, as ONNX Runtime's module has them: logging, random numbers."""

from __future__ import annotations

import logging

import monograph
from monograph.onnxruntime.options import log_once
from monograph.onnxruntime.providers import get_available_providers
from monograph.onnxruntime.version import VERSION

_SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Python's levels of ONNX Runtime's severities: verbose, info, warning, error, fatal."""


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose API this package follows."""
    return VERSION


def get_build_info() -> str:
    """Return a text that tells Monograph from ONNX Runtime."""
    return f"ORT Build Info: Monograph {monograph.__version__}"


def has_collective_ops() -> bool:
    """Return False: Monograph has no ops that several processes take part in."""
    return False


def set_seed(seed: int) -> None:
    """Let random ops without a seed give the same numbers in sessions that follow."""
    from monograph.ops.random import seed_starts

    seed_starts(seed)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger `monograph`: 0 is verbose, 4 is fatal."""
    if severity not in range(len(_SEVERITIES)):
        raise RuntimeError(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        )
    logging.getLogger("monograph").setLevel(_SEVERITIES[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a verbosity, without effect."""
    log_once(f"the verbosity {verbosity} of the logger has no effect")


def enable_telemetry_events() -> None:
    """Do nothing: Monograph sends no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: Monograph sends no telemetry."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: torch loads the libraries that the gpu target needs."""


def print_debug_info() -> None:
    """Print versions and providers."""
    print(f"{get_build_info()}, the API of ONNX Runtime {VERSION}")
    print(f"providers: {', '.join(get_available_providers())}")
