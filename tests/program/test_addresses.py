"""Addresses of whole programs: `inspect` counts those that no proof covers."""

from __future__ import annotations

import pytest

from monograph.config import make_config
from monograph.ir import Op
from monograph.ops import OPS
from monograph.program.fusion.index_bounds import unproven_addresses
from monograph.report.commands.launch_regions import launching_of
from monograph.targets import optimise_for
from tests.samples import sample_graph


@pytest.mark.parametrize("op", OPS.values(), ids=lambda o: o.name)
def test_samples_of_every_op_have_addresses_inside_their_buffers(op: type[Op]) -> None:
    config = make_config(target="cpu")
    for sample in op.samples:
        graph, _ = sample_graph(op, sample)
        program = launching_of(optimise_for(config, graph), "cpu").program
        assert unproven_addresses(program) == 0
