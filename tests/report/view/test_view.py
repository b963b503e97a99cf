"""monograph view: the content of a report, links both ways, sizes, pictures, two reports."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import onnx.parser
import pytest

from monograph.report.view import charts, marks
from monograph.report.view.compare import compared
from monograph.report.view.layout import HEIGHT, WIDTH, layered
from tests.cli.calls import call, call_json
from tests.report.diff.models import MODELS, save
from tests.report.view.pages import content_of, large_page

HOSTILE = "</script><img src=x onerror=hacked()>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has a hostile name, its page and its pictures."""
    made = tmp_path_factory.mktemp("view")
    proto = MODELS["detector"].build()
    proto.graph.node[-1].name = HOSTILE
    onnx.save(proto, made / "model.onnx")
    result = call("view", made / "model.onnx", "-o", made / "page.html", "--svg", made / "svg")
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    found = content_of((folder / "page.html").read_text())
    assert isinstance(found, dict)
    return found


def test_every_step_is_linked_to_its_nodes_and_is_timed_and_checked(
    content: dict[str, Any],
) -> None:
    names = [node[0] for node in content["nodes"]]
    for step in content["steps"]:
        assert [names[i] for i in step["nodes"]] == step["origin"]
        assert step["seconds"] > 0
        assert step["right"] is True
    linked = {i for step in content["steps"] for i in step["nodes"]}
    assert {names.index(n) for n in ("stem", "large_head", "down")} <= linked


def test_passes_have_their_rewrites_and_misses(content: dict[str, Any]) -> None:
    fired = [f for p in content["passes"] for f in p["fired"]]
    assert fired
    assert all(f["before"] != f["after"] for f in fired)
    rules = {r["name"]: r for r in content["rules"]}
    assert all(rules[content["rules"][f["rule"]]["name"]]["equation"] for f in fired)
    assert any(m["reason"] for r in content["rules"] for m in r["misses"])


def test_code_is_in_the_page_and_unpacked_on_demand(folder: Path) -> None:
    code = content_of((folder / "page.html").read_text(), "code")
    assert all("define" in code["texts"][at] for at in code["of"] if at >= 0)
    assert any(at >= 0 for at in code["of"])


def test_hostile_names_are_inert_and_nothing_is_fetched(folder: Path) -> None:
    page = (folder / "page.html").read_text()
    assert "<img" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert " style=" not in page, "the policy forbids styles of elements"


def test_pictures_are_files_of_their_own(folder: Path) -> None:
    names = {path.stem for path in (folder / "svg").iterdir()}
    assert names >= {"graph-before", "graph-after", "timeline", "memory", "roofline", "errors"}
    for path in (folder / "svg").iterdir():
        assert ElementTree.fromstring(path.read_text()).tag.endswith("}svg")


def test_two_reports_are_compared(folder: Path, tmp_path: Path) -> None:
    before = call_json("view", folder / "model.onnx", "--no-run")
    before["rules"][0]["fired"] += 3
    gone = before["steps"].pop()
    (tmp_path / "before.json").write_text(json.dumps(before))
    found = call_json(
        "view", folder / "model.onnx", "--no-run", "--against", tmp_path / "before.json"
    )["against"]
    assert [s["nodes"] for s in found["steps"] if s["is"] == "new"] == [gone["origin"]]
    assert [r[0] for r in found["rules"]] == [before["rules"][0]["name"]]


def test_steps_of_one_node_are_compared_in_order() -> None:
    def report(*times: float) -> dict[str, Any]:
        steps = [{"origin": ["attention"], "kind": "pointwise", "seconds": t} for t in times]
        return {"facts": {}, "rules": [], "steps": steps}

    found = compared(report(1.0, 3.0, 5.0), report(1.0, 2.0))
    assert [(s["step"], s["is"], s["before"]) for s in found["steps"]] == [
        (2, "new", None),
        (1, "changed", 2.0),
    ]


def test_a_wrong_report_to_compare_with_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[1]")
    result = call("view", folder / "model.onnx", "--against", tmp_path / "other.json")
    assert result.exit_code == 2
    assert "`monograph view --json`" in result.output


def test_a_report_for_a_gpu_needs_none(tmp_path: Path) -> None:
    path = save(MODELS["tower"].build(), tmp_path / "model.onnx")
    pytest.importorskip("triton")
    found = call_json("view", path, "--target", "gpu:sm_90")
    assert found["target"] == "gpu:sm_90"
    assert found["steps"]


def test_a_page_of_ten_thousand_nodes_is_small() -> None:
    page = large_page(10_000)
    assert len(page) < 1_000_000
    assert len(content_of(page)["nodes"]) == 10_000


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_nodes_of_a_layout_do_not_overlap_and_edges_lead_down(count: int) -> None:
    edges = [((i * 7) % i, i) for i in range(1, count)] + [(i // 2, i) for i in range(1, count)]
    found = layered(count, edges)
    assert len(found.places) == count
    assert all(found.places[b][1] >= found.places[a][1] + HEIGHT for a, b in edges)
    rows: dict[int, list[int]] = {}
    for x, y in found.places:
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a >= WIDTH for a, b in pairwise(row))


def test_late_nodes_lie_above_their_users() -> None:
    chain = [(i, i + 1) for i in range(9)]
    found = layered(12, [*chain, (10, 11), (11, 9)], late={10, 11})
    assert found.places[11][1] == found.places[8][1]
    assert found.places[10][1] == found.places[7][1]


FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 20, "local" : 1]>
named (float[8, 16] x) => (float[8, 16] y)
{
    a = local.block(x)
    b = local.block(a)
    y = Relu(b)
}
<domain: "local", opset_import: ["" : 20]>
block (x) => (y)
{
    t = Tanh(x)
    s = Softmax <axis = -1> (t)
    y = Add(s, x)
}
"""


def test_steps_of_a_function_body_lead_to_the_nodes_that_call_it(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FUNCTIONS)
    for node, name in zip(model.graph.node, ("first", "second", "last"), strict=True):
        node.name = name
    onnx.save(model, tmp_path / "model.onnx")
    found = call_json("view", tmp_path / "model.onnx", "--no-run")
    steps = found["steps"]
    assert "first/Softmax#1" in steps[0]["origin"]
    assert 0 in steps[0]["nodes"]
    assert {1, 2} <= set(steps[-1]["nodes"])


def test_nodes_of_one_name_all_lead_to_its_steps(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FUNCTIONS)
    for node, name in zip(model.graph.node, ("twin", "twin", "last"), strict=True):
        node.name = name
    onnx.save(model, tmp_path / "model.onnx")
    found = call_json("view", tmp_path / "model.onnx", "--no-run")
    assert {i for s in found["steps"] for i in s["nodes"]} == {0, 1, 2}


@pytest.mark.parametrize("of_floor", [(0.3, 0.9), (2.1, 0.4), (5.0, 7.0)])
def test_rates_stay_inside_the_picture(of_floor: tuple[float, float]) -> None:
    rows = [
        {"position": p, "tokens_per_second": 1000.0 * f, "of_floor": f}
        for p, f in zip((4, 400), of_floor, strict=True)
    ]
    root = ElementTree.fromstring(charts.decoding({"positions": rows}))
    height = float(root.get("viewBox", "").split()[3])
    lines = [e for e in root if e.tag.endswith("polyline")]
    assert len(lines) == 2
    for element in lines:
        places = [p.split(",") for p in element.get("points", "").split()]
        assert all(0 <= float(y) <= height and 0 <= float(x) <= 1000 for x, y in places)


def test_colours_of_the_page_are_those_of_the_pictures(folder: Path) -> None:
    page = (folder / "page.html").read_text()
    assert content_of(page)["palette"] == list(marks.PALETTE)
    assert all(f".h{i}{{fill:{colour}}}" in page for i, colour in enumerate(marks.PALETTE))
    assert set(content_of(page)["kinds"]) == {s["kind"] for s in content_of(page)["steps"]}


def test_the_machine_of_the_other_report_is_kept() -> None:
    report: dict[str, Any] = {"facts": {}, "rules": [], "steps": []}
    assert compared(report, {**report, "machine": "another"})["machine"] == "another"
