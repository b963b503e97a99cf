"""The torch peers of the decoding benchmark compute the same step."""

from __future__ import annotations

import os

import pytest
import torch
from benchmarks.decode_gpu_plain import PlainStep
from benchmarks.decode_gpu_torch import Step, _called, _in_graph
from benchmarks.decoder_shapes import SHAPES


def test_the_compact_and_the_plain_form_decode_alike() -> None:
    torch.manual_seed(0)
    shape, place = SHAPES["tiny-llama"], torch.device("cpu")
    plain = PlainStep(shape, 32, place, torch.float32)
    compact = Step(shape, 32, place, torch.float32, four_bits=False)
    compact.table = plain.table
    for ours, theirs in zip(compact.layers, plain.layers, strict=True):
        ours.qkv.weight = torch.cat([theirs.q.weight, theirs.k.weight, theirs.v.weight])
        ours.up.weight = torch.cat([theirs.gate.weight, theirs.up.weight])
        ours.o.weight, ours.down.weight = theirs.o.weight, theirs.down.weight
    compact.head.weight = plain.head.weight
    token, seen = torch.tensor([5]), set()
    for number in range(16):
        plain.length = compact.length = number + 1
        position = torch.tensor([number])
        with torch.no_grad():
            one, other = plain(token, position), compact(token, position)
        assert int(one) == int(other)
        token = one.reshape(1)
        seen.add(int(one))
    assert len(seen) > 8


@pytest.mark.skipif(not os.environ.get("MONOGRAPH_TEST_DEVICE"), reason="graphs need a device")
def test_a_step_in_a_graph_keeps_its_token_and_position() -> None:
    """Their memory went to whoever asked next, and tokens were read that no vocabulary has."""
    shape, place = SHAPES["tiny-llama"], torch.device("cuda")
    step = Step(shape, 32, place, torch.float16, four_bits=False)
    run = _in_graph(_called(step, step, 7, place))
    others = [torch.full((1,), 1 << 40, dtype=torch.int64, device=place) for _ in range(256)]
    step.layers[0].cache.fill_(float("nan"))
    run()
    torch.cuda.synchronize()
    written = ~step.layers[0].cache[0, 0, 0].isnan().any(-1)
    assert written.nonzero().flatten().tolist() == [7]
    assert len(others) == 256
