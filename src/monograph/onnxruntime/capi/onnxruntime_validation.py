"""ONNX Runtime's checks of an installation, which Monograph does not need."""

from __future__ import annotations

from monograph.onnxruntime.version import VERSION, package_name


def check_distro_info() -> None:
    """Do nothing: Monograph needs no certain distribution."""


def check_training_module() -> tuple[bool, str, str]:
    """Return that there is no training, and the name and the version of the package."""
    return False, package_name, VERSION


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the name and the version of the package, and that of CUDA: none."""
    return package_name, VERSION, ""
