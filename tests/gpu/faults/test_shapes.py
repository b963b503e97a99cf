"""Shapes that alternate, grow and never repeat; and what else a graph is kept by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tests.gpu.faults.models.device_models import through_temporaries
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Case, Rig, equal, fault, grown
from tests.gpu.gpu_models import FLOAT, linear, model

SHAPES, KEPT = (1000, 4) if ON_DEVICE else (60, 2)
"""Shapes of a session, and how many of them it may keep."""
WIDTH = 512 if ON_DEVICE else 5
"""Of a row. A device is given rows that blocks of a kernel divide: no number of rows stands in the
text of a kernel then, and it is compiled a few times for all shapes, not once for each.
"""


def rows(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 33, generator=generator).to(PLACE)


@fault
def test_two_shapes_alternate(rig: Rig) -> None:
    captured, eager = rig.load(linear()), rig.load(linear(), capture="off")
    held = []
    for turn in range(8):
        x = rows((2, 5)[turn % 2], turn)
        right = eager.run({"x": x})
        held.append((captured.run({"x": x}), right))
    for found, right in held:
        equal(found, right)
    assert captured.stats["captures"] == 2
    assert captured.stats["replays"] == 8
    assert captured.stats["fallbacks"] == {}


@fault
def test_a_later_shape_needs_more_memory(rig: Rig) -> None:
    """Earlier graphs keep what they were captured with, and go on being right."""
    captured, eager = rig.load(linear()), rig.load(linear(), capture="off")
    for count in (2, 64, 2, 300, 64, 2, 300):
        x = rows(count, count)
        equal(captured.run({"x": x}), eager.run({"x": x}))
        rig.poison()
    assert captured.stats["captures"] == 3


@pytest.mark.skipif(not ON_DEVICE, reason="a library's workspace is the device's")
@fault
def test_a_later_shape_needs_a_larger_workspace(rig: Rig) -> None:
    """The workspace that a library allocates in one capture is not outgrown by another's."""

    cases: dict[int, Case] = {}
    for count in (64, 512, 2048):
        setattr(rig.models, f"rows{count}", lambda _, n=count: through_temporaries(n))
        cases[count] = rig.case(f"rows{count}")
    for turn in range(6):
        for count, case in cases.items():
            generator = torch.Generator().manual_seed(turn)
            x = torch.randn(count, 256, generator=generator).cuda()
            right = case.right({"x": x})
            found = case.replay.run({"x": x})
            rig.poison()
            equal(found, right)
            torch.cuda.empty_cache()
    assert all(case.stats["captures"] == 1 for case in cases.values())


def doubled(weight: float = 2.0, kind: int = FLOAT, width: int = 5) -> onnx.ModelProto:
    """x times a weight, for any number of rows."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    narrow = np.float16 if kind == onnx.TensorProto.FLOAT16 else np.float32
    weights = {"w": np.full(width, weight, narrow)}
    return model(nodes, {"x": (kind, ["n", width])}, {"y": (kind, ["n", width])}, weights)


@fault
def test_a_thousand_shapes_in_bounded_memory(rig: Rig) -> None:
    """Each pushes another out, and is captured; some come back after that, and are again.

    What a number times two is does not depend on who multiplies: only some of the shapes are
    compared with eager runs, too, which compile every shape once more.
    """
    if ON_DEVICE and not rig.builds:
        pytest.skip("shapes are kept by the session, however its graphs are made")
    device = rig.device()  # whose kernels both use
    captured = rig.load(doubled(width=WIDTH), device, max_cached_shapes=KEPT, capture="require")
    eager = rig.load(doubled(width=WIDTH), device, max_cached_shapes=1, capture="off")
    data = torch.randn(SHAPES, WIDTH, generator=torch.Generator().manual_seed(0)).to(PLACE)
    counts = list(range(1, SHAPES + 1))
    counts += counts[: KEPT + 1]
    looked_at = 2 * KEPT, len(counts) - 1
    held: list[dict[str, int]] = []
    for turn, count in enumerate(counts):
        x = data[-count:] + turn
        found = captured.run({"x": x})
        equal(found, [x * 2])
        if turn % 10 == 0 or turn in looked_at:
            equal(found, eager.run({"x": x}))
        assert captured.stats["compiled"] <= KEPT
        assert captured.stats["captures"] == turn + 1
        del x, found
        if turn in looked_at:
            held.append(rig.held())
    first, last = held
    # Both times all that is kept is of few rows, of two kilobytes each.
    first["bytes"] = first.get("bytes", 0) + KEPT * 64 * 1024
    assert grown(first, last) == {}


class Two:
    """A session that captures, one that does not, and how often the first has to."""

    def __init__(self, rig: Rig, model: onnx.ModelProto, **options: Any) -> None:
        device = rig.device()
        self.captured = rig.load(model, device, **options)
        self.eager = rig.load(model, device, capture="off", **options)

    def check(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = self.captured.run({"x": x})
        equal(found, self.eager.run({"x": x}))
        return found

    @property
    def captures(self) -> int:
        return int(self.captured.stats["captures"])


@fault
def test_shape_dtype_and_weights_separate_what_is_kept(rig: Rig) -> None:
    x = torch.arange(10.0, device=PLACE).reshape(2, 5)
    sessions = {weight: Two(rig, doubled(weight)) for weight in (2.0, 3.0)}
    half = Two(rig, doubled(3.0, onnx.TensorProto.FLOAT16))
    for _ in range(2):
        for weight, two in sessions.items():
            for given in (x, x[:1], torch.cat([x, x])):
                equal(two.check(given), [given * weight])
        equal(half.check(x.half()), [x.half() * 3])
    assert [two.captures for two in sessions.values()] == [3, 3]
    assert half.captures == 1


@pytest.mark.skipif(ON_DEVICE, reason="these are fake ones; of real ones it takes two")
@fault
def test_the_device_separates_what_is_kept(rig: Rig, tmp_path: Path) -> None:
    """Two devices in one process, with one cache on disk: neither runs what is the other's."""
    rigs = [rig, Rig(rig.builds)]
    before = rigs[1].held()
    both = [Two(one, doubled(), cache_dir=str(tmp_path)) for one in rigs]
    for turn in range(3):
        x = torch.randn(2, 5, generator=torch.Generator().manual_seed(turn))
        for number, two in enumerate(both):
            ran = [len(one.driver.ran) for one in rigs]
            equal(two.check(x), [x * 2])
            more = [len(one.driver.ran) - n for one, n in zip(rigs, ran, strict=True)]
            assert more[number] > 0
            assert more[1 - number] == 0
            assert rigs[number].held()["executable of the driver"] == 1
    assert [two.captures for two in both] == [1, 1]
    del both, two
    assert rigs[1].held() == before


@pytest.mark.skipif(not ON_DEVICE or torch.cuda.device_count() < 2, reason="needs two devices")
@fault
def test_two_devices_separate_what_is_kept(rig: Rig) -> None:
    import monograph

    x = torch.arange(10.0).reshape(2, 5)

    def load(number: int, capture: str) -> monograph.Session:
        return monograph.load(doubled(), target=f"gpu:{number}", tune="off", capture=capture)

    both = [(load(i, "auto"), load(i, "off")) for i in range(2)]
    for _ in range(2):
        for number, (captured, eager) in enumerate(both):
            given = {"x": x.to(f"cuda:{number}")}
            found = captured.run(given)
            assert found[0].device == torch.device("cuda", number)
            equal(found, eager.run(given))
            equal([found[0].cpu()], [x * 2])
    assert [captured.stats["captures"] for captured, _ in both] == [1, 1]
