"""Finds the models of a folder, and their versions.

Nothing of a request becomes a path: names of requests are looked up among what was found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from monograph.errors import ConfigError, ModelError
from monograph.generate.discover.folder import CONFIG, GENAI, find_decoder
from monograph.serve.settings import ServerSettings

MODEL_FILES = (".onnx", ".mono")
FIRST = "1"
"""The version of a model whose folder names none."""


@dataclass(frozen=True)
class Found:
    """One version of a model on disk."""

    name: str
    version: str
    path: Path
    decoder: bool
    """True if it is a language model, which generates tokens."""


Versions = Mapping[str, Found]


def find_models(settings: ServerSettings) -> dict[str, Versions]:
    """Return the models of a folder by name, each with its versions; or the one model."""
    root = settings.models
    if not root.exists():
        raise ConfigError("there is no such model or folder", given=str(root))
    only = _versions(root.stem if root.is_file() else root.resolve().name, root, True)
    if only:
        return {next(iter(only.values())).name: only}
    found: dict[str, Versions] = {}
    for entry in sorted(root.iterdir()):
        name = entry.stem if entry.is_file() else entry.name
        if entry.name.startswith(".") or not (versions := _versions(name, entry)):
            continue
        if name in found:
            raise ConfigError("two models have one name", given=f"{name} in {root}")
        found[name] = versions
    return found


def _versions(name: str, path: Path, root: bool = False) -> dict[str, Found]:
    """Return the versions of the model at a path; none if there is no model.

    A file in the folder of all models has its own name, unless it is called `model`.
    """
    if (own := _model_at(path, root)) is not None:
        return {FIRST: Found(name, FIRST, *own)}
    if not path.is_dir():
        return {}
    found = {}
    for folder in sorted((p for p in path.iterdir() if _is_version(p)), key=lambda p: int(p.name)):
        if (own := _model_at(folder)) is not None:
            version = str(int(folder.name))
            found[version] = Found(name, version, *own)
    return found


def _is_version(path: Path) -> bool:
    return path.is_dir() and path.name.isascii() and path.name.isdecimal() and int(path.name) > 0


def _model_at(path: Path, named_only: bool = False) -> tuple[Path, bool] | None:
    """Return the model that a file or folder is, and True for a language model."""
    if path.is_file():
        return (path, False) if path.suffix in MODEL_FILES else None
    if not path.is_dir():
        return None
    if (path / GENAI).is_file() or ((path / CONFIG).is_file() and _has_past(path)):
        return path, True
    files = [p for p in sorted(path.iterdir()) if p.is_file() and p.suffix in MODEL_FILES]
    named = [p for p in files if p.stem == "model"]
    chosen = named if named_only else named or files
    return (chosen[-1], False) if len(chosen) == 1 or named else None


def _has_past(folder: Path) -> bool:
    """Return True if a folder with a configuration holds a decoder with a cache."""
    import onnx

    try:
        path = find_decoder(folder).model
        proto = onnx.load(str(path), load_external_data=False)
    except (ModelError, OSError, ValueError):
        return False
    except Exception as e:  # protobuf raises errors of its own
        if type(e).__name__ == "DecodeError":
            return False
        raise
    return any("past" in port.name for port in proto.graph.input)


def chosen_versions(versions: Versions, wanted: str | list[int]) -> Iterator[Found]:
    """Yield the versions that the settings of a model name."""
    newest = max(versions, key=int)
    names = [newest] if wanted == "latest" else None if wanted == "all" else map(str, wanted)
    for name in versions if names is None else names:
        if name not in versions:
            raise ConfigError(
                "the model has no such version",
                expected=", ".join(versions),
                given=name,
            )
        yield versions[name]
