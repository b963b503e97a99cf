"""Runs tests against mutants, each in a copy of the tree, until one fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.draw import Mutant
from tests.mutants.operators import apply
from tests.mutants.targets import GROUPS, needs_torch, stages

ROOT = Path(__file__).parents[2]
COPIED = (
    "src", "tests", "docs", "scripts", "benchmarks", "pyproject.toml", "Makefile", "README.md",
    "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", ".gitignore", "mkdocs.yml", "docker",
)  # fmt: skip
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NO_TESTS = 5
"""The exit code of pytest where it has nothing to run."""


@dataclass(frozen=True)
class Result:
    """The fate of a mutant."""

    mutant: Mutant
    killed: bool
    by: str
    """The first test that failed, or what else ended it."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        change = self.mutant.change
        return {
            "id": self.mutant.id, "group": self.mutant.group, "path": self.mutant.path,
            "line": change.line, "operator": change.operator, "before": change.before,
            "after": change.after, "killed": self.killed, "by": self.by,
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def run_all(mutants: Sequence[Mutant], options: Any, known: set[str]) -> list[Result]:
    """The results of all mutants; `options` are those of the command line."""
    todo, lock = iter(mutants), threading.Lock()
    found: dict[str, Result] = {}

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            root = Path(folder) / "tree"
            copy_tree(root)
            while True:
                with lock:
                    mutant = next(todo, None)
                if mutant is None:
                    return
                result = run_one(mutant, root, options, known)
                with lock:
                    found[mutant.id] = result
                    word = "killed" if result.killed else "SURVIVED"
                    print(f"{word} {mutant}\n    {result.by} ({result.seconds:.0f} s)", flush=True)

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[m.id] for m in mutants]


def copy_tree(root: Path) -> None:
    """A copy of all that tests need, without what was compiled from it."""
    root.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", ".mypy_cache")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=skipped)
        elif source.exists():
            shutil.copy2(source, root / name)


def run_one(mutant: Mutant, root: Path, options: Any, known: set[str]) -> Result:
    """Applies a mutant in a copy of the tree, and runs stages of tests until one fails."""
    group, path = GROUPS[mutant.group], root / mutant.path
    began, source = time.monotonic(), path.read_text()
    path.write_text(apply(source, mutant.change))
    try:
        for stage in stages(root, group, path)[: options.stages]:
            gpu = needs_torch(stage)
            python = (options.gpu_python or options.python) if gpu else options.python
            by = run_stage(stage, root, python, gpu, options.seconds, known)
            if by:
                return Result(mutant, True, by, time.monotonic() - began)
    finally:
        path.write_text(source)
    return Result(mutant, False, "all tests passed", time.monotonic() - began)


def run_stage(
    stage: Sequence[str], root: Path, python: str, gpu: bool, seconds: float, known: set[str]
) -> str:
    """The first test of a stage that fails, or that it hangs or crashes; "" where none does."""
    present = [s for s in stage if (root / s).exists()]
    command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *present]
    command += [f"--deselect={test}" for test in sorted(known)]
    if present == ["tests"]:
        command += ["--ignore=tests/gpu", "--ignore=tests/models", "--ignore=tests/mutants"]
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    outside = [p for p in more if p and not _inside(p)]
    with tempfile.TemporaryDirectory(prefix="mutant-cache-") as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), *outside]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Objects of other mutants would be found under the digest of a model file.
            "XDG_CACHE_HOME": cache,
            **({"TRITON_INTERPRET": "1"} if gpu else {}),
        }
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{' '.join(present)} took more than {seconds:.0f} s"
    if done.returncode in (0, NO_TESTS):
        return ""
    failed = FAILED.search(done.stdout)
    return (
        failed[1] if failed else f"status {done.returncode}: {(done.stdout + done.stderr)[-200:]}"
    )


def _inside(path: str) -> bool:
    """Tell whether a folder is the tree that is mutated, or its sources."""
    return Path(path).resolve() in (ROOT, ROOT / "src")


__all__ = ["Result", "copy_tree", "run_all", "run_one", "run_stage"]
