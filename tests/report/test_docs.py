"""Pages that are made from the code, and what the others say that a test can check."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from scripts import supported_ops

from monograph import errors
from monograph.config import Config
from monograph.ops import OPS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def test_the_list_of_ops_is_up_to_date():
    assert supported_ops.PAGE.read_text() == supported_ops.page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["adding-an-op", "adding-a-rule", "adding-a-pass"])
def test_the_snippets_of_a_tutorial_work(page: str):
    """Together they are a module, whose tests pass; in a process of its own, since it registers."""
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL
    )
    code = "\n".join(blocks)
    tests = re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    assert len(tests) >= 2
    code += "".join(f"\n{name}()" for name in tests)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_option_is_documented():
    text = (ROOT / "docs" / "python-api.md").read_text()
    for option in fields(Config):
        row = re.search(rf"^\| `{option.name}` \| (.*?) \| `(\w+)` \|", text, re.MULTILINE)
        assert row is not None, option.name
        assert row[2] == f"MONOGRAPH_{option.name.upper()}"
        if option.name != "cache_dir":
            assert row[1] == f"`{option.default!r}`"


def test_every_error_is_documented():
    text = (ROOT / "docs" / "errors.md").read_text()
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert f"`{kind.__name__}`" in text or f"errors.{kind.__name__}`" in text, kind


def test_every_folder_of_tests_is_described():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for folder in sorted({p.parent for p in (ROOT / "tests").glob("*/*.py")}):
        assert f"`tests/{folder.name}`" in text, folder.name


def test_every_canonical_op_is_listed():
    text = supported_ops.page().split("## What they become")[1]
    counts = [int(n) for n in re.findall(r"^`\w+` \((\d+)", text, re.MULTILINE)]
    assert sum(counts) == len(OPS)
    assert sum(map(int, re.findall(r"\d+", text[: text.index("`")]))) == len(OPS)


def test_environment_variables_are_named_in_one_file():
    """The configuration reads them all; the options of a session have a table of their own."""
    named = {
        path.name
        for path in (ROOT / "src").glob("**/*.py")
        if re.search(r"[\"']MONOGRAPH_\w*[\"']", path.read_text())
    }
    assert named == {"config.py"}


def test_the_make_targets_that_pages_name_exist():
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z]+)", page.read_text()))
        assert named <= known, f"{page.name} names {named - known}"
