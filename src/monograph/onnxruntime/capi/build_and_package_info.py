"""The name and the version of the package, under the names that programs import."""

from monograph.onnxruntime.version import VERSION, package_name

__all__ = ["__version__", "package_name"]
__version__ = VERSION
