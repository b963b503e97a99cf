"""The pages of the site in a real browser, wide and narrow: no console error, nothing cut off."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_site import site

__all__ = ["site"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
WIDTHS = (1280, 390)
HARNESS = Path(__file__).with_name("harness.html")

if BROWSER is None:
    pytest.skip(f"no browser here, none of {', '.join(NAMES)}", allow_module_level=True)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _problems(folder: Path, pages: list[str], profile: Path) -> list[str]:
    """Return what is wrong with pages: too wide, without a title, or errors on the console."""
    text = HARNESS.read_text().replace("PAGES", json.dumps(pages))
    (folder / HARNESS.name).write_text(text.replace("WIDTHS", json.dumps(WIDTHS)))
    with _served(folder) as address:
        done = subprocess.run(
            [
                str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom",
                "--virtual-time-budget=120000", f"--user-data-dir={profile}",
                f"{address}/{HARNESS.name}",
            ],
            capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    results = json.loads(html.unescape(found[1]))
    assert len(results) == len(pages) * len(WIDTHS)
    problems = [str(r) for r in results if r["wide"] > r["width"] or not r["title"]]
    return problems + [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_pages_fit_and_log_no_error(site: Path, tmp_path: Path) -> None:
    pages = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    pages = [page for page in pages if page not in ("404.html", "search.html", HARNESS.name)]
    assert len(pages) > 40
    assert _problems(site, pages, tmp_path) == []


def test_a_wide_page_and_an_error_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "wide.html").write_text(
        "<h1>Wide</h1><div style='width: 800px'>x</div><script>missing()</script>"
    )
    found = _problems(tmp_path / "site", ["wide.html"], tmp_path / "profile")
    assert sum("'width': 390" in line for line in found) == 1
    assert not any("'width': 1280" in line for line in found)
    assert any("missing is not defined" in line for line in found)
