"""A report in a real browser, wide and narrow: links both ways, keys, code, no console error."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.calls import call
from tests.report.diff.models import MODELS
from tests.report.view.pages import large_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
HARNESS = Path(__file__).with_name("harness.html")
WANTED = "large_head<img src=x onerror='hacked=1'>"

if BROWSER is None:
    pytest.skip(f"no browser here, none of {', '.join(NAMES)}", allow_module_level=True)


def visited(folder: Path, visits: list[tuple[str, int]], wanted: str) -> list[dict[str, Any]]:
    """Open pages of a folder at widths; return what each shows. The console must stay empty."""
    text = HARNESS.read_text().replace("VISITS", json.dumps(visits))
    (folder / "harness.html").write_text(text.replace('"WANTED"', json.dumps(wanted)))
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom",
            "--allow-file-access-from-files", "--virtual-time-budget=60000",
            f"--user-data-dir={folder / 'profile'}", (folder / "harness.html").as_uri(),
        ],
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    results = json.loads(html.unescape(found[1]))
    assert isinstance(results, list), results
    return results


def test_a_report_is_read_wide_and_narrow(tmp_path: Path) -> None:
    proto = MODELS["detector"].build()
    (node,) = [n for n in proto.graph.node if n.name == "large_head"]
    node.name = WANTED
    folder = tmp_path / ("folder-with-a-long-name-" * 4)  # The page shows its path.
    folder.mkdir()
    onnx.save(proto, folder / "model.onnx")
    result = call("view", folder / "model.onnx", "-o", folder / "page.html")
    assert result.exit_code == 0, result.output
    found = visited(folder, [("page.html", 1280), ("page.html", 390)], "large_head")
    assert [f["width"] for f in found] == [1280, 390]
    for seen in found:
        assert seen["wide"] <= seen["width"], "nothing is cut off"
        assert seen["last"] <= seen["width"]
        assert seen["node"] == WANTED
        (step,) = seen["steps"]
        assert not seen["covered"], "the details do not cover the graph that they are about"
        assert seen["step"] == step
        assert WANTED in seen["nodes"], "the step leads back to the node"
        assert "define" in seen["code"]
        assert seen["canvases"] == 2
        assert seen["closed"]
        assert seen["moved"]
        assert seen["keyed"]
        assert len(seen["words"]) > 300
        assert not re.search(r"null|undefined|NaN", seen["words"]), "what is unknown is left out"
        numbers = [int(seen[name].split(":")[0].split()[1]) for name in ("step", "next")]
        assert numbers[1] == numbers[0] + 1
        assert seen["larger"]
        assert re.match(r"None of \d+ steps is wrong", seen["verdict"])
        assert seen["pictures"] == ["errors", "memory", "roofline", "timeline"]
        assert not seen["hacked"]


def test_ten_thousand_nodes_open_with_few_elements(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(large_page(10_000))
    (seen,) = visited(tmp_path, [("page.html", 1280)], "node_9876")
    assert seen["elements"] < 300, "what fills a page is drawn when it is looked at"
    assert seen["steps"] == ["step 9876: pointwise"]
    assert seen["nodes"] == ["node_9876"]
    assert seen["rows"] <= 300
    assert len(seen["pictures"]) == 4
