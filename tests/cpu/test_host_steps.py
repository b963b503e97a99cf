"""Only what compiled code cannot hold runs on the host: held against every sample of every op."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Op
from monograph.ops import OPS
from tests.cpu.staging import compiled
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
