"""The report of a model's launches: regions, kernels, and what splits them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from monograph.report.commands.execute import RunRequest
from monograph.report.commands.launch_regions import Launching, launching_json, launching_of_model
from monograph.session import load
from tests.cli.calls import call, call_json
from tests.report import models


def told(text: str, target: str, folder: Path) -> Launching:
    return launching_of_model(RunRequest(models.save(text, folder), target), lambda _: None)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_a_model_of_numbers_is_one_region(target: str, tmp_path: Path) -> None:
    found = told(models.LINEAR, target, tmp_path)
    kernels = sum(found.kernels.values())
    assert len(found.regions) == 1
    assert found.text == f"1 region, {kernels} kernels; no host steps"


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_both_targets_name_the_op_that_splits_and_why(target: str, tmp_path: Path) -> None:
    found = told(models.SPLIT, target, tmp_path)
    assert [h.reason for h in found.host] == ["strings", "strings"]
    assert found.text.startswith("2 regions, 2 kernels; 2 host steps (strings: ")
    assert "written" in found.text
    written = launching_json(found)
    assert [r["steps"] for r in written["regions"]] == [1, 1]
    assert written["host_steps"][0]["nodes"] == ["written"]


def test_the_words_are_those_of_the_runs(tmp_path: Path) -> None:
    path = models.save(models.SPLIT, tmp_path)
    session = load(path, "cpu")
    session.run({"x": np.ones(4, np.float32)})
    found = told(models.SPLIT, "cpu", tmp_path)
    assert session.stats["launches_per_run"] == len(found.regions)
    assert session.stats["kernels_per_run"] == sum(found.count(r) for r in found.regions)


def test_data_that_decide_sizes_end_the_program(tmp_path: Path) -> None:
    found = told(models.CHOSEN, "gpu", tmp_path)
    assert len(found.ends) == 1
    assert "data decide sizes" in found.text
    assert "late" in found.text


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_op_that_finds_a_size_is_named_alike_by_all(target: str, tmp_path: Path) -> None:
    found = told(models.SIZED, target, tmp_path)
    words = "data decide sizes: the host reads them, and goes on from there (non_zero (found)"
    assert words in found.text
    path = models.save(models.SIZED, tmp_path)
    session = load(path, "cpu")
    session.run({"x": np.eye(3, 4, dtype=np.float32)})
    assert session.stats["launches_per_run"] == len(found.regions)
    (reason,) = session.stats["fallbacks"]
    assert reason in found.text
    refused = call("run", path, "--capture", "require")
    assert refused.exit_code == 2
    assert reason in refused.stderr


def test_what_waits_is_counted_as_a_launch_of_its_own(tmp_path: Path) -> None:
    found = told(models.CHOSEN, "cpu", tmp_path)
    assert "what follows is compiled and launched when they are known" in found.text
    session = load(models.save(models.CHOSEN, tmp_path), "cpu")
    session.run({"x": np.ones((1, 1, 4, 4), np.float32)})
    assert session.stats["launches_per_run"] == len(found.regions) + 1


def test_a_state_between_runs_is_no_reason_to_wait(tmp_path: Path) -> None:
    session = load(models.save(models.RANDOM, tmp_path), "cpu", capture="require")
    session.run({"x": np.ones(4, np.float32)})
    assert session.stats["fallbacks"] == {}
    # One thread takes the turn from the state; then all threads make numbers of it, and the sum.
    assert told(models.RANDOM, "cpu", tmp_path).text == "1 region, 2 kernels; no host steps"
    assert session.stats["launches_per_run"] == 1
    assert session.stats["kernels_per_run"] == 2


def test_refusals_name_steps_of_the_host_as_inspect_does(tmp_path: Path) -> None:
    path = models.save(models.SPLIT, tmp_path)
    names = [h.name for h in told(models.SPLIT, "cpu", tmp_path).host]
    assert names == ["cast (written)", "cast (read)"]
    session = load(path, "cpu")
    session.run({"x": np.ones(4, np.float32)})
    assert session.stats["host_steps"] == sorted(names)
    for command in (
        ("run", path, "--capture", "require"),
        ("compile", path, "-o", tmp_path / "m.mono"),
    ):
        result = call(*command)
        assert result.exit_code == 2
        assert ", ".join(names) in result.stderr


def test_sizes_that_do_not_fit_leave_the_tables(tmp_path: Path) -> None:
    path = models.save(models.PAIRS, tmp_path)
    result = call("inspect", path, "--target", "gpu")
    assert result.exit_code == 0
    assert "Every op is supported" in result.stdout
    assert "launches on gpu are unknown" in result.stderr
    assert "choose sizes with --dim" in result.stderr
    found = call_json("inspect", path, "--target", "cpu")
    assert found["supported"]
    assert "choose sizes with --dim" in found["launches"]["problem"]
    assert (
        "launches on gpu: 1 region"
        in call("inspect", path, "--target", "gpu", "--dim", "W=14").stdout
    )


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("bench", "--seconds", "0.1"),
        ("explain",),
        ("profile",),
        ("verify",),
        ("verify", "--replay"),
        ("verify", "--per-step"),
    ],
)
def test_every_command_says_how_to_choose_sizes(command: tuple[str, ...], tmp_path: Path) -> None:
    result = call(command[0], models.save(models.PAIRS, tmp_path), *command[1:])
    assert result.exit_code == 2
    assert "choose sizes with --dim" in result.stderr


def test_a_branch_splits_where_graphs_have_no_conditional_nodes(tmp_path: Path) -> None:
    for target, regions in (("gpu", 1), ("gpu:sm_90", 1), ("gpu:gfx942", 0)):
        found = told(models.BRANCH, target, tmp_path)
        assert len(found.regions) == regions, target
    assert "no conditional nodes" in found.text


def test_inspect_tells_on_request(tmp_path: Path) -> None:
    path = models.save(models.SPLIT, tmp_path)
    assert "launches" not in call_json("inspect", path)
    found = call_json("inspect", path, "--target", "gpu")["launches"]
    assert found["target"] == "gpu"
    assert len(found["host_steps"]) == 2
    text = call("inspect", path, "--target", "cpu").stdout
    assert "launches on cpu: 2 regions, 2 kernels; 2 host steps (strings" in text


def test_inspect_refuses_a_target_that_is_none(tmp_path: Path) -> None:
    result = call("inspect", models.save(models.SPLIT, tmp_path), "--target", "tpu")
    assert result.exit_code == 2
    assert "no such target" in result.stderr


def test_explain_tells_too(tmp_path: Path) -> None:
    path = models.save(models.LINEAR, tmp_path)
    text = call("explain", path, "--target", "gpu").stdout
    assert "launches on gpu: 1 region, " in text
    assert "no host steps" in text
    assert call_json("explain", path)["launches"]["summary"].startswith("1 region")


def decoded_conv(folder: Path) -> Path:
    """A convolution of 64 x 64 channels whose int8 weights are dequantised per channel."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 21]>
        g (float[1, 64, 8, 8] x) => (float[1, 64, 6, 6] y)
        <int8[64, 64, 3, 3] codes, float[64] scale, int8[64] zero> {
            [Decode] w = DequantizeLinear <axis = 0> (codes, scale, zero)
            [Layer] y = Conv (x, w)
        }
        """
    )
    data = {
        "codes": np.arange(64 * 64 * 9).reshape(64, 64, 3, 3).astype(np.int8),
        "scale": np.ones(64, np.float32),
        "zero": np.zeros(64, np.int8),
    }
    for name, array in data.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "decoded.onnx")
    return folder / "decoded.onnx"


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_weights_that_each_run_decodes_are_reported(target: str, tmp_path: Path) -> None:
    path = decoded_conv(tmp_path)
    wanted = [{"nodes": ["Decode"], "bytes": 64 * 64 * 9 * 4}]
    assert call_json("inspect", path)["expanded_weights"] == wanted
    assert call_json("inspect", path, "--target", target)["launches"]["expanded_weights"] == wanted
    assert "weights that every run decodes" in call("inspect", path).stdout


def test_compiling_warns_of_weights_that_each_run_decodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = load(decoded_conv(tmp_path), "cpu", cache_dir="")
    feeds = {"x": np.ones((1, 64, 8, 8), np.float32)}
    for _ in range(3):
        session.run(feeds)
    told = [r.message for r in caplog.records if "decodes constant weights" in r.message]
    assert told == ["each run decodes constant weights into 0.1 MB: Decode"]


def test_codes_that_a_product_reads_are_not_reported(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 21]>
        g (float[4, 128] x) => (float[4, 256] y)
        <int8[128, 256] codes, float[256] scale, int8[256] zero> {
            w = DequantizeLinear <axis = 1> (codes, scale, zero)
            y = MatMul (x, w)
        }
        """
    )
    codes = np.arange(128 * 256).reshape(128, 256).astype(np.int8)
    for name, array in (("codes", codes), ("scale", np.ones(256, np.float32))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    zero = onnx.numpy_helper.from_array(np.zeros(256, np.int8), "zero")
    model.graph.initializer.append(zero)
    onnx.save(model, tmp_path / "m.onnx")
    assert call_json("inspect", tmp_path / "m.onnx")["expanded_weights"] == []
