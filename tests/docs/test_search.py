"""The search of the site in a real browser: what is typed into its field finds pages."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.docs.test_browser import BROWSER, QuietHandler
from tests.docs.test_site import site

__all__ = ["site"]
PAGE = Path(__file__).with_name("search.html")


class _Handler(QuietHandler):
    """Serves the site, and takes what the page reports."""

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        assert isinstance(self.server, _Server)
        self.server.found = json.loads(body)
        self.server.reported.set()


class _Server(ThreadingHTTPServer):
    def __init__(self, folder: Path) -> None:
        self.found: list[str] = []
        self.reported = threading.Event()
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))


def _search(folder: Path, query: str, profile: Path) -> list[str]:
    """Return the addresses that the search field of the first page shows for a query."""
    (folder / PAGE.name).write_text(PAGE.read_text().replace("QUERY", query))
    with _Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        browser = subprocess.Popen(
            [
                str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                f"http://127.0.0.1:{server.server_port}/{PAGE.name}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert server.reported.wait(120), "the page reported nothing"
            return server.found
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()
            thread.join()


def test_the_field_finds_pages(site: Path, tmp_path: Path) -> None:
    for query, page in (("InferenceSession", "migration"), ("donation_copies", "python-api")):
        found = _search(site, query, tmp_path)
        assert any(f"{page}.html" in address for address in found), found


def test_the_field_finds_nothing_for_a_word_that_is_on_no_page(site: Path, tmp_path: Path) -> None:
    assert _search(site, "qqzzxx", tmp_path) == []
