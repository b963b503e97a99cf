"""Only what compiled code cannot hold runs on the host: held against every sample of every op."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from monograph.ir import Op
from monograph.ops import OPS
from tests import hosted_models
from tests.cpu.dynamic.staging import compiled
from tests.frontend.nodes import node_model
from tests.samples import sample_graph

ALLOWED = {
    "strings",
    "a sequence",
    "an optional",
    "a map",
    "an op of classical models",
    "it decodes a file",
}


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples], ids=lambda o: o.name)
def test_every_op_is_compiled_or_says_why_not(op: type[Op]) -> None:
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        executable = compiled(graph, threads=1)
        # What data decide is compiled when they are there.
        with np.errstate(all="ignore"):
            executable.run(feeds)
        assert set(executable.host_reasons.values()) <= ALLOWED, executable.host_reasons


TEXTS = np.array([["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]], object)


@pytest.mark.parametrize("side", [0, 1])
def test_a_host_step_reads_a_constant_text(side: int) -> None:
    """A text is in no buffer, and a constant one is not fed either."""
    other = np.array(["x", "y", "z"], object)
    inputs = [np.array([True, False, True]), TEXTS, other]
    inputs[1], inputs[2] = (inputs[1], inputs[2]) if side else (inputs[2], inputs[1])
    model = node_model("Where", inputs, constant=[1 + side])
    feeds = {"x0": inputs[0], f"x{2 - side}": inputs[2 - side]}
    (given,) = monograph.load(model, "cpu", cache_dir="").run(feeds)
    np.testing.assert_array_equal(given, np.where(*inputs))


def test_constants_of_strings_are_read_on_the_host() -> None:
    session = monograph.load(hosted_models.labelled(), target="cpu")
    x = np.array([[0, 3, 1, 2], [9, 0, 0, 0], [0, 0, 0, 1]], np.float32)
    y, labels = session.run({"x": x})
    assert y.tolist() == ["dog", "cat", ""]
    assert labels.tolist() == hosted_models.LABELS.tolist()


@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_with_open_sizes_inside(nested: bool) -> None:
    session = monograph.load(hosted_models.writing_loop(nested), target="cpu")
    (y,) = session.run(hosted_models.writing_feeds())
    np.testing.assert_array_equal(y, hosted_models.written(nested))
