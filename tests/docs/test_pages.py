"""Generated pages are up to date, and tables list what the code has."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields

from scripts import supported_ops

from monograph import errors
from monograph.config import Config
from monograph.ops import OPS
from tests.docs.pages import ROOT


def test_list_of_ops_is_up_to_date() -> None:
    assert supported_ops.PAGE.read_text() == supported_ops.page(), "run `make docs`"


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "python-api.md").read_text()
    for option in fields(Config):
        row = re.search(rf"^\| `{option.name}` \| (.*?) \| `(\w+)` \|", text, re.MULTILINE)
        assert row is not None, option.name
        assert row[2] == f"MONOGRAPH_{option.name.upper()}"
        if option.name != "cache_dir":
            assert row[1] == f"`{option.default!r}`"


def test_every_error_is_documented() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert f"`{kind.__name__}`" in text or f"errors.{kind.__name__}`" in text, kind


def test_every_folder_of_tests_is_described() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for folder in sorted({p.parent for p in (ROOT / "tests").glob("*/*.py")}):
        assert f"`tests/{folder.name}`" in text, folder.name


def test_every_canonical_op_is_listed() -> None:
    text = supported_ops.page().split("## Canonical ops")[1]
    counts = [int(n) for n in re.findall(r"^`\w+` \((\d+)", text, re.MULTILINE)]
    assert sum(counts) == len(OPS)
    assert sum(map(int, re.findall(r"\d+", text[: text.index("`")]))) == len(OPS)


def test_environment_variables_are_named_in_one_file() -> None:
    """The configuration reads them all; the options of a session have a table of their own."""
    named = {
        path.name
        for path in (ROOT / "src").glob("**/*.py")
        if re.search(r"[\"']MONOGRAPH_\w*[\"']", path.read_text())
    }
    assert named == {"config.py"}


SRC = ROOT / "src" / "monograph"
ROOMS = sorted(p for p in SRC.rglob("*") if p.is_dir() and any(p.glob("*.py")))


def test_architecture_names_every_room() -> None:
    """Every folder is in the page, by its path, its place in the tree, or a table of rooms."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for room in ROOMS:
        assert re.search(rf"[ `/─]{room.name}[/`, ]", text), room.relative_to(SRC)


def test_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = {p.stem for p in SRC.rglob("*.py")} | {p.name for p in ROOMS}
    paths = [*re.findall(r"`([a-z_0-9/*]+/[a-z_0-9*]*(?:\.py)?)`", text)]
    assert len(paths) > 30
    for path in paths:
        found = [*SRC.glob(path), *SRC.glob(f"{path}.py"), *ROOT.glob(path)]
        inside = path.rstrip("/") in names
        assert found or inside, path
    stems = re.findall(r"`([a-z_0-9]+)(?:\.py)?`", text)
    assert len(stems) > 60
    assert set(stems) - names <= {"tid", "reference"}, set(stems) - names


def test_architecture_takes_ten_minutes_to_read() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert text.index("```text") < text.index("```mermaid") < 4000
    assert len(text.split()) <= 2200


def test_glossary_is_alphabetical() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    words = [w.lower() for w in re.findall(r"^\| (?!word)([^|-][^|]*) \|", text, re.MULTILINE)]
    assert len(words) > 50
    assert words == sorted(words)


def test_figures_of_the_readme_are_those_of_the_results() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    results = ROOT / "benchmarks" / "results"
    cpu = json.loads((results / "cpu-x86-64.json").read_text())
    rows = [m for m in cpu["models"].values() if m["ok"]]
    ratios = [m["ratios"]["onnxruntime"] for m in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert {m["threads"] for m in rows} == {2}
    assert (
        f"with 2 threads, the {len(rows)} models of the benchmark set run {min(ratios):.2f} to"
        f" {max(ratios):.1f} times as fast as in ONNX Runtime {cpu['versions']['onnxruntime']},"
        f" {mean:.2f} times in the geometric mean ([{cpu['date']}]"
    ) in text
    packages = json.loads((results / "dropin-x86-64.json").read_text())["packages"].values()
    speeds = [p["onnxruntime"] / p["monograph"] for p in packages]
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    assert {p["result"] for p in packages} == {"agrees"}
    assert (
        f"So {len(speeds)} packages of the package index give the results that they give with ONNX"
        f" Runtime {cpu['versions']['onnxruntime']}, and their models run {min(speeds):.2f} to"
        f" {max(speeds):.1f} times as fast, {mean:.2f} times in the"
        f" geometric mean ([{max(p['date'] for p in packages)}]"
    ) in text
    table, date = (results / "gpu-h200.md").read_text(), "2026-11-15"
    compiled = [float(x) for x in re.findall(r"(?m)^\| \w+ +\|.* (\d+\.\d+) \| +\d+ \|$", table)]
    assert table.startswith(f"# GPU benchmarks, {date}")
    assert len(compiled) == 5
    assert (
        f"the five models of the GPU set take {min(compiled):.1f} to {max(compiled):.0f} times less"
        f" device time than with torch.compile ([{date}]"
    ) in text
