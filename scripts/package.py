"""Builds the wheel and the sdist, installs each in a clean environment, and runs the demo there.

    python scripts/package.py [--out dist] [--no-demo]

The wheel is built from the sdist, so that a file which the sdist lacks is noticed. A strict type
checker reads the installed package from outside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src")
"""The files that a build reads; a copy of them has no left-overs of earlier builds."""
PROGRAM = ROOT / "tests" / "packaging" / "typed_program.py"
"""A program that uses the public API, for the type checker."""
SECONDS = 300
"""The most seconds that one step may take."""


class StepError(Exception):
    """A step failed; the message has its output."""


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command outside of this environment, and return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise StepError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Create an environment, and return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python: Path, *what: object) -> None:
    """Install packages with the pip of this environment."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
    run(sys.executable, "-m", "pip", "--python", python, "install", *quiet, *what)


def build(work: Path) -> tuple[Path, Path]:
    """Build from a copy of the sources; return the wheel and the sdist."""
    tree = work / "tree"
    tree.mkdir()
    for name in PACKED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)
    python = make_environment(work / "builder")
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    install(python, *system["requires"])
    hook = f"import sys, {system['build-backend']} as backend; backend.build_{{}}(sys.argv[1])"
    run(python, "-c", hook.format("sdist"), work / "dist", cwd=tree)
    (sdist,) = (work / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    run(python, "-c", hook.format("wheel"), work / "dist", cwd=unpacked)
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> int:
    """Check that both hold every file of the package; return the number of its files."""
    own = {
        p.relative_to(ROOT / "src").as_posix()
        for p in (ROOT / "src" / "monograph").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    if packed != own:
        raise StepError(f"the wheel differs from src in {sorted(packed ^ own)[:10]}")
    with tarfile.open(sdist) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    wanted = {f"src/{n}" for n in own} | {n for n in PACKED if n not in ("src", "CHANGELOG.md")}
    if missing := wanted - names:
        raise StepError(f"the sdist lacks {sorted(missing)[:10]}")
    return len(own)


def check_demo(python: Path, work: Path) -> None:
    """Run the commands that need nothing but the package, in an empty folder."""
    work.mkdir()
    command = python.parent / "monograph"
    cache = ("--cache-dir", work.parent / "cache")
    run(command, "doctor", "--json", *cache, cwd=work)
    run(command, "demo", "--seconds", "0.2", *cache, cwd=work)
    if not (work / "monograph-demo" / "report.html").exists():
        raise StepError("the demo wrote no report")


def check_types(python: Path) -> None:
    """Check a program against the installed package with a strict type checker."""
    strict = ("--strict", "--no-incremental", "--config-file", os.devnull)
    checker = (sys.executable, "-m", "mypy", *strict, "--python-executable", python)
    run(*checker, PROGRAM.name, cwd=PROGRAM.parent)


@contextmanager
def working_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="monograph-package-") as folder:
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for both files")
    parser.add_argument("--no-demo", action="store_true", help="only build and check contents")
    options = parser.parse_args()
    with working_folder() as work:
        try:
            wheel, sdist = build(work)
            print(f"built {wheel.name} and {sdist.name}: {check_contents(wheel, sdist)} files")
            for kind, file in () if options.no_demo else (("wheel", wheel), ("sdist", sdist)):
                python = make_environment(work / kind)
                install(python, file)
                check_demo(python, work / f"{kind}-demo")
                check_types(python)
                print(f"{kind}: installed; demo, doctor and strict types are right")
        except (StepError, subprocess.TimeoutExpired) as e:
            sys.exit(f"error: {e}")
        options.out.mkdir(parents=True, exist_ok=True)
        for file in (wheel, sdist):
            shutil.copy(file, options.out)
            print(f"wrote {options.out / file.name}")


if __name__ == "__main__":
    main()
