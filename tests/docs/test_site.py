"""The site builds without a warning, its links lead somewhere, and its pages are complete."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from benchmarks.dropin.programs import PROGRAMS

import monograph
from tests.docs.pages import ROOT

if importlib.util.find_spec("material") is None:
    pytest.skip("the site needs mkdocs-material: pip install '.[docs]'", allow_module_level=True)


class _Page(HTMLParser):
    """Collects the links, the files and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[k] for k in ("id", "name") if k in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("img", "script") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def _read(site: Path) -> dict[Path, _Page]:
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = _Page()
        pages[path].feed(path.read_text())
    return pages


def test_links_lead_somewhere(site: Path) -> None:
    pages = _read(site)
    assert len(pages) > 40
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the root of a server
            continue
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name} links to {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"


def test_pages_load_no_file_from_another_host(site: Path) -> None:
    for path, page in _read(site).items():
        assert not [f for f in page.loaded if urlsplit(f).netloc], path.name


def test_diagrams_are_drawn_without_a_script(site: Path) -> None:
    text = (site / "architecture.html").read_text()
    assert text.count('class="flowchart"') == 1
    assert "mermaid" not in text


def test_every_public_name_has_a_reference(site: Path) -> None:
    text = (site / "reference.html").read_text()
    ids = set(re.findall(r'id="([^"]+)"', text))
    wanted = {"monographload", "sessionrun", "sessionrun_async", "generatorgenerate", "config"}
    wanted |= {"enginesubmit", "tokenstreamresult", "completion", "monographfrom_torch"}
    assert wanted <= ids
    for name in monograph.__all__:  # a class has a heading, a function one with the package's name
        assert {name.lower(), f"monograph{name.lower()}"} & ids, name
    assert max(len(line) for line in re.findall(r"^    [a-z]\w*: .*,$", text, re.M)) < 90
    assert not re.search(r"(?m)=\s*[,)]", text), "a parameter lost its default"
    for part in ("max_cached_shapes", "FeedError", "an array for every input"):
        assert part in text


def test_the_page_of_figures_has_them(site: Path) -> None:
    text = (site / "performance.html").read_text()
    assert text.count("<tr>") > 10
    assert (site / "images" / "cpu.svg").stat().st_size > 1000
    packages = json.loads((ROOT / "benchmarks/results/dropin-x86-64.json").read_text())["packages"]
    assert len(packages) == len(PROGRAMS)
    for name in packages:
        assert f"<td>{name}</td>" in text


def test_search_finds_the_tutorials(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for name in ("detector-cpu", "gpu-capture", "ocr-sizes", "language-model"):
        assert f"tutorials/{name}.html" in index
