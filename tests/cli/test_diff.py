"""The command `monograph diff`: sides, exit codes, records, pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from monograph import load
from tests.cli.calls import call, call_json
from tests.report.diff.models import MODELS, save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(MODELS["tower"].build(), tmp_path_factory.mktemp("diff") / "model.onnx")


def test_sides_that_agree_exit_with_0(model: str, tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    found = call("diff", model, "@reference", "--html", page)
    assert found.exit_code == 0, found.stdout
    assert "the sides agree" in found.stdout
    assert "default-src 'none'" in page.read_text()


@pytest.mark.parametrize("other", ["onnxruntime", "@cpu,threads=1", "@gpu:interpreter"])
def test_other_sides(model: str, other: str) -> None:
    if other == "onnxruntime":
        pytest.importorskip("onnxruntime")
    if "gpu" in other:
        pytest.importorskip("triton")
    found = call_json("diff", model, other)
    assert found["ok"], found
    assert len(found["tensors"]) >= 2


def test_a_package_is_compared_by_its_outputs(model: str, tmp_path: Path) -> None:
    package = tmp_path / "model.mono"
    session = load(model)
    session.run({"x": np.ones((4, 24), np.float32)})
    session.save(package)
    found = call_json("diff", package, model)
    assert found["ok"], found
    assert [t["tensor"] for t in found["tensors"]] == ["last_out"]


def test_two_packages_are_compared_by_the_outputs_of_their_model(
    model: str, tmp_path: Path
) -> None:
    changed = MODELS["tower"].build()
    (weight,) = [w for w in changed.graph.initializer if w.name == changed.graph.node[-1].input[1]]
    data = 2 * onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(data, weight.name))
    packages = []
    for name, path in (("old", model), ("new", save(changed, tmp_path / "changed.onnx"))):
        session = load(path)
        session.run({"x": np.ones((4, 24), np.float32)})
        session.save(tmp_path / f"{name}.mono")
        packages.append(tmp_path / f"{name}.mono")
    old, new = packages
    assert call_json("diff", old, old, "--model", model)["ok"]
    found = call("diff", old, new, "--model", model)
    assert found.exit_code == 1
    told = call_json("diff", old, new, "--model", model)
    assert told["first"] == told["culprit"]["tensor"] == "last_out"
    assert told["culprit"]["kind"] == "side"


def test_two_archives_are_compared_by_the_names_of_their_model(model: str, tmp_path: Path) -> None:
    before, after = tmp_path / "before.npz", tmp_path / "after.npz"
    call_json("diff", model, "--record", before)
    with np.load(before) as archive:
        arrays = dict(archive)
    np.savez(after, **arrays | {"out:second_out": -arrays["out:second_out"]})
    assert call_json("diff", before, before, "--model", model)["ok"]
    told = call_json("diff", before, after, "--model", model)
    assert told["first"] == told["culprit"]["tensor"] == "second_out"
    refused = call("diff", before, after)
    assert refused.exit_code == 2
    assert "--model MODEL.onnx" in refused.output
    refused = call("diff", model, after, "--model", model)
    assert refused.exit_code == 2
    assert "leave out `--model`" in refused.output


def test_recorded_tensors_are_another_side(model: str, tmp_path: Path) -> None:
    record = tmp_path / "before.npz"
    made = call_json("diff", model, "--record", record, "--seed", "7")
    assert made["tensors"] >= 3
    assert call_json("diff", model, record)["ok"]
    with np.load(record) as archive:
        arrays = dict(archive)
    np.savez(record, **arrays | {"out:second_out": 1.5 * arrays["out:second_out"]})
    found = call("diff", record, model)
    assert found.exit_code == 1
    told = call_json("diff", record, model)
    assert told["culprit"]["kind"] == "side"
    assert told["culprit"]["tensor"] == told["first"] == "second_out"
    assert [n["name"] for n in told["culprit"]["nodes"]] == ["second"]


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("MODEL",), "compares two sides"),
        (("MODEL", "@tpu"), "no such side"),
        (("MODEL", "@cpu,speed=2"), "no such option of a side"),
        (("float", "onnxruntime"), "one side must name a model"),
        (("absent.onnx", "@cpu"), "no such model"),
    ],
)
def test_wrong_sides_are_refused(model: str, sides: tuple[str, ...], message: str) -> None:
    found = call("diff", *(model if s == "MODEL" else s for s in sides))
    assert found.exit_code == 2
    assert message in found.output


def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    proto = MODELS["tower"].build()
    proto.graph.node[-1].name = name
    onnx.save(proto, tmp_path / "model.onnx")
    page = tmp_path / "diff.html"
    call("diff", tmp_path / "model.onnx", "@reference", "--html", page)
    assert "<img" not in page.read_text()
    assert "&lt;img src=x" in page.read_text()


@pytest.mark.parametrize("change", ["attribute", "weight", "op"])
def test_a_changed_node_is_named_with_what_changed(change: str, tmp_path: Path) -> None:
    old = MODELS["attention"].build()
    new = MODELS["attention"].build()
    (gelu,) = [n for n in new.graph.node if n.name == "gelu"]
    (up,) = [n for n in new.graph.node if n.name == "up"]
    if change == "attribute":
        gelu.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
        told = "gelu: approximate = absent in A, tanh in B"
    elif change == "op":
        gelu.op_type = "Relu"
        told = "gelu: Gelu in A, Relu in B"
    else:
        (weight,) = [w for w in new.graph.initializer if w.name == up.input[1]]
        data = onnx.numpy_helper.to_array(weight) * np.float32(1.25)
        weight.CopyFrom(onnx.numpy_helper.from_array(data, weight.name))
        told = f"up: weight {up.input[1]} differs by 2.0e-01 of its root mean square"
    found = call_json(
        "diff", save(old, tmp_path / "old.onnx"), save(new, tmp_path / "new.onnx"), "--seed", "3"
    )
    assert found["culprit"]["kind"] == "model"
    assert told in found["culprit"]["differences"]
    text = call("diff", tmp_path / "old.onnx", tmp_path / "new.onnx", "--seed", "3").stdout
    assert told in " ".join(text.split())
