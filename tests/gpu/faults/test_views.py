"""Tensors that are views: what they show is what is computed on, and where outputs go."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from onnx import helper

from tests.gpu.faults.rig import PLACE, Rig, fault
from tests.gpu.gpu_models import FLOAT, model

CAPTURE = pytest.mark.parametrize("capture", ["auto", "off"])


def doubled(kind: int) -> Any:
    return model(
        [helper.make_node("Add", ["x", "x"], ["y"])], {"x": (kind, ["n"])}, {"y": (kind, ["n"])}
    )


@CAPTURE
@fault
def test_the_last_token_of_a_batch_of_one(rig: Rig, capture: str) -> None:
    """One element, dense whatever its stride: as an input, and as an output."""
    session = rig.load(doubled(onnx.TensorProto.INT64), capture=capture)
    ids = torch.arange(40, device=PLACE).reshape(1, 40)
    made = torch.zeros(1, 40, dtype=torch.int64, device=PLACE)
    for at in (-1, 0, 6, 8):
        (y,) = session.run({"x": ids[:, at]})
        assert y.tolist() == [2 * int(ids[0, at])]
        session.run({"x": ids[:, at]}, out={"y": made[:, at]})
        assert made[:, at].tolist() == y.tolist()
        assert session.run_async({"x": ids[:, at]}).result()[0].tolist() == y.tolist()
    assert int((made != 0).sum()) == 3


@CAPTURE
@fault
def test_numbers_that_are_negated_when_read(rig: Rig, capture: str) -> None:
    """torch changes nothing in memory where it conjugates: the parts of that are such numbers."""
    session = rig.load(doubled(FLOAT), capture=capture)
    plain = torch.arange(1.0, 9.0, device=PLACE)
    views = [torch.complex(plain, plain).conj().imag, torch._neg_view(plain.clone())]
    for _ in range(2):
        assert session.run({"x": plain})[0].tolist() == (2 * plain).tolist()
        for view in views:
            assert view.is_neg()
            assert session.run({"x": view})[0].tolist() == (-2 * plain).tolist()
            assert session.run_async({"x": view}).result()[0].tolist() == (-2 * plain).tolist()
    to = torch._neg_view(torch.zeros_like(plain))
    session.run({"x": plain}, out={"y": to})
    assert to.tolist() == (2 * plain).tolist()
