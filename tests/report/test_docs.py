"""Pages that are made from the code, and what the others say that a test can check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import supported_ops

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def test_the_list_of_ops_is_up_to_date():
    assert supported_ops.PAGE.read_text() == supported_ops.page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_make_targets_that_pages_name_exist():
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z]+)", page.read_text()))
        assert named <= known, f"{page.name} names {named - known}"
