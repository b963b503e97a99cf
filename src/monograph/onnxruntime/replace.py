"""Puts this package in the place of `onnxruntime` for all imports of a process."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from monograph.errors import ConfigError
from monograph.onnxruntime.version import VERSION

NAME = "onnxruntime"
_OURS = "monograph.onnxruntime"


def replace_onnxruntime() -> None:
    """Let `import onnxruntime` find this package from now on, in this process."""
    found = sys.modules.get(NAME)
    if found is not None and found.__name__ != _OURS:
        raise ConfigError(
            "onnxruntime is imported already",
            given=str(getattr(found, "__file__", found)),
            hint="call replace_onnxruntime before anything imports onnxruntime",
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    importlib.import_module(NAME)


class _Finder(MetaPathFinder):
    """Finds `onnxruntime` and its modules in this package, and its distribution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        ours = _OURS + fullname.removeprefix(NAME)
        if importlib.util.find_spec(ours) is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: Monograph stands in for onnxruntime's sessions"
                " only (docs/migration.md)",
                name=fullname,
            )
        return ModuleSpec(fullname, _Alias(ours), origin=ours, is_package=True)

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        return [_Distribution()] if name is None or name.lower() == NAME else []


class _Alias(Loader):
    """Loads a module of this package under another name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing: the module has been executed under its own name, which it keeps."""
        module.__spec__ = self._spec


class _Distribution(importlib.metadata.Distribution):
    """The distribution that programs find when they ask for onnxruntime's version."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"

    def locate_file(self, path: Any) -> Any:
        return path
