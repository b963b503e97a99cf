"""The status page in a real browser: it shows models and their load, and stays live."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.models import language
from tests.serve.process import ServerProcess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

if BROWSER is None:
    pytest.skip(f"no browser here, none of {', '.join(NAMES)}", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = language(tmp_path_factory.mktemp("models"))
    (folder / "broken.onnx").write_bytes(b"<img src=x onerror=alert(1)>")
    with (folder / "monograph.toml").open("a") as file:
        file.write("slots = 2\n[server]\nlogs = 'json'\nlog_requests = true\n")
    made = ServerProcess(folder)
    try:
        made.wait_announced("models are ready")
        yield made
    finally:
        made.stop()


def test_the_status_page_shows_models_and_stays_live(server: ServerProcess, tmp_path: Path) -> None:
    call = {"model": "llama", "prompt": [5], "max_tokens": 4, "temperature": 0, "n": 3}
    assert server.get("/v1/completions", json.dumps(call).encode())[0] == 200
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom",
            "--virtual-time-budget=9000", f"--user-data-dir={tmp_path / 'profile'}",
            f"{server.url}/",
        ],
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert errors == [], "the policy of the page allows its own script, and nothing fails"
    body = done.stdout.partition("<main")[2]
    seen = html.unescape(re.sub(r"<[^>]+>", " ", body))
    assert "llama / 1" in seen
    assert re.search(r"slots\s+0 of 2, 0 wait", seen), seen
    assert re.search(r"requests\s+3\b", seen), seen
    assert "first token" in seen
    assert "cache" in seen
    assert len(re.findall(r'title="up to [^"]*: [1-9]', body)) >= 2, "bars of two histograms"
    assert "UNAVAILABLE" in seen
    assert "<img" not in body
    asked = [line for line in server.lines if '"/v2/status"' in line]
    assert len(asked) >= 3, "the page asks again every two seconds"
